"""Report: a verdict and its record as one HTML file that needs nothing else, neither scripts nor a network."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Final

from leveret.proof.charts import chart, clock, faults_chart
from leveret.proof.record import AnyEvent
from leveret.proof.story import pick, tell
from leveret.proof.timeline import Points, Timeline, timeline
from leveret.proof.verdict import Fault, Lateness, Verdict

#: Faults whose stories are told, and lines of a story: who has more to read opens the record itself.
MOST_FAULTS: Final = 40
MOST_LINES: Final = 150
#: Figures of the ledger, with what they mean where a reader may ask.
_FIGURES: Final = (
    ("accepted", ""),
    ("done", ""),
    ("dead", "with their reasons"),
    ("waiting", ""),
    ("duplicated", "begun more than once"),
    ("late", ""),
    ("unknown", "to their publishers"),
)
#: Colours of processes, by what stands before the last word of their names.
_COLOURS: Final = ("blue", "green", "amber", "violet", "red")


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What was run.

    Attributes:
        command: as somebody else would type it to run the same.
        seed: of it.
        versions: by the name of what has them.
        plan: a line for each fault that was planned.
    """

    command: str
    seed: int
    versions: Mapping[str, str]
    plan: Sequence[str] = ()


def write_report(
    path: Path,
    head: Head,
    verdict: Verdict,
    events: Callable[[], Iterable[AnyEvent]],
    *,
    takers: Mapping[str, tuple[str, ...]],
    max_attempts: int,
) -> None:
    """Write the report into a file, over what was there.

    Args:
        path: of the file.
        head: what was run.
        verdict: what came of it.
        events: gives the record's events; it is asked for them twice.
        takers: as for `judge`.
        max_attempts: likewise.

    Raises:
        OSError: the file cannot be written.
    """
    drawn = timeline(
        events(), start=verdict.start, seconds=verdict.seconds, takers=takers, max_attempts=max_attempts
    )
    shown = verdict.faults[:MOST_FAULTS]
    stories = pick(events(), {fault.subject for fault in shown if fault.subject is not None}) if shown else {}
    content = "\n".join(
        (
            _head(head, verdict),
            _verdict(verdict),
            _faults(verdict, shown, stories),
            _timeline(drawn),
            _resources(drawn),
            _lateness_and_calls(verdict),
            _plan(head, drawn),
        )
    )
    page = Template(files("leveret.proof").joinpath("report.html").read_text(encoding="utf-8"))
    title = f"lost {verdict.lost} · {head.command}"
    path.write_text(page.substitute(title=escape(title), content=content), encoding="utf-8")


def _head(head: Head, verdict: Verdict) -> str:
    versions = " · ".join(f"{name} {version}" for name, version in head.versions.items())
    return (
        f"<h1><code>{escape(head.command)}</code></h1>"
        f'<p class="soft">seed {head.seed} · {clock(verdict.seconds)} min · {verdict.strikes} faults struck · '
        f"{escape(versions)}</p>"
    )


def _verdict(verdict: Verdict) -> str:
    good = "good" if verdict.passed else "bad"
    number = len(verdict.faults)
    said = (
        "the promise was kept" if verdict.passed else f"{number} breach{'es' * (number != 1)} of the promise"
    )
    figures = "".join(
        f"<div><dt>{name}</dt><dd>{getattr(verdict, name):,}</dd>"
        f"{f'<dt>{meaning}</dt>' if meaning else ''}</div>"
        for name, meaning in _FIGURES
    )
    return (
        f'<div class="card verdict"><div class="lost {"bad" if verdict.lost else good}">'
        f"<small>lost</small> {verdict.lost:,}<br><small>{said}</small></div>"
        f'<dl class="figures">{figures}</dl></div>'
        f'<p class="soft">{verdict.published:,} messages were published; accepted = done + dead + waiting + lost, '
        "each counted once for each worker that takes it.</p>"
    )


def _faults(verdict: Verdict, shown: Sequence[Fault], stories: Mapping[str, list[AnyEvent]]) -> str:
    if not shown:
        return ""
    parts = ["<h2>Breaches of the promise</h2>"]
    for number, fault in enumerate(shown):
        events = list(stories.get(fault.subject or "", ())) or list(fault.events)
        lines = [
            ("▸ " if event in fault.events else "  ") + line
            for event, line in zip(events, tell(events, since=verdict.start), strict=True)
        ]
        more = len(lines) - MOST_LINES
        if more > 0:
            lines[MOST_LINES:] = [f"  … and {more} lines more"]
        parts.append(
            f'<details class="card fault"{" open" if number < 3 else ""}><summary><b>{escape(fault.rule)}</b> · '
            f"{escape(fault.told)}</summary><pre>{escape(chr(10).join(lines))}</pre></details>"
        )
    if len(verdict.faults) > len(shown):
        parts.append(f'<p class="soft">… and {len(verdict.faults) - len(shown)} more.</p>')
    return "".join(parts)


