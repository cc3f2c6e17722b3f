"""One SQLite file, served by one thread of its own: opening, transactions, and noticing that the file is gone."""

from __future__ import annotations

import asyncio
import os
import queue
import sqlite3
import threading
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from leveret.core.errors import ConfigError, NotFound, StoreRefused, StoreUnavailable
from leveret.stores.errors import unavailable
from leveret.stores.sqlite import schema
from leveret.stores.sqlite.errors import translated

if TYPE_CHECKING:
    from collections.abc import Callable

R = TypeVar("R")

#: Seconds to wait for a file that somebody else has locked: a backup or a long search passes, a stuck process is told.
BUSY_TIMEOUT = 30.0

#: Writes that wait together share a transaction; more than this would keep other processes from the file for long.
_GROUP = 32

#: Pages that SQLite keeps in memory, in KiB: enough for the upper levels of every index, and never more than this.
_CACHE_KIB = 12_288

#: Pages in the write-ahead log before it is copied into the file: batches of bodies would otherwise copy all the time.
_CHECKPOINT_PAGES = 4000

#: Bytes that the write-ahead log is cut to after a large transaction.
_LOG_BYTES = 64 * 1024 * 1024

#: Switching a new file to the write-ahead log does not wait for others by itself: so often a second is it tried again.
_TRIES_A_SECOND = 50

#: Primary result codes of a file or folder that may only be read.
_NO_RIGHTS = {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN}


@dataclass(slots=True)
class _Job:
    kind: Literal["read", "write", "open", "close"]
    call: Callable[[sqlite3.Connection], Any]
    create: bool = False
    answer: Future[Any] = field(default_factory=Future)


