"""Gate: the handlers of one process run together, but for a suspect's last start, which runs alone (P12)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Gate:
    """Lets many in together, or one alone."""

    def __init__(self) -> None:
        self._inside = 0
        self._closed = False
        self._changed: list[asyncio.Future[None]] = []

    @property
    def closed(self) -> bool:
        """Whether somebody is in alone, or waits for it."""
        return self._closed

    def try_enter(self) -> bool:
        """Go in with the others; False where somebody is in alone, or waits for it. Costs no coroutine."""
        if self._closed:
            return False
        self._inside += 1
        return True

    async def enter(self) -> None:
        """Go in with the others."""
        while self._closed:
            await self._change()
        self._inside += 1

    def leave(self) -> None:
        """Go out."""
        self._inside -= 1
        if self._closed:
            self._wake()

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Go in alone: nobody else enters from now on, and it begins when the last one has left."""
        while self._closed:
            await self._change()
        self._closed = True
        try:
            while self._inside:
                await self._change()
            yield
        finally:
            self._closed = False
            self._wake()

    async def _change(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._changed.append(waiter)
        await waiter

    def _wake(self) -> None:
        waiting, self._changed = self._changed, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)
