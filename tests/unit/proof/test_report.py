"""The report: whole in one file, every value escaped, readable without scripts."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.proof.clean import Clean

from leveret.proof.charts import chart
from leveret.proof.ledger import judge
from leveret.proof.record import (
    Answered,
    AnyEvent,
    Asked,
    Backlog,
    Began,
    Called,
    CallEnded,
    Ended,
    Found,
    Healed,
    Sampled,
    Struck,
)
from leveret.proof.report import MOST_FAULTS, MOST_LINES, Head, write_report
from leveret.proof.shop import MAX_ATTEMPTS, TAKERS
from leveret.proof.timeline import MOST_POINTS, Timeline, timeline

HOSTILE = "<script>alert('x')</script> \"&"


class Read(HTMLParser):
    """Elements with their attributes, and text; fails where an element is left open or closed wrongly."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""
        self._open: list[str] = []
        self.feed(page)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in {"meta", "br"}:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data

    def number_of(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.elements)


def reported(path: Path, events: list[AnyEvent], **head: Any) -> Read:
    verdict = judge(events, takers=TAKERS, max_attempts=MAX_ATTEMPTS)
    told = {"command": "leveret torture --minutes 1", "seed": 42, "versions": {"leveret": "0.2.0"}, **head}
    write_report(
        path / "report.html", Head(**told), verdict, lambda: events, takers=TAKERS, max_attempts=MAX_ATTEMPTS
    )
    return Read((path / "report.html").read_text(encoding="utf-8"))


def clean(number: int = 60) -> list[AnyEvent]:
    """A minute of clean orders, the survey right after it."""
    events = Clean(3, soft=0.3, hard=0.1, rate=1.0).events(number)
    return [msgspec.structs.replace(event, at=min(event.at, 80.0)) for event in events]


def test_a_good_run_says_that_nothing_was_lost(tmp_path):
    page = reported(tmp_path, clean())
    assert "lost 0the promise was kept" in page.words
    assert "seed 42 · 1:20 min · 0 faults struck · leveret 0.2.0" in page.words
    assert "Breaches" not in page.words


def test_nothing_comes_from_elsewhere_and_nothing_runs(tmp_path):
    page = reported(tmp_path, clean())
    assert not {"script", "link", "img", "iframe"} & {tag for tag, _ in page.elements}
    assert not [
        value
        for _, attributes in page.elements
        for name, value in attributes.items()
        if name in {"src", "href"}
    ]


def test_the_rules_that_were_broken_are_told_with_their_stories(tmp_path):
    events = [event for event in clean() if not (isinstance(event, Began) and event.worker == "vault")]
    events = [*events, Backlog(at=80.0, by="survey", queue="shop.charge", messages=3)]
    page = reported(tmp_path, events)
    lost = judge(events, takers=TAKERS, max_attempts=MAX_ATTEMPTS).faults
    assert f"{len(lost)} breaches of the promise" in page.words
    assert "backlog · shop.charge still holds 3 messages" in page.words
    assert "▸   80.000 s" in page.words.replace("79.", "80."), "the event that shows it is marked"


def test_only_so_many_stories_of_so_many_lines_are_told(tmp_path):
    events: list[AnyEvent] = [
        Backlog(at=number / 10, by="survey", queue=f"q{number}", messages=1)
        for number in range(MOST_FAULTS + 3)
    ]
    asked = Asked(at=0.0, by="producer", subject="o1", type="vault.entry", message_id="id")
    often = [msgspec.structs.replace(asked, at=number / 100) for number in range(MOST_LINES + 10)]
    told = Answered(at=9.0, by="producer", subject="o1", answer="accepted")
    page = reported(tmp_path, [*events, *often, told])
    assert page.words.count("still holds") == MOST_FAULTS - 1, "what is lost comes first"
    assert "… and 4 more." in page.words
    assert "… and 11 lines more" in page.words


def test_every_value_is_escaped(tmp_path):
    asked = Asked(at=1.0, by=HOSTILE, subject=HOSTILE, type="vault.entry", message_id=HOSTILE)
    events: list[AnyEvent] = [
        asked,
        Answered(at=1.1, by=HOSTILE, subject=HOSTILE, answer="accepted"),
        Struck(at=1.2, by=HOSTILE, fault=HOSTILE, kind=HOSTILE, target=HOSTILE, note=HOSTILE),
        Healed(at=1.3, by=HOSTILE, fault=HOSTILE),
        Sampled(at=1.4, by=HOSTILE, figures={HOSTILE: 1.0}),
        Called(at=1.5, by=HOSTILE, call=HOSTILE, timeout=0.1),
        CallEnded(at=1.6, by=HOSTILE, call=HOSTILE, outcome="answered"),
        Backlog(at=2.5, by=HOSTILE, queue=HOSTILE, messages=1),
    ]
    page = reported(tmp_path, events, command=HOSTILE, versions={HOSTILE: HOSTILE}, plan=[HOSTILE])
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "<script" not in text
    assert "<script>" in page.words


