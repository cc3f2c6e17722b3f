"""Tally: what a record comes to until now, read as it is written, for whoever watches a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from leveret.proof.record import Answered, AnyEvent, Asked, Began, CallEnded, Ended, Sampled

_decode: Final = msgspec.json.Decoder(AnyEvent).decode

#: Publishes in which there is some of everything that the shop knows, unless nothing is ever done at once.
ENOUGH: Final = 2000


def _is_producer(event: Asked | Answered) -> bool:
    """Whether it is one of the shop's producers; a daemon publishes too."""
    return event.by.startswith("producer")


class Tally:
    """Counts the events of a file that others append to.

    Attributes:
        accepted: publishes that were accepted.
        unknown: publishes whose answer is unknown.
        done, soft, hard: runs that ended so.
        calls: calls that ended.
        last: when anything but a sample was written last.
    """

    def __init__(self, path: Path) -> None:
        self.accepted = self.unknown = self.done = self.soft = self.hard = self.calls = 0
        self.last = 0.0
        #: Publishes that were begun by the shop's producers, and of them those that were accepted.
        self._asked = self._produced = 0
        #: The types of publishes without an answer, by subject.
        self._open: dict[str, str] = {}
        #: The types of which something was accepted or returned, and the workers that began on something.
        self._given: set[str] = set()
        self._ran: set[str] = set()
        self._file = path.open("rb")
        self._rest = b""

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def read(self) -> None:
        """Count what was written since the last time."""
        while data := self._file.read(1 << 20):
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                self._count(_decode(line))

    def _count(self, event: AnyEvent) -> None:
        if not isinstance(event, Sampled):
            self.last = event.at
        if isinstance(event, Began):
            self._ran.add(event.worker)
        elif isinstance(event, Asked):
            self._asked += _is_producer(event)
            self._open[event.subject] = event.type
        elif isinstance(event, Ended):
            self._given.update(type for type, _ in event.results)
            if event.outcome == "done":
                self.done += 1
            elif event.outcome == "soft":
                self.soft += 1
            else:
                self.hard += 1
        elif isinstance(event, Answered):
            type = self._open.pop(event.subject, "")
            if event.answer == "accepted":
                self.accepted += 1
                self._produced += _is_producer(event)
                self._given.add(type)
            elif event.answer == "unknown":
                self.unknown += 1
        elif isinstance(event, CallEnded):
            self.calls += 1

    def idle(self, takers: Mapping[str, Sequence[str]], *, early: bool) -> tuple[list[str], list[str]]:
        """What there was too little of to show anything, in sentences: as none should be, and as may be.

        Args:
            takers: who takes what.
            early: the load was ended before its time.
        """
        wrong: list[str] = []
        rightly: list[str] = []
        if not self._produced:
            nothing = f"nothing that a producer published was accepted, of {self._asked} publishes"
            (rightly if early and not self._asked else wrong).append(nothing)
        takes: dict[str, list[str]] = {}
        for type, workers in takers.items():
            for worker in workers:
                takes.setdefault(worker, []).append(type)
        for worker, types in takes.items():
            if worker in self._ran:
                continue
            if self._given.isdisjoint(types):
                # A short load may hold none of what is rare, or of what its runs return.
                few = early or self._asked < ENOUGH
                told = (
                    f"{worker} had no run: there was no {' and no '.join(types)} in {self._asked} publishes"
                )
                (rightly if few else wrong).append(told)
            else:
                wrong.append(f"{worker} had no run, though there was {' and '.join(types)} for it")
        return wrong, rightly

    def __str__(self) -> str:
        return (
            f"accepted {self.accepted}  done {self.done}  soft {self.soft}  hard {self.hard}  "
            f"unknown {self.unknown}  calls {self.calls}"
        )
