"""The tables of our own runs are those of the results that lie beside them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from scripts.record_page import BEGIN, END, PAGES, RESULTS, results, table, with_table

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
    assert text == with_table(text, table(results(RESULTS))), "run make docs"


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


def test_no_record_is_made_of_a_run_that_broke_the_promise():
    for broken in ({"lost": 1}, {"faults": [{"rule": "copies"}]}):
        with pytest.raises(ValueError, match="mend it and run it again"):
            table([{**RUN, **broken}])


def test_a_result_of_something_else_is_refused():
    with pytest.raises(ValueError, match="without command, date"):
        table([{"lost": 0, "faults": [], "lateness": {}, "seeds": 1, "versions": {}}])


def test_the_table_stands_between_its_marks():
    page = f"before\n{BEGIN}old\n{END}after\n"
    assert with_table(page, "new\n") == f"before\n{BEGIN}new\n{END}after\n"
    assert with_table("no place\n", "new\n") == "no place\n"


def test_of_a_file_the_last_line_counts(tmp_path):
    (tmp_path / "b.json").write_text(json.dumps({"seeds": 1}) + "\n" + json.dumps({"seeds": "1–2"}) + "\n")
    (tmp_path / "a.json").write_text(json.dumps({"seeds": 3}) + "\n")
    assert [each["seeds"] for each in results(tmp_path)] == [3, "1–2"]