def test_faults_and_figures_are_drawn(tmp_path):
    struck = [
        Struck(at=5.0 * number, by="hand", fault=f"{number}", kind="cut", target="broker")
        for number in range(1, 12)
    ]
    healed = [Healed(at=blow.at + 1, by="hand", fault=blow.fault) for blow in struck[:-1]]
    samples = [
        Sampled(at=float(at), by=by, figures={"memory": 4e7 + at, "threads": 9.0})
        for at in range(0, 80, 5)
        for by in ("workers 1", "workers 2", "retry 1")
    ]
    without = reported(tmp_path, clean())
    page = reported(tmp_path, [*clean(), *struck, *healed, *samples], plan=["0:05 cut"])
    assert page.number_of("svg") == without.number_of("svg") + 3
    assert page.words.count("cut: broker") >= 11
    assert "memoryretryworkers" in page.words, "one colour for all lives of a process"
    assert "11 were struck" in page.words
    assert "0:05 cut" in page.words


def test_an_empty_record_has_a_report_too(tmp_path):
    page = reported(tmp_path, [])
    assert page.number_of("svg") == 0
    assert "lost 0" in page.words


# ── What is drawn ─────────────────────────────────────────────────────────────────────────────────────────────────────


def drawn(events: list[AnyEvent], seconds: float = 10.0) -> Timeline:
    return timeline(events, start=0.0, seconds=seconds, takers=TAKERS, max_attempts=MAX_ATTEMPTS)


def at(points: list[tuple[float, float]], when: float) -> float:
    return next(value for time, value in reversed(points) if time <= when)


STORY: list[AnyEvent] = [
    Asked(at=1.1, by="producer", subject="o1", type="vault.entry", message_id="id"),
    Answered(at=1.2, by="producer", subject="o1", answer="accepted"),
    Began(at=3.1, by="shop", run="1", worker="vault", subject="o1", message_id="id", attempt=1, step=0),
    Ended(at=3.2, by="shop", run="1", outcome="soft", again_in=2.0),
    Began(at=6.3, by="shop", run="2", worker="vault", subject="o1", message_id="id", attempt=2, step=1),
    Ended(at=6.4, by="shop", run="2", outcome="done"),
]


def test_a_message_is_drawn_where_it_is():
    line = drawn(STORY)
    assert [at(line.queued, when) for when in (0.5, 1.5, 2.5, 3.0)] == [0, 1, 1, 0]
    assert [at(line.waiting, when) for when in (2.5, 3.5, 5.5, 6.0)] == [0, 1, 1, 0]
    assert at(line.accepted, 1.0) == 2.0, "one in a step of half a second"
    assert at(line.done, 6.0) == 2.0
    assert at(line.late, 6.0) == pytest.approx(1.1)


def test_what_was_refused_or_is_unknown_is_not_drawn_as_on_its_way():
    for answer in ("refused", "unknown"):
        line = drawn([STORY[0], Answered(at=1.2, by="producer", subject="o1", answer=answer)])
        assert at(line.queued, 5.0) == 0


def test_a_delayed_message_waits_and_a_dead_one_does_not():
    delayed = Asked(at=1.1, by="producer", subject="o1", type="vault.entry", message_id="id", wait=5.0)
    assert at(drawn([delayed, STORY[1]]).waiting, 5.0) == 1
    last = Began(
        at=3.1,
        by="shop",
        run="1",
        worker="vault",
        subject="o1",
        message_id="id",
        attempt=MAX_ATTEMPTS,
        step=3,
    )
    assert at(drawn([*STORY[:2], last, STORY[3]]).waiting, 5.0) == 0


def test_a_fault_that_never_healed_lasts_to_the_end():
    struck = Struck(at=2.0, by="hand", fault="1", kind="kill", target="shop")
    (band,) = drawn([*STORY, struck]).bands
    assert (band.begin, band.end) == (2.0, 10.0)
    (band,) = drawn([*STORY, struck, Healed(at=4.0, by="hand", fault="1")]).bands
    assert (band.begin, band.end) == (2.0, 4.0)


def test_a_long_run_is_drawn_with_no_more_points_than_a_screen_shows():
    line = drawn([*STORY, Found(at=3600.0, by="survey", worker="vault", subject="o1", place="dead")], 3600.0)
    assert MOST_POINTS <= len(line.queued) <= MOST_POINTS + 1


@given(st.floats(0.001, 1e12))
def test_a_chart_has_a_few_lines_to_read_its_values_by(top):
    page = Read(chart("what", Timeline(seconds=10.0), {"blue": [[(0.0, 0.0), (10.0, top)]]}))
    assert 2 <= page.number_of("line") <= 6
    lowest = min(float(attributes["y1"] or 0) for tag, attributes in page.elements if tag == "line")
    curve = next(attributes["points"] or "" for tag, attributes in page.elements if tag == "polyline")
    assert lowest - 0.1 <= float(curve.split(",")[-1]), "the highest value is below the highest line"
