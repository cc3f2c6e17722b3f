"""Endpoint: a web server of this machine alone that fails the way endpoints fail, as the path of each request says.

`python -m leveret.demo.endpoint 8099` answers until Ctrl+C; the demo runs one in its own process.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections import Counter
from collections.abc import Callable
from types import TracebackType
from typing import Final, NamedTuple, Self
from urllib.parse import unquote

#: What a word in a path answers with: the status line, and more headers.
ANSWERS: Final = {
    "200": ("200 OK", ""),
    "410": ("410 Gone", ""),
    "429": ("429 Too Many Requests", "Retry-After: 1\r\n"),
    "503": ("503 Service Unavailable", ""),
}
#: The word for a request that is read, and never answered.
NONE: Final = "none"
#: A head beyond so many bytes is no webhook's.
HEAD: Final = 65_536


class Request(NamedTuple):
    """One request, and what it was answered with."""

    #: Its Idempotency-Key: the id of the message that it carries, the same at each try.
    id: str
    path: str
    #: `200`, `503` …, `none` where it got no answer, `404` where the path says nothing that we know.
    answer: str


class Endpoint:
    """Answers POSTs on 127.0.0.1. A path is a plan: `/17/503/429/200` is refused twice, then taken, then taken again.

    Its list of requests is the demo's proof: what was answered with 200 is delivered, whatever anybody else believes.

    Args:
        port: 0: any free one.

    Example:
        >>> async def main() -> None:
        ...     async with Endpoint() as endpoint:
        ...         print("post to", f"{endpoint.url}/order-17/503/200")
    """

    def __init__(self, port: int = 0) -> None:
        self.requests: list[Request] = []
        self._port = port
        self._visits: Counter[str] = Counter()
        self._stop: Callable[[], object] = lambda: None
        self._talks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def taken(self) -> Counter[str]:
        """How often each message was answered with 200, by its id."""
        return Counter(request.id for request in self.requests if request.answer == "200")

    @property
    def answers(self) -> Counter[str]:
        """How many requests got which answer."""
        return Counter(request.answer for request in self.requests)

    async def __aenter__(self) -> Self:
        server = await asyncio.start_server(self._accepted, "127.0.0.1", self._port, limit=HEAD, backlog=1024)
        self._port = server.sockets[0].getsockname()[1]
        self._stop = server.close
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop()
        talks = list(self._talks)
        for talk in talks:
            talk.cancel()
        await asyncio.gather(*talks, return_exceptions=True)

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        talk = asyncio.get_running_loop().create_task(self._talk(reader, writer))
        self._talks.add(talk)
        talk.add_done_callback(self._talks.discard)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer what comes on one connection, until the other side hangs up."""
        # A peer that hangs up in the middle of a request has timed out: nothing to answer, nothing to tell.
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            try:
                while await self._one(reader, writer):
                    pass
            finally:
                writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {
            name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)
        }
        length = headers.get("content-length", "0")
        await reader.readexactly(int(length) if length.isdecimal() else 0)
        _, path, *_ = *first.split(" "), "", ""
        answer = self._planned(path)
        self.requests.append(Request(headers.get("idempotency-key", ""), path, answer))
        if answer == NONE:
            await reader.read()
            return False
        status, more = ANSWERS.get(answer, ("404 Not Found", ""))
        writer.write(f"HTTP/1.1 {status}\r\n{more}Content-Length: 0\r\n\r\n".encode("ascii"))
        await writer.drain()
        return True

    def _planned(self, path: str) -> str:
        """The word of the path whose turn it is; the last one stays."""
        words = unquote(path).strip("/").split("/")[1:]
        turn = self._visits[path]
        self._visits[path] += 1
        word = words[min(turn, len(words) - 1)] if words else "404"
        return word if word in ANSWERS or word == NONE else "404"


async def serve(port: int) -> None:
    """Answer on *port* until cancelled, a line for the start and one for each answer."""
    async with Endpoint(port) as endpoint:
        sys.stdout.write(f"answering on {endpoint.url}; Ctrl+C stops\n")
        sys.stdout.flush()
        await asyncio.get_running_loop().create_future()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(int(sys.argv[1]) if len(sys.argv) > 1 else 8099))
