"""What a copy counts: what became of the rows of each kind, and of each namespace."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from leveret.core.dead_letter import DeadLetter
from leveret.core.errors import StoreRefused
from leveret.core.retry_entry import RetryEntry
from leveret.retry.worker import RetryWorker

Row = TypeVar("Row", RetryEntry, DeadLetter, dict[str, Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """What became of one kind of rows.

    Attributes:
        copied: written into the target by this copy.
        there: in the target already; left as they were.
        refused: a sentence for each that the target does not take.
        lost: a sentence for each that the source does not have whole.
        source: how many the source holds afterwards.
        target: likewise the target.
    """

    copied: int
    there: int
    refused: tuple[str, ...]
    lost: tuple[str, ...]
    source: int
    target: int

    @property
    def whole(self) -> bool:
        """Whether every row of the source is in the target."""
        return self.copied + self.there == self.source <= self.target


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """What became of one namespace.

    Attributes:
        retries: what waits, in all its states.
        letters: what is dead, in all its states.
        documents: what waits in the JSON form of other programs, None where no such program kept anything.
        acts: how many acts came along that people have asked for and nobody has done.
        claimed: letters that a replay had taken and not reported: they lie as dead in the target, noted `maybe twice`.
    """

    namespace: str
    retries: Tally
    letters: Tally
    documents: Tally | None
    acts: int
    claimed: int

    @property
    def whole(self) -> bool:
        """Whether all of it is in the target."""
        return self.retries.whole and self.letters.whole and (self.documents is None or self.documents.whole)


@dataclass(slots=True)
class Count:
    """Writes rows of one kind, and counts."""

    told: Callable[[int], object]
    found: int = 0
    written: int = 0
    refused: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)

    async def put(self, rows: Sequence[Row], write: Callable[[Sequence[Row]], Awaitable[int]]) -> None:
        """Write rows; those that the target refuses are found by halves, and the others are written."""
        try:
            self.written += await write(rows) if rows else 0
        except StoreRefused as error:
            if len(rows) > 1:
                half = len(rows) // 2
                await self.put(rows[:half], write)
                await self.put(rows[half:], write)
                return
            self.refused.append(f"{_name(rows[0])}: {error}")
        self.found += len(rows)
        self.told(len(rows))

    def lose(self, row: Row, why: str) -> None:
        """There is a row that cannot be read whole."""
        self.lost.append(f"{_name(row)}: {why}")
        self.told(1)

    def tally(self, source: int, target: int) -> Tally:
        """The counts, with what both sides hold now."""
        return Tally(
            copied=self.written,
            there=self.found - self.written - len(self.refused),
            refused=tuple(self.refused),
            lost=tuple(self.lost),
            source=source,
            target=target,
        )


def _name(row: RetryEntry | DeadLetter | dict[str, Any]) -> str:
    if isinstance(row, dict):
        return f"document {row.get(RetryWorker.REQUIRED_DOC_ID_FIELD)}"
    return f"retry {row.key}" if isinstance(row, RetryEntry) else f"dead letter {row.id}"
