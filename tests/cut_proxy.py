"""A TCP proxy that tests put in front of a broker: it cuts connections, also in mid-frame, and swallows packets."""

from __future__ import annotations

import asyncio
from typing import Final


class CutProxy:
    """Hands bytes to and fro between whoever connects and the broker behind it, until told otherwise.

    Attributes:
        port: where it listens.
        accepted: how many connections were ever made.
    """

    def __init__(self, behind: int, host: str = "127.0.0.1") -> None:
        self.port = 0
        self.accepted = 0
        self._behind: Final = (host, behind)
        self._server: asyncio.Server | None = None
        self._lines: dict[asyncio.Task[None], tuple[asyncio.StreamWriter, ...]] = {}
        #: Bytes from a client that still go through before all is cut; None: no cut is planned.
        self._left: int | None = None
        #: Connections that nothing comes through any more.
        self._lost: set[asyncio.Task[None]] = set()
        #: Connections whose bytes are kept until they are handed on.
        self._held: dict[asyncio.Task[None], asyncio.Event] = {}
        self._hands_on: Final = asyncio.Event()
        self._hands_on.set()
        self._answers = True

    async def start(self, port: int = 0) -> None:
        """Listen; 0: on a port that is free."""
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Cut all, and listen no more."""
        if self._server is not None:
            self._server.close()
        self._hands_on.set()
        self.cut()
        if self._lines:
            await asyncio.wait(list(self._lines))

    @property
    def connections(self) -> int:
        """How many there are now."""
        return len(self._lines)

    def cut(self) -> None:
        """Cut every connection."""
        self._left = None
        for writers in self._lines.values():
            for writer in writers:
                writer.transport.abort()

    def cut_after(self, size: int) -> None:
        """Cut every connection once so many more bytes have come from clients."""
        self._left = size

    def swallow(self) -> None:
        """Lose all that comes from here on, in both directions, farewells too: half-open connections."""
        self._hands_on.clear()

    def half_open(self) -> None:
        """Lose all that comes from here on over the connections that are there; new ones are handed on."""
        self._lost.update(self._lines)

    def lose_answers(self) -> None:
        """Hand on what clients send, and lose all that comes back: it is done, and nobody is told."""
        self._answers = False

    def hold_back(self) -> None:
        """Keep all that comes over the connections that are there, until `hand_on`; new ones are handed on."""
        self._held.update((line, asyncio.Event()) for line in self._lines)

    def hand_on(self) -> None:
        """Lose nothing more, and hand on what was kept."""
        self._answers = True
        self._lost.clear()
        for held in self._held.values():
            held.set()
        self._held.clear()
        self._hands_on.set()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        task = asyncio.current_task()
        assert task is not None
        self._lines[task] = (writer,)
        try:
            there, to_there = await asyncio.open_connection(*self._behind)
        except OSError:
            writer.transport.abort()
            del self._lines[task]
            return
        self._lines[task] = (writer, to_there)
        out = asyncio.create_task(self._pump(reader, to_there, task, counted=True))
        back = asyncio.create_task(self._pump(there, writer, task, counted=False))
        try:
            await asyncio.wait((out, back), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in (out, back):
                each.cancel()
            await asyncio.wait((out, back))
            for each in (writer, to_there):
                each.transport.abort()
            del self._lines[task]
            self._lost.discard(task)
            self._held.pop(task, None)

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        line: asyncio.Task[None],
        *,
        counted: bool,
    ) -> None:
        try:
            while data := await reader.read(65536):
                if not self._hands_on.is_set() or line in self._lost:
                    continue
                if not self._answers and not counted:
                    continue
                if (held := self._held.get(line)) is not None:
                    await held.wait()
                if counted and self._left is not None:
                    if len(data) >= self._left:
                        writer.write(data[: self._left])
                        await writer.drain()
                        self.cut()
                        return
                    self._left -= len(data)
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        await self._hands_on.wait()
