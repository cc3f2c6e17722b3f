"""Connections to one PostgreSQL server: made when needed, looked at before use, given up when they do not answer."""

from __future__ import annotations

import asyncio
import re
import select
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, Literal, TypeAlias, TypeVar
from urllib.parse import unquote

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict

from leveret.core.errors import ConfigError, StoreUnavailable
from leveret.core.redaction import redact
from leveret.stores.errors import unavailable
from leveret.stores.postgres import schema
from leveret.stores.postgres.errors import is_of_the_data, translated

R = TypeVar("R")
Connection: TypeAlias = psycopg.AsyncConnection[tuple[Any, ...]]
Call: TypeAlias = Callable[[Connection], Awaitable[R]]
Lane = Literal["work", "lease"]

#: Where leveret's tables lie unless the URL says `?schema=`.
DEFAULT_SCHEMA: Final = "leveret"
#: Seconds that a call may take. A listing over a million rows passes; a server that hangs is told.
PATIENCE: Final = 30.0
#: Connections for work at most: as many as batches are under way at once. Leases have one of their own, so that a
#: renewal never waits for work.
ROOM: Final[dict[Lane, int]] = {"work": 4, "lease": 1}
#: Seconds that a call about a lease may take: one that hangs on a dead line leaves time to ask again before it ends.
LEASE_PATIENCE: Final = 5.0
#: The server ends a statement after so long by itself; where not even that is heard of, we hang up so much later.
_GRACE: Final = 2.0
#: Seconds to wait after a failed connect, at first and at most: callers have waits of their own, and are many.
_FIRST_GAP, _LONGEST_GAP = 0.05, 1.0
#: A transaction that another one got in the way of (deadlock, serialization) is done again so often at once.
_TRIES: Final = 3
#: Seconds for a connect at most; the URL may say otherwise.
_CONNECT_TIMEOUT: Final = 10
#: What libpq assumes is right for a person at a prompt; a service must notice that its peer has vanished.
_LIVELY: Final = {
    "keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3,
    "tcp_user_timeout": 20_000, "fallback_application_name": "leveret",
}  # fmt: skip

_SCHEMA_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}")


