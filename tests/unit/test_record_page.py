"""The tables of our own runs are those of the results that lie beside them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from scripts.record_page import PAGES, RESULTS, results, table, used, with_part, with_results

from leveret.proof.ledger import judge

RUN: dict[str, Any] = {
    **judge([], takers={}, max_attempts=1).as_json(),
    "date": "2026-11-30",
    "command": "leveret torture --minutes 10",
    "versions": {"leveret": "0.2.0", "RabbitMQ": "3.10.8"},
    "seeds": 42,
    "accepted": 184220,
}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_shows_the_results_as_they_are(page):
    text = page.read_text(encoding="utf-8")
    assert text == with_results(text, results(RESULTS)), "run make docs"


def test_a_run_is_one_row():
    late = {"lateness": {"outside": {"number": 7, "p50": 0.01, "p99": 0.234, "most": 1.0}}}
    assert table(
        [RUN, {**RUN, **late, "command": "a | b", "seeds": "0–4999", "unknown": 9}]
    ).splitlines() == [
        "| date | command | versions | seeds | accepted | lost | duplicated | late | p99 outside | unknown |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        (
            "| 2026-11-30 | `leveret torture --minutes 10` | leveret 0.2.0, RabbitMQ 3.10.8 "
            "| 42 | 184 220 | 0 | 0 | 0 | – | 0 |"
        ),
        (
            "| 2026-11-30 | `a \\| b` | leveret 0.2.0, RabbitMQ 3.10.8 "
            "| 0–4999 | 184 220 | 0 | 0 | 0 | 0.23 s | 9 |"
        ),
    ]


def test_no_record_is_made_of_a_run_that_was_not_clean():
    for broken in ({"lost": 1}, {"faults": [{"rule": "copies"}]}, {"troubles": ["not flat: …"]}):
        with pytest.raises(ValueError, match="mend it and run it again"):
            table([{**RUN, **broken}])


def test_a_result_of_something_else_is_refused():
    with pytest.raises(ValueError, match="without command, date"):
        table([{"lost": 0, "faults": [], "lateness": {}, "seeds": 1, "versions": {}}])


def test_of_a_soak_each_life_is_a_line():
    lives = ["retry-1 1, 1790 s: files 13 → 13", "retry-2 1, 700 s: too short to tell"]

    assert used([RUN, {**RUN, "lives": lives}]) == f"- {lives[0]}\n- {lives[1]}\n"


def test_a_part_stands_between_its_marks():
    page = "before\n<!-- runs -->\nold\n<!-- /runs -->\nafter\n"
    assert with_part(page, "runs", "new\n") == page.replace("old", "new")
    assert with_part(page, "soak", "new\n") == page


def test_the_results_are_put_in_all_their_places():
    page = "<!-- runs -->\n<!-- /runs -->\n<!-- soak -->\n<!-- /soak -->\n"
    runs = [{**RUN, "lives": ["retry-1 1, 1790 s: files 13 → 13"]}]

    assert table(runs) in with_results(page, runs)
    assert used(runs) in with_results(page, runs)


def test_of_a_file_the_last_line_counts(tmp_path):
    (tmp_path / "b.json").write_text(json.dumps({"seeds": 1}) + "\n" + json.dumps({"seeds": "1–2"}) + "\n")
    (tmp_path / "a.json").write_text(json.dumps({"seeds": 3}) + "\n")
    assert [each["seeds"] for each in results(tmp_path)] == [3, "1–2"]
