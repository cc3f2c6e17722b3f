"""What one sees of the demo: a live view on a terminal, lines elsewhere."""

from __future__ import annotations

import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from leveret.cli.console import Console, Line
from leveret.cli.words import safe
from leveret.demo.run import Moment

#: Cells of the bar, and how many of the newest deaths stand below it.
BAR: Final = 52
DEATHS: Final = 6
#: Seconds between lines of progress where the view is not live.
LINE_EVERY: Final = 2.0


@contextlib.contextmanager
def watching(console: Console, title: str, *, plain: bool) -> Iterator[DemoView]:
    """A view of the demo while the block runs; what leveret logs meanwhile is shown in it."""
    log = logging.getLogger("leveret")
    with contextlib.ExitStack() as stack:
        if plain or not console.live_possible:
            console.note(f"leveret demo   {title}")
            view = DemoView(title, lines=console.note)
        else:
            view = DemoView(title, draw=stack.enter_context(console.live()))
        handler = _Told(view)
        log.addHandler(handler)
        stack.callback(log.removeHandler, handler)
        was, log.propagate = log.propagate, False
        stack.callback(setattr, log, "propagate", was)
        yield view


class DemoView:
    """Shows how the demo goes; either *draw* or *lines* is given.

    Args:
        title: where it runs.
        draw: shows these lines in place of the ones before.
        lines: shows one more line.
    """

    def __init__(
        self,
        title: str,
        *,
        draw: Callable[[Sequence[Line]], object] | None = None,
        lines: Callable[[str], object] | None = None,
    ) -> None:
        self._began = time.monotonic()
        self._title = title
        self._draw = draw
        self._lines = lines
        self._marks: list[str] = []
        self._deaths: deque[str] = deque(maxlen=DEATHS)
        self._next_line = 0.0

    def show(self, moment: Moment) -> None:
        """How things stand now."""
        if self._draw is not None:
            self._draw(self._picture(moment))
        elif self._lines is not None and (
            moment.seconds >= self._next_line or moment.settled == moment.total
        ):
            self._next_line = moment.seconds + LINE_EVERY
            self._lines(
                f"{_clock(moment.seconds)}  settled {moment.settled} of {moment.total}   {_places(moment)}"
            )

    def tell(self, text: str, *, death: bool = False) -> None:
        """Something happened just now."""
        line = f"{_clock(time.monotonic() - self._began)}  {safe(text)}"
        if self._lines is not None:
            self._lines(line)
        (self._deaths if death else self._marks).append(line)

    def _picture(self, moment: Moment) -> list[Line]:
        answers = moment.answers
        return [
            [(" leveret demo", "title"), (f"   {self._title}   ", "head"), (_clock(moment.seconds), "title")],
            [
                (" settled  ", ""),
                *_bar(moment.settled / moment.total),
                (f"   {moment.settled} of {moment.total}", ""),
            ],
            [(f" {_places(moment)}   {_times(moment)}", "")],
            [(f" endpoint  {_answers(answers)}", "")],
            *([(f" {mark}", "warn")] for mark in self._marks),
            *([(f" {death}", "head")] for death in self._deaths),
        ]


class _Told(logging.Handler):
    """Puts deaths and warnings of leveret's log into the view."""

    def __init__(self, view: DemoView) -> None:
        super().__init__(logging.WARNING)
        self._view = view

    def emit(self, record: logging.LogRecord) -> None:
        """Show it, unless another line says the same."""
        action = getattr(record, "action", "")
        if action != "alarm":
            self._view.tell(record.getMessage(), death=action == "dead")


def _bar(share: float) -> Line:
    halves = round(share * BAR * 2)
    full = "━" * (halves // 2) + ("╸" if halves % 2 else "")
    return [(full, "ok"), ("━" * (BAR - len(full)), "head")]


def _places(moment: Moment) -> str:
    counts = moment.counts
    queued = f"queued {counts.queued}   " if counts.queued else ""
    return (
        f"published {moment.published}   delivered {moment.delivered}   waiting {counts.waiting}   {queued}"
        f"running {counts.running}   dead {counts.dead}"
    )


def _times(moment: Moment) -> str:
    due = "" if moment.next_due is None else f"next due in {max(0.0, moment.next_due):.1f} s   "
    p50, p99, _ = (1000 * seconds for seconds in moment.lateness)
    return f"{due}late p50 {p50:.0f} ms  p99 {p99:.0f} ms"


def _answers(answers: Mapping[str, int]) -> str:
    def number(answer: str) -> int:
        return answers.get(answer, 0)

    return (
        f"200: {number('200')}   503: {number('503')} again   429 Retry-After: {number('429')} again, not counted   "
        f"no answer: {number('none')} again   410 gone: {number('410')} dead"
    )


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60:02d}:{int(seconds) % 60:02d}"
