from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import pytest
from benchmarks import __main__ as benchmarks
from benchmarks import page, peers_run
from benchmarks.broker import NoBroker
from benchmarks.figure import Figure

OURS = Figure(name="pipeline", value=16200.4, unit="/s", peer="bare queue", peer_value=48000.0)


def test_a_figure_stands_on_one_line_with_its_peer_and_the_ratio():
    assert OURS.line.split() == ["pipeline", "16200/s", "bare", "queue", "48000/s", "0.34", "×"]


def test_a_figure_without_a_peer_has_no_ratio():
    alone = Figure(name="late", value=14.4, unit=" ms")
    assert alone.line.split() == ["late", "14.4", "ms"]
    assert alone.written() == {
        "name": "late", "value": 14.4, "unit": "ms", "peer": None, "peer_value": None, "ratio": None,
    }  # fmt: skip


def test_figures_that_are_not_measured_again_stay_in_the_results(tmp_path, monkeypatch):
    results = tmp_path / "results.json"
    monkeypatch.setattr(benchmarks, "RESULTS", results)
    benchmarks.write([OURS, Figure(name="late", value=1.0, unit=" ms")])
    benchmarks.write([Figure(name="late", value=2.0, unit=" ms")])
    found = json.loads(results.read_text())
    assert [(each["name"], each["value"], each["ratio"]) for each in found] == [
        ("late", 2.0, None),
        ("pipeline", 16200.0, 0.3375),
    ]


def test_the_page_shows_the_figures_that_were_measured_last():
    results = json.loads(benchmarks.RESULTS.read_text())
    assert page.PAGE.read_text() == page.with_figures(page.PAGE.read_text(), results), "make docs"


def test_a_row_of_the_page_that_was_never_measured_is_told():
    with pytest.raises(KeyError, match="speed"):
        page.with_figures("| `speed` | all | 1/s | | | |", [OURS.written()])


def test_an_unknown_benchmark_is_refused_with_those_that_there_are(capsys):
    assert benchmarks.main(["pipeline"]) == 2
    assert "there are import_time, pipeline_memory" in capsys.readouterr().err


def stand_in(monkeypatch, tmp_path, **measures):
    monkeypatch.setattr(benchmarks, "RESULTS", tmp_path / "results.json")
    monkeypatch.setattr(benchmarks, "QUESTIONS", tuple(measures))
    for name, measure in measures.items():
        monkeypatch.setitem(sys.modules, f"benchmarks.{name}", SimpleNamespace(measure=measure))


def test_what_needs_a_broker_is_left_out_where_there_is_none_and_the_rest_is_measured(
    monkeypatch, tmp_path, capsys
):
    def on_a_broker():
        yield OURS
        raise NoBroker("needs RabbitMQ: make services")

    stand_in(
        monkeypatch, tmp_path, first=on_a_broker, second=lambda: [Figure(name="late", value=1.0, unit=" ms")]
    )
    assert benchmarks.main([]) == 1
    told = capsys.readouterr()
    assert [line.split()[0] for line in told.out.splitlines()] == ["pipeline", "late"]
    assert "needs RabbitMQ: make services" in told.err


def test_figures_can_be_had_as_json_lines(monkeypatch, tmp_path, capsys):
    stand_in(monkeypatch, tmp_path, first=lambda: [OURS])
    assert benchmarks.main(["--json", "first"]) == 0
    assert json.loads(capsys.readouterr().out) == OURS.written()


def test_a_peer_that_fails_is_told_of_in_its_own_words_and_without_the_brokers_password(
    monkeypatch, tmp_path
):
    (tmp_path / "peers").mkdir()
    (tmp_path / "peers" / "broken.py").write_text("import sys; sys.exit('no such broker')")
    monkeypatch.setattr(peers_run, "_HERE", tmp_path)
    monkeypatch.setattr(peers_run, "_interpreter", lambda: sys.executable)
    with pytest.raises(RuntimeError) as told:
        peers_run.run("broken.py", "amqp://guest:secret@nowhere")
    assert "no such broker" in str(told.value)
    assert "secret" not in str(told.value)


def test_a_peer_gives_the_figure_on_its_last_line(monkeypatch, tmp_path):
    (tmp_path / "peers").mkdir()
    (tmp_path / "peers" / "quick.py").write_text("""print('hello'); print('{"per_second": 12.5}')""")
    monkeypatch.setattr(peers_run, "_HERE", tmp_path)
    monkeypatch.setattr(peers_run, "_interpreter", lambda: sys.executable)
    assert peers_run.run("quick.py") == 12.5