class Connections:
    """The way to a schema in a PostgreSQL database. Errors are leveret's.

    A call runs to its end also where its caller gives up, as far as the server is there. A connection that failed is
    closed, never mended; the next call makes a new one.

    Args:
        url: `postgresql://user:password@host/database?schema=leveret`, and whatever else libpq knows.
        patience: seconds that a call may take.

    Raises:
        ConfigError: the URL cannot be read.
    """

    def __init__(self, url: str, *, patience: float = PATIENCE) -> None:
        self.display = redact(url)
        #: Seconds that a call may take.
        self._patience: dict[Lane, float] = {"work": patience, "lease": min(patience, LEASE_PATIENCE)}
        self.schema, self._conninfo = _read(url, self.display)
        self._is_open = False
        self._room = {lane: asyncio.Semaphore(most) for lane, most in ROOM.items()}
        self._idle: dict[Lane, list[Connection]] = {lane: [] for lane in ROOM}
        self._calls: set[asyncio.Task[Any]] = set()
        self._opening = asyncio.Lock()
        #: Why the last connect failed, until when that is told without another try, and the wait after that.
        self._failure = ""
        self._again_at = float("-inf")
        self._gap = _FIRST_GAP

    @property
    def is_open(self) -> bool:
        """Whether it takes calls."""
        return self._is_open

    async def open(self, *, create: bool) -> None:
        """Connect, and bring the schema forward. Harmless where it is open.

        Raises:
            NotFound: there is no store in that database, and *create* is False.
            StoreUnavailable, StoreRefused: the server cannot be used, or the schema is not ours.
        """
        async with self._opening:
            if self._is_open:
                return
            self._is_open = True
            try:
                await self.run(lambda connection: self._prepare(connection, create=create), bounded=False)
            except BaseException:
                await self.close()
                raise

    async def close(self) -> None:
        """Let calls come to their end, then disconnect. Idempotent."""
        self._is_open = False
        if self._calls:
            await asyncio.wait(self._calls)
        for connections in self._idle.values():
            while connections:
                await connections.pop().close()

    async def run(self, call: Call[R], *, lane: Lane = "work", bounded: bool = True) -> R:
        """Run *call* on a connection: each statement is a transaction of its own, unless *call* begins one.

        Args:
            call: what to do. It is done again where another transaction got in its way.
            lane: whose connection.
            bounded: False lets it take as long as it takes, as a migration does.
        """
        if not self._is_open:
            raise StoreUnavailable(f"the store {self.display} is not open: call `await store.open()` first")
        limit = self._patience[lane] + _GRACE if bounded else None
        task = asyncio.create_task(self._serve(call, lane, limit))
        self._calls.add(task)
        task.add_done_callback(self._served)
        return await asyncio.shield(task)

    async def fetch(self, sql: str, values: Any = (), *, lane: Lane = "work") -> list[tuple[Any, ...]]:
        """The rows that one statement gives."""

        async def ask(connection: Connection) -> list[tuple[Any, ...]]:
            return await (await connection.execute(sql, values, binary=True)).fetchall()

        return await self.run(ask, lane=lane)

    async def change(self, sql: str, values: Any = (), *, lane: Lane = "work") -> int:
        """How many rows one statement has changed."""

        async def ask(connection: Connection) -> int:
            return (await connection.execute(sql, values)).rowcount

        return await self.run(ask, lane=lane)

    def _served(self, task: asyncio.Task[Any]) -> None:
        self._calls.discard(task)
        # Whoever asked may be gone; an error that nobody fetches would be told as a fault of ours.
        if not task.cancelled():
            task.exception()

    async def _serve(self, call: Call[R], lane: Lane, limit: float | None) -> R:
        async with self._room[lane]:
            for tries_left in range(_TRIES - 1, -1, -1):
                try:
                    connection = self._alive(lane) or await self._connected(lane)
                    return await self._answer(connection, call, lane, limit)
                except psycopg.Error as error:
                    if tries_left and _may_be_tried_again(error):
                        continue
                    raise translated(error, self.display) from error
                except Exception as error:
                    ours = translated(error, self.display)
                    if ours is error:
                        raise
                    raise ours from error
            raise AssertionError("the last try has returned or raised")

    async def _answer(self, connection: Connection, call: Call[R], lane: Lane, limit: float | None) -> R:
        task = asyncio.ensure_future(call(connection))
        try:
            await asyncio.wait([task], timeout=limit)
            if not task.done():
                # Hung up from here: a polite cancel would wait for the very server that does not answer.
                connection.pgconn.finish()
                task.cancel()
                await asyncio.wait([task])
                raise unavailable(
                    self.display,
                    f"it has not answered for {limit:g} s; what it was asked for may be done, or not",
                    "see what the server and the network are busy with; leveret tries again by itself",
                )
            return task.result()
        except psycopg.Error as error:
            if not is_of_the_data(error) and not _may_be_tried_again(error):
                # Whatever is wrong with it, a new one knows no prepared statement of old tables, and asks for the name
                # of the server again.
                connection.pgconn.finish()
            raise
        finally:
            if not task.done():
                task.cancel()
            if connection.closed or connection.pgconn.transaction_status != pq.TransactionStatus.IDLE:
                connection.pgconn.finish()
            elif self._is_open or self._calls:
                self._idle[lane].append(connection)

    def _alive(self, lane: Lane) -> Connection | None:
        """An idle connection whose server has not hung up meanwhile."""
        idle = self._idle[lane]
        while idle:
            connection = idle.pop()
            if connection.pgconn.status == pq.ConnStatus.OK and not _has_something_to_say(connection):
                return connection
            connection.pgconn.finish()
        return None

    async def _connected(self, lane: Lane) -> Connection:
        if time.monotonic() < self._again_at:
            raise StoreUnavailable(self._failure)
        patience = self._patience[lane]
        timeout = {"connect_timeout": min(_CONNECT_TIMEOUT, max(2, round(patience)))}
        try:
            connection: Connection = await psycopg.AsyncConnection.connect(
                **{**timeout, **self._conninfo}, autocommit=True
            )
            try:
                async with asyncio.timeout(patience + _GRACE):
                    await self._settle_in(connection, lane)
            except BaseException:
                connection.pgconn.finish()
                raise
        except (psycopg.Error, OSError) as error:
            ours = translated(error, self.display)
            self._failure = str(ours)
            self._again_at = time.monotonic() + self._gap
            self._gap = min(2 * self._gap, _LONGEST_GAP)
            raise ours from error
        self._gap = _FIRST_GAP
        return connection

    async def _settle_in(self, connection: Connection, lane: Lane) -> None:
        # Set by a statement and not as start-up parameters: a pooler between us and the server refuses those.
        # No jit: to compile a statement takes a hundred times as long as to find the few rows that it asks for.
        milliseconds = str(round(self._patience[lane] * 1000))
        await connection.execute(
            "SELECT set_config('search_path', %s, false), set_config('statement_timeout', %s, false),"
            " set_config('idle_in_transaction_session_timeout', %s, false), set_config('jit', 'off', false)",
            (f'"{self.schema}"', milliseconds, milliseconds),
        )

    async def _prepare(self, connection: Connection, *, create: bool) -> None:
        try:
            await schema.prepare(connection, self.schema, self.display, create=create)
        except psycopg.errors.InsufficientPrivilege as error:
            raise unavailable(
                self.display,
                f"this user may not make or use the schema {self.schema} ({error.diag.message_primary})",
                "grant it what it needs: docs/choosing-a-store.md has the statements",
            ) from error


def _may_be_tried_again(error: psycopg.Error) -> bool:
    """Whether another transaction got in the way (deadlock, serialization), and this one is undone."""
    return (error.sqlstate or "").startswith("40")


def _has_something_to_say(connection: Connection) -> bool:
    """Whether the server has sent what nobody asked for: a farewell, or the end of the connection."""
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return bool(poll.poll(0))


def _read(url: str, display: str) -> tuple[str, dict[str, Any]]:
    """The schema that the URL names, and the rest of it for libpq."""
    plain, _, query = url.partition("?")
    name, pieces = DEFAULT_SCHEMA, []
    for piece in query.split("&") if query else ():
        if piece.startswith("schema="):
            name = unquote(piece.removeprefix("schema="))
        else:
            pieces.append(piece)
    if not _SCHEMA_NAME.fullmatch(name) or name in schema.TAKEN or name.startswith("pg_"):
        raise ConfigError(
            f"the store {display} cannot be used: its schema {name!r} is no name for leveret's own one; write "
            "lower-case letters, digits and _, not public and not pg_…"
        )
    try:
        given: dict[str, Any] = dict(conninfo_to_dict(f"{plain}?{'&'.join(pieces)}" if pieces else plain))
    except psycopg.Error:
        # libpq's words quote the part that it cannot read, which may be a password.
        raise ConfigError(
            f"the store {display} cannot be used: libpq cannot read its address. It is "
            "postgresql://user:password@host:5432/database?schema=leveret, and what libpq knows beside schema="
        ) from None
    return name, {**_LIVELY, **given, "client_encoding": "utf8"}
