from __future__ import annotations

import json

from benchmarks import __main__ as benchmarks
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


def test_an_unknown_benchmark_is_refused_with_those_that_there_are(capsys):
    assert benchmarks.main(["pipeline"]) == 2
    assert "there are import_time, pipeline_memory" in capsys.readouterr().err