class SqliteFile:
    """A SQLite file with the store's schema. Calls are served in the order in which they were made.

    A write is one transaction, synced to disk when it returns; writes that wait together share the sync, and each
    keeps its own failure. Errors are leveret's: `StoreUnavailable` for the file, `StoreRefused` for the data.

    Args:
        path: the file. A relative one is taken from the folder of this moment.
        busy_timeout: seconds to wait for a file that somebody else has locked.
    """

    def __init__(self, path: str | os.PathLike[str], *, busy_timeout: float) -> None:
        name = os.fspath(path)
        if name in ("", ":memory:"):
            raise ConfigError(f"a SQLite store needs a file, got {name!r}. To keep nothing, use memory://")
        self.path = Path.cwd() / name
        self._log = Path(f"{self.path}-wal")
        self._busy_timeout = busy_timeout
        self._jobs: queue.SimpleQueue[_Job] | None = None
        self._thread: threading.Thread
        # What was taken out of the queue, and is served before it. It and all below belong to the thread.
        self._backlog: deque[_Job] = deque()
        self._connection: sqlite3.Connection | None = None
        # Device and inode of what was opened.
        self._file_id: tuple[int, int] | None = None
        self._log_id: tuple[int, int] | None = None

    # ── called from the loop ──────────────────────────────────────────────────────────────────────────────────────────

    @property
    def is_open(self) -> bool:
        """Whether it takes calls."""
        return self._jobs is not None

    async def open(self, *, create: bool) -> None:
        """Open the file and migrate it. Harmless where it is open.

        Raises:
            NotFound: there is no store, and *create* is False.
            StoreUnavailable, StoreRefused: the file cannot be used, or is not ours.
        """
        if self._jobs is not None:
            return
        jobs = self._jobs = queue.SimpleQueue()
        # A daemon: a program that ends without close() is not held up. What was not answered was not stored.
        self._thread = threading.Thread(
            target=self._serve, args=(jobs,), name=f"leveret-store-{self.path.name}", daemon=True
        )
        self._thread.start()
        job = _Job("open", _nothing, create=create)
        jobs.put(job)
        try:
            await asyncio.wrap_future(job.answer)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Serve what was asked for, then close. Idempotent."""
        jobs, self._jobs = self._jobs, None
        if jobs is not None:
            job = _Job("close", _nothing)
            jobs.put(job)
            await asyncio.wrap_future(job.answer)
            # It has nothing left to do but to end.
            self._thread.join()

    async def read(self, call: Callable[[sqlite3.Connection], R]) -> R:
        """Run *call* in the thread, in one read transaction: all of it sees one state of the store."""
        answer: R = await self._ask(_Job("read", call))
        return answer

    async def write(self, call: Callable[[sqlite3.Connection], R]) -> R:
        """Run *call* in the thread, in one write transaction, on disk when this returns; an error undoes all of it."""
        answer: R = await self._ask(_Job("write", call))
        return answer

    async def _ask(self, job: _Job) -> Any:
        if self._jobs is None:
            raise StoreUnavailable(f"the store {self.path} is not open: call `await store.open()` first")
        self._jobs.put(job)
        return await asyncio.wrap_future(job.answer)

    # ── in the thread ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _serve(self, jobs: queue.SimpleQueue[_Job]) -> None:
        while True:
            job = self._backlog.popleft() if self._backlog else jobs.get()
            if job.kind == "close":
                self._disconnect()
                job.answer.set_result(None)
                return
            if not job.answer.set_running_or_notify_cancel():
                continue
            if job.kind == "write":
                self._write(job, jobs)
                continue
            try:
                if job.kind == "open":
                    self._connect(create=job.create)
                    answer = None
                else:
                    answer = self._read(job)
            except Exception as error:  # noqa: BLE001 - handed on to who waits
                job.answer.set_exception(self._ours(error))
            else:
                job.answer.set_result(answer)

    def _read(self, job: _Job) -> Any:
        connection = self._ready()
        connection.execute("BEGIN")
        try:
            return job.call(connection)
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")

    def _write(self, job: _Job, jobs: queue.SimpleQueue[_Job]) -> None:
        group = [job]
        answers: list[Any] = []
        begun = False
        try:
            connection = self._ready()
            try:
                connection.execute("BEGIN IMMEDIATE")
                begun = True
                # Taken once the file is ours: what came while we waited for it shares this transaction.
                group += self._waiting_writes(jobs, _GROUP - 1)
                answers += [self._attempt(connection, each) for each in group]
                connection.execute("COMMIT")
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
            self._make_sure_it_lies_there()
        except Exception as error:  # noqa: BLE001 - handed on to those who wait
            if not begun:
                # The wait for a locked file is over for everybody who waits: they do not queue for waits of their own.
                group += self._waiting_writes(jobs, None)
            for each in group:
                each.answer.set_exception(self._ours(error))
            return
        for each, answer in zip(group, answers, strict=True):
            if isinstance(answer, Exception):
                each.answer.set_exception(answer)
            else:
                each.answer.set_result(answer)

    def _waiting_writes(self, jobs: queue.SimpleQueue[_Job], limit: int | None) -> list[_Job]:
        """Writes that wait: up to *limit* that stand in front, or with None all of them, past other calls."""
        passed: list[_Job] = []
        taken: list[_Job] = []
        while limit is None or len(taken) < limit:
            try:
                job = self._backlog.popleft() if self._backlog else jobs.get_nowait()
            except queue.Empty:
                break
            if job.kind != "write":
                passed.append(job)
                if limit is not None:
                    break
            elif job.answer.set_running_or_notify_cancel():
                taken.append(job)
        self._backlog.extendleft(reversed(passed))
        return taken

    def _attempt(self, connection: sqlite3.Connection, job: _Job) -> Any:
        """The answer of one write within the transaction, or its own error: then only its part is undone."""
        connection.execute("SAVEPOINT one")
        try:
            answer = job.call(connection)
        except Exception as error:
            answer = self._ours(error)
            # What befell the file befell everybody in this transaction.
            if isinstance(answer, StoreUnavailable):
                raise answer from error
            connection.execute("ROLLBACK TO one")
        connection.execute("RELEASE one")
        return answer

    def _ours(self, error: Exception) -> Exception:
        """*error* as leveret's, an object of its own for each who gets it."""
        ours = translated(error, self.path, waited=self._busy_timeout)
        if isinstance(ours, StoreUnavailable):
            ours = StoreUnavailable(str(ours))
        if ours is not error:
            ours.__cause__ = error
        return ours

    def _ready(self) -> sqlite3.Connection:
        """The connection to the file that lies under the path now."""
        lies_there = self._identity(self.path)
        if self._connection is not None and lies_there != self._file_id:
            self._leave_old_file(self._connection)
        if self._connection is None:
            try:
                self._connect(create=False)
            except (NotFound, StoreRefused) as error:
                # Said of the file that lies there now, not of the data that somebody wants to write.
                raise StoreUnavailable(str(error)) from error
        else:
            self._make_sure_it_lies_there()
        assert self._connection is not None  # noqa: S101 - for the type checker: _connect sets it or raises
        return self._connection

    def _make_sure_it_lies_there(self) -> None:
        """See that file and log are those that were opened.

        Raises:
            StoreUnavailable: one of them was removed or replaced.
        """
        if self._identity(self.path) != self._file_id:
            raise unavailable(
                self.path,
                "it was replaced while it was written",
                "nothing: the new file is opened at the next call",
            )
        if self._log_id is not None and self._identity(self._log) != self._log_id:
            raise unavailable(
                self.path,
                f"its log {self._log.name} was replaced while it was open",
                "stop every process that uses the store, then start them again; remove no -wal file while one runs",
            )

    def _identity(self, path: Path) -> tuple[int, int]:
        try:
            found = path.stat()
        except FileNotFoundError:
            raise unavailable(
                self.path,
                f"{path.name} was removed while it was open",
                "move it back, or restart to begin with a new one",
            ) from None
        return found.st_dev, found.st_ino

    def _leave_old_file(self, connection: sqlite3.Connection) -> None:
        """Close the file that was moved away, so that its log is never taken for that of the one that lies there now.

        The log is emptied into the file it belongs to, and removed where it still lies beside the new one.
        """
        try:
            busy = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
        except sqlite3.Error as error:
            busy = error
        if busy:
            raise unavailable(
                self.path,
                f"another file lies in its place, and the log of the old one cannot be emptied ({busy})",
                f"stop every process that uses it, remove {self._log.name}, start again",
            )
        log_id = self._log_id
        self._disconnect()
        if log_id is not None and self._log.exists() and self._identity(self._log) == log_id:
            self._log.unlink()
            Path(f"{self.path}-shm").unlink(missing_ok=True)

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        self._file_id = self._log_id = None
        if connection is not None:
            connection.close()

    def _connect(self, *, create: bool) -> None:
        existed = self.path.exists()
        if not existed and not create:
            raise NotFound(f"there is no store at {self.path}. `leveret run` creates it")
        connection = self._connection_for("rwc" if create else "rw")
        try:
            try:
                schema.recognise(connection, self.path, create=create)
            except sqlite3.OperationalError as error:
                # A log cannot be begun in a folder that may only be read. Where none lies, nobody has the file open,
                # and it can be read without one.
                if not existed or self._log.exists() or _primary(error) not in _NO_RIGHTS:
                    raise
                connection.close()
                connection = self._connection_for("ro&immutable=1")
                schema.recognise(connection, self.path, create=False)
            self._keep_log(connection)
            schema.migrate(connection)
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
            connection.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}").fetchall()
            connection.execute(f"PRAGMA journal_size_limit = {_LOG_BYTES}").fetchall()
            connection.create_function("casefold", 1, _casefold, deterministic=True)
            connection.create_function("unhexed", 1, bytes.fromhex, deterministic=True)
            self._file_id = self._identity(self.path)
            self._log_id = self._identity(self._log) if self._log.exists() else None
        except BaseException:
            connection.close()
            raise
        self._connection = connection

    def _connection_for(self, mode: str) -> sqlite3.Connection:
        return sqlite3.connect(
            f"{self.path.as_uri()}?mode={mode}", uri=True, timeout=self._busy_timeout, isolation_level=None
        )

    def _keep_log(self, connection: sqlite3.Connection) -> None:
        """Switch the file to the write-ahead log, for good. One that may only be read is left as it is."""
        if connection.execute("PRAGMA journal_mode").fetchone()[0] == "wal":
            return
        # SQLite waits for others in some of these cases, and in some it does not. So it never does, and we do.
        connection.execute("PRAGMA busy_timeout = 0").fetchall()
        pause = threading.Event()
        for left in reversed(range(max(1, int(self._busy_timeout * _TRIES_A_SECOND)))):
            try:
                connection.execute("PRAGMA journal_mode = WAL").fetchall()
            except sqlite3.OperationalError as error:
                if _primary(error) in _NO_RIGHTS:
                    break
                if _primary(error) != sqlite3.SQLITE_BUSY or not left:
                    raise
                pause.wait(1 / _TRIES_A_SECOND)
            else:
                break
        connection.execute(f"PRAGMA busy_timeout = {int(self._busy_timeout * 1000)}").fetchall()


def _primary(error: sqlite3.Error) -> int:
    """The primary result code: the low byte of the extended one."""
    return error.sqlite_errorcode & 0xFF


def _casefold(text: str | bytes | None) -> str:
    if isinstance(text, bytes):
        text = text.decode("utf-8", "surrogatepass")
    return (text or "").casefold()


def _nothing(connection: sqlite3.Connection) -> None:
    """What opening and closing run."""
