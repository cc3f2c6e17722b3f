"""`leveret publish`: one message, or one for each line of a file."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from leveret.cli import exits
from leveret.cli.options import Common, command

if TYPE_CHECKING:
    from leveret.app import Leveret
    from leveret.cli.console import Console
    from leveret.core.message import Message

#: Messages under way at once: as many as the window of confirms has room for.
_AT_ONCE = 1000


@dataclass(slots=True)
class Published:
    """What became of the lines; the numbers are those of the lines, from 1."""

    confirmed: int = 0
    unroutable: list[int] = field(default_factory=list)
    refused: list[int] = field(default_factory=list)
    unknown: list[int] = field(default_factory=list)
    #: The first error of each kind, in its own words.
    words: dict[str, str] = field(default_factory=dict)
    #: How many lines there are where that is known, and how long it took.
    total: int | None = None
    seconds: float = 0.0

    @property
    def pace(self) -> str:
        """How many of how many, and how fast."""
        settled = self.confirmed + len(self.unroutable) + len(self.refused) + len(self.unknown)
        rate = f"   {settled / self.seconds:.0f}/s" if self.seconds else ""
        return f"{settled} of {settled if self.total is None else self.total}{rate}"

    @property
    def exit_code(self) -> int:
        """Done, or done in part."""
        return exits.PART if self.unroutable or self.refused or self.unknown else exits.DONE

    def __str__(self) -> str:
        parts = [f"confirmed {self.confirmed}"]
        for name in ("unroutable", "refused", "unknown"):
            lines = getattr(self, name)
            where = ""
            if lines:
                more = ", …" if len(lines) > 5 else ""
                where = f" (line{'s' if len(lines) > 1 else ''} {', '.join(map(str, lines[:5]))}{more})"
            parts.append(f"{name} {len(lines)}{where}")
        return "   ".join(parts)


def add_to(cli: typer.Typer) -> None:
    """Declare `publish`."""
    command(cli, "publish")(publish)


async def publish(
    type: Annotated[str, typer.Argument(metavar="TYPE", help="The message type, such as order.placed.")],
    payload: Annotated[
        str | None,
        typer.Argument(metavar="PAYLOAD", help="JSON; or - for one payload a line from standard input."),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", metavar="FILE", help="JSON Lines: one payload a line; - is standard input."),
    ] = None,
    headers: Annotated[
        list[str] | None,
        typer.Option(
            "--header", metavar="K=V", help="A header of every message; may be given several times."
        ),
    ] = None,
    rate: Annotated[
        float | None, typer.Option("--rate", metavar="N", help="So many messages a second at most.")
    ] = None,
    *,
    common: Common,
) -> int | None:
    """Publish a message, or one for each line of a file.

    Returns once the broker has confirmed them. Ends with exit code 6 where some of several were not confirmed; the
    lines are named, so that they can be sent again.
    """
    from leveret.app import Leveret
    from leveret.cli.apps import opening
    from leveret.cli.console import Console
    from leveret.cli.looking import refuse_memory_broker
    from leveret.cli.reaching import reach
    from leveret.core.errors import ConfigError

    if payload is not None and file is not None:
        raise ConfigError("leveret publish takes a PAYLOAD or --file, not both")
    if rate is not None and not rate > 0:
        raise ConfigError(f"--rate {rate:g}: expected more than 0 messages a second")
    given = headers_of(headers or [])
    config = common.settings()
    refuse_memory_broker(config, "publish")
    config.require_namespace()
    source = "-" if payload == "-" else str(file) if file is not None else None
    single = None if source is not None else payload_of(payload or "{}", "PAYLOAD")
    if source not in {None, "-"}:
        _check_readable(Path(str(source)))
    console = Console(common)
    app = Leveret(config=config)
    async with opening(app, lambda transport: reach(transport, console)):
        if source is None:
            id = await app.publish(type, single, headers=given)
            if console.json:
                console.record({"id": id, "type": type})
            else:
                console.result(id)
            return None
        with _lines(source) as (lines, total):
            came_to = await send(app, type, lines, given, console, total=total, rate=rate)
    return tell(came_to, console)


def tell(came_to: Published, console: Console) -> int:
    """Show what became of the lines. Returns the exit code."""
    if console.json:
        console.record({
            "confirmed": came_to.confirmed, "unroutable": came_to.unroutable, "refused": came_to.refused,
            "unknown": came_to.unknown, "seconds": round(came_to.seconds, 3),
        })  # fmt: skip
    else:
        console.result(f"{came_to.pace}   {came_to}")
    for words in came_to.words.values():
        console.warning(words)
    return came_to.exit_code


def headers_of(given: list[str]) -> dict[str, str]:
    """K=V as a mapping.

    Raises:
        ConfigError: one has no `=`, or no name.
    """
    from leveret.core.errors import ConfigError

    found = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise ConfigError(f"--header {text!r}: expected K=V, such as tenant=42")
        found[name] = value
    return found


def payload_of(text: str, place: str) -> Any:
    """The payload that *text* says in JSON.

    Raises:
        BadPayload: it is no JSON.
    """
    import json

    from leveret.core.errors import BadPayload

    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadPayload(f"{place} is no JSON: {error}. Text needs its quotes, as in '\"text\"'") from None


async def send(
    app: Leveret,
    type: str,
    lines: Iterator[str],
    headers: Mapping[str, str],
    console: Console,
    *,
    total: int | None = None,
    rate: float | None = None,
) -> Published:
    """Publish a message for each line of an open *app*, many under way at once.

    A line that is no JSON is refused, like one that the broker refuses; the others go on.
    """
    from leveret.core.errors import BadPayload, PublishError, PublishTimeout, Unroutable
    from leveret.core.message import Message

    came_to = Published(total=total)
    began = asyncio.get_running_loop().time()
    room = asyncio.Semaphore(_AT_ONCE)
    under_way: set[asyncio.Task[None]] = set()

    async def one(number: int, line: str, done: Callable[[], object]) -> None:
        kind, place = "", f"line {number}"
        try:
            message: Message = Message(type, payload_of(line, place), headers=headers)
            await app.publish(message)
            came_to.confirmed += 1
        except Unroutable as error:
            kind, words = "unroutable", str(error)
        except PublishTimeout as error:
            kind, words = "unknown", str(error)
        except (PublishError, BadPayload) as error:
            kind, words = "refused", str(error)
        finally:
            room.release()
            done()
        if kind:
            getattr(came_to, kind).append(number)
            came_to.words.setdefault(kind, f"{place}: {words.removeprefix(f'{place} ')}")

    with console.progress("publishing", total) as bar:
        try:
            async for number, line in _paced(lines, rate):
                await room.acquire()
                task = asyncio.create_task(one(number, line, bar.advance))
                under_way.add(task)
                task.add_done_callback(under_way.discard)
            while under_way:
                await asyncio.wait(under_way)
        finally:
            for task in under_way:
                task.cancel()
    came_to.seconds = asyncio.get_running_loop().time() - began
    for found in (came_to.unroutable, came_to.refused, came_to.unknown):
        found.sort()
    return came_to


async def _paced(lines: Iterator[str], rate: float | None) -> AsyncIterator[tuple[int, str]]:
    """Lines that hold something, with their numbers."""
    from leveret.runtime.world import DaemonThreads

    loop = asyncio.get_running_loop()
    began, sent, number = loop.time(), 0, 0
    # Standard input may make us wait; a daemon thread does not keep Ctrl+C waiting with it.
    reader = DaemonThreads(1, "leveret-stdin") if lines is sys.stdin else None
    while True:
        line = next(lines, None) if reader is None else await reader.run(lambda: next(lines, None))
        if line is None:
            break
        number += 1
        if not line.strip():
            continue
        if rate is not None:
            await asyncio.sleep(began + sent / rate - loop.time())
        sent += 1
        yield number, line


def _check_readable(file: Path) -> None:
    from leveret.core.errors import ConfigError

    try:
        with file.open("rb"):
            pass
    except OSError as error:
        raise ConfigError(f"--file {file}: {error.strerror}") from None


@contextlib.contextmanager
def _lines(source: str) -> Iterator[tuple[Iterator[str], int | None]]:
    """The lines of a file, and how many there are where that can be known."""
    if source == "-":
        yield sys.stdin, None
        return
    with Path(source).open(encoding="utf-8", errors="surrogateescape") as file:
        total = sum(1 for line in file if line.strip())
        file.seek(0)
        yield file, total