def _timeline(drawn: Timeline) -> str:
    if drawn.seconds <= 0:
        return ""
    return (
        '<h2>Timeline</h2><div class="card wide"><div class="charts">'
        f"{_titled('Faults', faults_chart(drawn)) if drawn.bands else ''}"
        + _titled(
            "Throughput, each second",
            chart("Throughput", drawn, {"blue": [drawn.accepted], "green": [drawn.done]}),
            blue="messages accepted",
            green="handlers done",
        )
        + _titled(
            "On their way",
            chart("On their way", drawn, {"blue": [drawn.queued], "amber": [drawn.waiting]}),
            blue="not begun yet",
            amber="waiting for their next try",
        )
        + _titled(
            "Later than due, the latest one",
            chart("Lateness", drawn, {"violet": [drawn.late]}, unit=" s"),
        )
        + "</div></div>"
    )


def _resources(drawn: Timeline) -> str:
    if not drawn.figures:
        return ""
    parts = []
    for name, processes in sorted(drawn.figures.items()):
        kinds = sorted({_kind(process) for process in processes})
        colours = {kind: _COLOURS[number % len(_COLOURS)] for number, kind in enumerate(kinds)}
        lines: dict[str, list[Points]] = {}
        for process, points in processes.items():
            lines.setdefault(f"thin {colours[_kind(process)]}", []).append(points)
        key = "".join(f'<i class="{colours[kind]}"></i>{escape(kind)}' for kind in kinds)
        parts.append(f'<h3>{escape(name)}<span class="key">{key}</span></h3>{chart(name, drawn, lines)}')
    return (
        '<h2>What the processes used</h2><div class="card wide"><div class="charts">'
        f"{''.join(parts)}</div></div>"
    )


def _kind(process: str) -> str:
    """What all lives of a process share: its name without the number of the life."""
    name, _, life = process.rpartition(" ")
    return name if name and life.isdigit() else process


def _titled(title: str, picture: str, **key: str) -> str:
    told = "".join(f'<i class="{colour}"></i>{escape(meaning)}' for colour, meaning in key.items())
    return f'<h3>{escape(title)}<span class="key">{told}</span></h3>{picture}'


def _lateness_and_calls(verdict: Verdict) -> str:
    rows = "".join(
        f"<tr><td>{where}</td><td>{each.number:,}</td><td>{each.p50:.3f} s</td><td>{each.p99:.3f} s</td>"
        f"<td>{each.most:.3f} s</td></tr>"
        for where, each in _places(verdict)
    )
    calls = "".join(
        f"<tr><td>{escape(outcome)}</td><td>{number:,}</td></tr>"
        for outcome, number in sorted(verdict.calls.items())
    )
    return (
        '<h2>Lateness</h2><div class="card wide"><table><tr><th></th><th>had a due time</th><th>half came within</th>'
        f"<th>99 of 100</th><th>all</th></tr>{rows}</table></div>"
        + (
            '<h2>Calls</h2><div class="card wide"><table><tr><th>outcome</th><th>calls</th></tr>'
            f"{calls}</table></div>"
            if calls
            else ""
        )
    )


def _places(verdict: Verdict) -> tuple[tuple[str, Lateness], ...]:
    return ("while nothing was struck", verdict.outside), ("during faults, and after them", verdict.inside)


def _plan(head: Head, drawn: Timeline) -> str:
    rows = "".join(
        f"<tr><td>{clock(band.begin)}</td><td>{max(0.0, band.end - band.begin):.1f} s</td>"
        f"<td>{escape(band.struck.kind)}</td><td>{escape(band.struck.target)}</td>"
        f"<td>{escape(band.struck.note)}</td></tr>"
        for band in drawn.bands
    )
    struck = (
        f"<h2>Faults, one by one</h2><details><summary>{len(drawn.bands)} were struck</summary>"
        '<div class="card wide"><table class="words">'
        "<tr><th>at</th><th>for</th><th>what</th><th>whom</th><th></th></tr>"
        f"{rows}</table></div></details>"
        if rows
        else ""
    )
    planned = (
        f"<details><summary>The plan</summary><pre>{escape(chr(10).join(head.plan))}</pre></details>"
        if head.plan
        else ""
    )
    return struck + planned
