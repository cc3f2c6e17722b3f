"""Page: a part of a listing, and where the next part begins."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Some of a listing, in its order.

    Example:
        >>> [item for item in Page(("a", "b"), after="b")], len(Page(("a",)))
        (['a', 'b'], 1)
    """

    items: Sequence[T]
    #: Give this as `after` to get what follows; None: this is the last page.
    after: str | None = None

    def __iter__(self) -> Iterator[T]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, position: int) -> T:
        return self.items[position]
