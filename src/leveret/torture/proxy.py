"""A TCP proxy in front of a server: it refuses, cuts, delays, slows, holds back and loses what passes.

`python -m leveret.torture.proxy '{"behind": [["127.0.0.1", 5672]]}'` runs one for each server named, in a process of
its own so that load elsewhere does not slow it, and obeys commands on its standard input.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from typing import Any, Final, Literal

import msgspec

from leveret.torture import child

#: Bytes that are read at once.
_CHUNK: Final = 65536
#: Steps in a second in which a slowed connection hands on its bytes.
_STEPS: Final = 20

#: Both ways, or one of them.
Way = Literal["both", "out", "back"]


class _Line:
    """A connection through the proxy."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        #: To the client, and to the server once that is reached.
        self.writers = [writer]
        #: Whether what comes is lost.
        self.lost = False
        #: What comes is kept until this is set, by way.
        self.held: dict[Way, asyncio.Event] = {}
        #: Set at its end.
        self.gone: Final = asyncio.Event()

    def abort(self) -> None:
        for writer in self.writers:
            writer.transport.abort()

    def hand_on(self) -> None:
        for held in self.held.values():
            held.set()
        self.held.clear()


class CutProxy:
    """Hands bytes to and fro between whoever connects and the server behind it, until told otherwise.

    Args:
        behind: port of the server.
        host: of the server.

    Attributes:
        port: where it listens.
        accepted: how many connections were ever made.
    """

    def __init__(self, behind: int, host: str = "127.0.0.1") -> None:
        self.port = 0
        self.accepted = 0
        self._behind: Final = (host, behind)
        self._server: asyncio.Server | None = None
        #: In the order in which they were made.
        self._lines: Final[dict[_Line, None]] = {}
        #: Bytes from a client that still go through before all is cut; None: no cut is planned.
        self._left: int | None = None
        #: Cleared while whatever comes is lost, on new connections too.
        self._hands_on: Final = asyncio.Event()
        self._hands_on.set()
        #: Ways in which new connections are held back as well.
        self._holes: tuple[Way, ...] = ()
        self._latency = 0.0
        self._rate: float | None = None

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
        for line in list(self._lines):
            await line.gone.wait()

    @property
    def connections(self) -> int:
        """How many there are now."""
        return len(self._lines)

    # ── Cuts ──────────────────────────────────────────────────────────────────────────────────────────────────────────

    def cut(self, share: float = 1.0, chance: random.Random | None = None) -> None:
        """Cut every connection, or about that share of them."""
        self._left = None
        for line in self._some(share, chance):
            line.abort()

    def cut_after(self, size: int) -> None:
        """Cut every connection once so many more bytes have come from clients: in the middle of a frame, mostly."""
        self._left = size

    async def down(self) -> None:
        """Cut every connection, and refuse new ones until `up`."""
        if self._server is not None:
            self._server.close()
            self._server = None
        self.cut()

    async def up(self) -> None:
        """Listen again, on the same port."""
        if self._server is None:
            await self.start(self.port)

    # ── Losing ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def swallow(self) -> None:
        """Lose all that comes from here on, in both directions, farewells too: half-open connections."""
        self._hands_on.clear()

    def half_open(self, share: float = 1.0, chance: random.Random | None = None) -> None:
        """Lose all that comes from here on over connections that are there; new ones are handed on."""
        for line in self._some(share, chance):
            line.lost = True

    # ── Holding back: as a network does that sends again what was lost ────────────────────────────────────────────────

    def hold_back(self, way: Way = "both") -> None:
        """Keep all that comes over the connections that are there, until `hand_on`; new ones are handed on."""
        for line in self._lines:
            for each in _ways(way):
                line.held.setdefault(each, asyncio.Event())

    def black_hole(self, way: Way = "both") -> None:
        """Keep all that comes, over new connections too, until `heal`."""
        self._holes = _ways(way)
        self.hold_back(way)

    def delay(self, seconds: float) -> None:
        """Hand on each piece so much later."""
        self._latency = seconds

    def slow(self, rate: float | None) -> None:
        """Hand on so many bytes a second each way on each connection; None: as fast as it goes."""
        self._rate = rate

    # ── Mending ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def hand_on(self) -> None:
        """Lose nothing more, and hand on what was kept."""
        self._holes = ()
        for line in self._lines:
            line.lost = False
            line.hand_on()
        self._hands_on.set()

    async def heal(self) -> None:
        """All is well again; connections on which something was lost are cut, for what follows would make no sense."""
        for line in self._lines:
            if line.lost or not self._hands_on.is_set():
                line.abort()
        self._left = None
        self._latency = 0.0
        self._rate = None
        self.hand_on()
        await self.up()

    # ── Connections ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _some(self, share: float, chance: random.Random | None) -> list[_Line]:
        lines = list(self._lines)
        if chance is None or share >= 1:
            return lines
        return chance.sample(lines, min(len(lines), max(1, round(share * len(lines)))))

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        line = _Line(writer)
        self._lines[line] = None
        line.held.update((way, asyncio.Event()) for way in self._holes)
        try:
            there, to_there = await asyncio.open_connection(*self._behind)
        except OSError:
            writer.transport.abort()
            del self._lines[line]
            line.gone.set()
            return
        line.writers.append(to_there)
        out = asyncio.create_task(self._pump(reader, to_there, line, "out"))
        back = asyncio.create_task(self._pump(there, writer, line, "back"))
        try:
            await asyncio.wait((out, back), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in (out, back):
                each.cancel()
            await asyncio.wait((out, back))
            line.abort()
            del self._lines[line]
            line.gone.set()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, line: _Line, way: Way
    ) -> None:
        try:
            while data := await reader.read(_CHUNK):
                if not self._hands_on.is_set() or line.lost:
                    continue
                if (held := line.held.get(way)) is not None:
                    await held.wait()
                if self._latency:
                    await asyncio.sleep(self._latency)
                if way == "out" and self._left is not None:
                    if len(data) >= self._left:
                        writer.write(data[: self._left])
                        await writer.drain()
                        self.cut()
                        return
                    self._left -= len(data)
                await self._write(writer, data)
        except ConnectionError:
            pass
        await self._hands_on.wait()

    async def _write(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        while self._rate is not None and data:
            step = max(1, round(self._rate / _STEPS))
            writer.write(data[:step])
            await writer.drain()
            await asyncio.sleep(len(data[:step]) / self._rate)
            data = data[step:]
        if data:
            writer.write(data)
            await writer.drain()


def _ways(way: Way) -> tuple[Way, ...]:
    return ("out", "back") if way == "both" else (way,)


class Told(msgspec.Struct, kw_only=True):
    """What a process of proxies is told at its start.

    Attributes:
        behind: host and port of each server.
        seed: of the choice among connections.
    """

    behind: list[tuple[str, int]]
    seed: int = 0


class Proxies:
    """The proxies of one process, and the commands that they obey."""

    def __init__(self, told: Told) -> None:
        self._proxies: Final = [CutProxy(port, host) for host, port in told.behind]
        self._chance: Final = random.Random(told.seed)

    async def start(self) -> list[int]:
        """Listen; returns the port of each."""
        for proxy in self._proxies:
            await proxy.start()
        return [proxy.port for proxy in self._proxies]

    async def obey(self, command: child.Command) -> dict[str, Any]:
        """Do what a command says, to the proxies whose numbers it names, else to all."""
        for proxy in self._chosen(command.get("which")):
            await self._do(proxy, command)
        return {"connections": [proxy.connections for proxy in self._proxies]}

    def _chosen(self, which: Iterable[int] | None) -> list[CutProxy]:
        return self._proxies if which is None else [self._proxies[number] for number in which]

    async def _do(self, proxy: CutProxy, command: child.Command) -> None:
        share = command.get("share", 1.0)
        match command["do"]:
            case "cut":
                proxy.cut(share, self._chance)
            case "cut after":
                proxy.cut_after(command["bytes"])
            case "down":
                await proxy.down()
            case "black hole":
                proxy.black_hole(command.get("way", "both"))
            case "hold back":
                proxy.hold_back(command.get("way", "both"))
            case "half open":
                proxy.half_open(share, self._chance)
            case "delay":
                proxy.delay(command["seconds"])
            case "slow":
                proxy.slow(command["rate"])
            case "heal":
                await proxy.heal()
            case "count":
                pass
            case unknown:
                raise ValueError(f"no proxy knows how to {unknown!r}")


async def _main() -> None:
    proxies = Proxies(child.told(Told))
    ports = await proxies.start()
    await child.serve(proxies.obey, ready={"ports": ports})


if __name__ == "__main__":
    child.run(_main)
