"""One writer at a time, where the server cannot see to it itself.

FerretDB 1 reads a document, changes it and writes it back, in separate steps: of two updates at once, both believe that
they succeeded. It does insert each `_id` once, so a document stands for the right to write.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from leveret.core.errors import StoreUnavailable
from leveret.stores.mongodb.driver import DuplicateKeyError
from leveret.stores.mongodb.fields import date, time_of

if TYPE_CHECKING:
    from leveret.stores.mongodb.driver import Collection, Document

#: Seconds between looks at the document while somebody else has it; a call takes some milliseconds.
_LOOK_EVERY = 0.01
#: Seconds after which whoever waits gives up: as SQLite waits for a locked file.
_PATIENCE = 30.0


class Alone:
    """The right to write: a document that is there while somebody writes.

    Args:
        collection: where it lies.
        name: its `_id`.
        now: the server's time in epoch milliseconds.
        stale: seconds after which it was left behind by a process that is gone.

    Example:
        alone = Alone(collection, "lease/lock", now=server.now, stale=5.0)
        async with alone():
            ...
    """

    def __init__(
        self, collection: Collection, name: str, *, now: Callable[[], Awaitable[int]], stale: float
    ) -> None:
        self._collection = collection
        self._name = name
        self._now = now
        self._stale = stale
        # Those of this process queue up here, and do not have to look again and again.
        self._here = asyncio.Lock()
        #: Of documents that may still be there although their call has ended: the server did not answer.
        self._left_behind: set[str] = set()

    @asynccontextmanager
    async def __call__(self, *, stale: float | None = None) -> AsyncIterator[None]:
        """Wait for the right, and give it back.

        Args:
            stale: seconds after which, this time, it was left behind; otherwise those that were given at first.

        Raises:
            StoreUnavailable: somebody else kept it for too long.
        """
        async with self._here:
            token = uuid.uuid4().hex
            self._left_behind.add(token)
            await self._take(token, self._stale if stale is None else stale)
            try:
                yield
            finally:
                await self._collection.delete_one({"_id": self._name, "token": token})
                self._left_behind.discard(token)

    async def _take(self, token: str, stale: float) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + _PATIENCE
        while True:
            try:
                await self._collection.insert_one(
                    {"_id": self._name, "token": token, "taken_at": date(await self._now())}
                )
            except DuplicateKeyError:
                found = await self._collection.find_one({"_id": self._name})
            else:
                return
            if found is not None and await self._is_left(found, stale):
                await self._collection.delete_one({"_id": self._name, "token": found["token"]})
                continue
            if loop.time() > until:
                raise StoreUnavailable(
                    f"somebody else has been writing for {_PATIENCE:g} s, and on FerretDB one writes at a time"
                )
            await asyncio.sleep(_LOOK_EVERY * (0.5 + random.random()))

    async def _is_left(self, found: Document, stale: float) -> bool:
        if found["token"] in self._left_behind:
            return True
        return await self._now() - time_of(found["taken_at"]) > stale * 1000
