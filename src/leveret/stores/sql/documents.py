"""What document stores on tables share: a row a document, read in pages."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Final

from leveret.stores.documents import TextDocuments

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

#: Documents that are read at once: whoever goes through all of them never holds more than these.
PAGE: Final = 200


class TableDocuments(TextDocuments):
    """Documents in rows that are numbered as they come."""

    async def _texts(self) -> AsyncIterator[str]:
        last = 0
        while True:
            rows = await self._page(last)
            for _, text in rows:
                yield text
            if len(rows) < PAGE:
                return
            last = rows[-1][0]

    @abstractmethod
    async def _page(self, after: int) -> list[tuple[int, str]]:
        """Up to a page of numbers and documents, those behind that number, in their order."""
