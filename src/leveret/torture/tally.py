"""Tally: what a record comes to until now, read as it is written, for whoever watches a run."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from leveret.proof.record import Answered, AnyEvent, CallEnded, Ended, Sampled

_decode: Final = msgspec.json.Decoder(AnyEvent).decode


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
        if isinstance(event, Ended):
            if event.outcome == "done":
                self.done += 1
            elif event.outcome == "soft":
                self.soft += 1
            else:
                self.hard += 1
        elif isinstance(event, Answered):
            if event.answer == "accepted":
                self.accepted += 1
            elif event.answer == "unknown":
                self.unknown += 1
        elif isinstance(event, CallEnded):
            self.calls += 1

    def __str__(self) -> str:
        return (
            f"accepted {self.accepted}  done {self.done}  soft {self.soft}  hard {self.hard}  "
            f"unknown {self.unknown}  calls {self.calls}"
        )
