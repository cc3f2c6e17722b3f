"""What waits, in SQLite. Every call is one transaction; none of the frequent ones looks at more rows than it names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leveret.core.retry_entry import Due, Filter
from leveret.ports import Placed
from leveret.stores import cursors
from leveret.stores.endings import the_one
from leveret.stores.intake import due_time, shown
from leveret.stores.sql.filters import RETRIES, condition
from leveret.stores.sql.rows import NEVER, RETRY, RETRY_WHOLE, letter_row, retry_of, retry_row
from leveret.stores.sqlite.columns import AFTER_ALL, DIALECT, KEEP_LETTER, exact, marks, place_of, text_of
from leveret.stores.sqlite.lease import check_grant
from leveret.stores.sqlite.namespaces import namespaces_of

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Sequence

    from leveret.core.dead_letter import DeadLetter
    from leveret.core.retry_entry import RetryEntry
    from leveret.ports import Clock, Grant
    from leveret.stores.sqlite.file import SqliteFile


#: A held row stays held when its message fails again: a person holds it, and a person releases it.
_PUT = f"""
    INSERT INTO retry ({RETRY_WHOLE}) VALUES ({marks(RETRY_WHOLE)})
    ON CONFLICT (namespace, key) DO UPDATE SET
        failure = excluded.failure,
        due_at = excluded.due_at,
        try_at = CASE WHEN state = 'held' THEN 9e999 ELSE excluded.try_at END,
        state_reason = CASE WHEN state = 'held' THEN state_reason ELSE excluded.state_reason END,
        state = CASE WHEN state = 'held' THEN 'held' ELSE excluded.state END,
        {
    ", ".join(
        f"{name} = excluded.{name}"
        for name in map(str.strip, RETRY_WHOLE.split(","))
        if name not in {"namespace", "key", "failure", "due_at", "try_at", "state_reason", "state"}
    )
}
    WHERE excluded.failure > retry.failure
"""  # noqa: S608 - column names of ours

_UPCOMING = """
    SELECT key, failure, try_at, queue, size FROM retry
    WHERE namespace = ? AND (try_at, key) > (?, ?) AND try_at <= ? AND try_at < 9e999
    ORDER BY try_at, key LIMIT ?
"""

#: Keys that one query asks for: above this nothing is gained, and old builds of SQLite take no more than 999 values.
_TAKEN_AT_ONCE = 100

#: Rows that are unblocked in one transaction: others wait for the file meanwhile.
UNBLOCKED_AT_ONCE = 5000


class SqliteRetries:
    """The retry part of the SQLite store."""

    file: SqliteFile
    clock: Clock

    async def put(self, entries: Sequence[RetryEntry]) -> list[Placed]:
        """Write entries; a key that waits already is replaced by a higher failure number only."""

        def ask(connection: sqlite3.Connection) -> list[Placed]:
            now = self.clock.now()
            placed = []
            for entry in entries:
                row = retry_row(entry, now, exact)
                if connection.execute(_PUT, row).rowcount:
                    placed.append(Placed(True, row[4] - now))
                else:
                    due_at, try_at = connection.execute(
                        "SELECT due_at, try_at FROM retry WHERE namespace = ? AND key = ?", row[:2]
                    ).fetchone()
                    placed.append(Placed(False, (due_at if try_at == NEVER else try_at) - now))
            return placed

        return await self.file.write(ask)

    async def upcoming(
        self,
        namespace: str,
        *,
        within: float,
        limit: int,
        since: float | None = None,
        after: tuple[float, str] | None = None,
    ) -> list[tuple[Due, tuple[float, str]]]:
        """Rows that are due within so many seconds, the longest due first, each with a cursor for *after*."""
        time, key = after if after is not None else (-NEVER, "")

        def ask(connection: sqlite3.Connection) -> list[tuple[Due, tuple[float, str]]]:
            now = self.clock.now()
            start = (time, exact(key))
            if since is not None and now - since > time:
                # No key sorts before an empty one, so this leaves nothing out that became due at that very time.
                start = (now - since, "")
            found = connection.execute(_UPCOMING, (exact(namespace), *start, now + within, limit))
            return [
                (Due(text_of(key), failure, try_at - now, text_of(queue), size), (try_at, text_of(key)))
                for key, failure, try_at, queue, size in found
            ]

        return await self.file.read(ask)

    async def next_due(self, namespace: str) -> float | None:
        """Seconds until the next row may be tried, negative where one is overdue, None where nothing waits."""

        def ask(connection: sqlite3.Connection) -> float | None:
            row = connection.execute(
                "SELECT try_at FROM retry WHERE namespace = ? AND try_at < 9e999 ORDER BY try_at LIMIT 1",
                (exact(namespace),),
            ).fetchone()
            return None if row is None else float(row[0]) - self.clock.now()

        return await self.file.read(ask)

    async def take(
        self,
        namespace: str,
        rows: Sequence[tuple[str, int]],
        *,
        grant: Grant | None = None,
        held: bool = False,
    ) -> list[RetryEntry]:
        """The whole entries of these (key, failure) rows that still carry that failure; held ones only with *held*."""
        states = "" if held else " AND state <> 'held'"

        def ask(connection: sqlite3.Connection) -> list[RetryEntry]:
            check_grant(connection, grant)
            now = self.clock.now()
            wanted = [(exact(key), failure) for key, failure in rows]
            found: dict[str | bytes, tuple[Any, ...]] = {}
            for start in range(0, len(wanted), _TAKEN_AT_ONCE):
                keys = [key for key, _ in wanted[start : start + _TAKEN_AT_ONCE]]
                sql = (
                    f"SELECT {RETRY_WHOLE} FROM retry WHERE namespace = ?{states}"  # noqa: S608
                    f" AND key IN ({', '.join('?' * len(keys))})"
                )
                found.update((row[1], row) for row in connection.execute(sql, (exact(namespace), *keys)))
            taken = ((found.get(key), failure) for key, failure in wanted)
            return [
                retry_of(row, now, text_of) for row, failure in taken if row is not None and row[2] == failure
            ]

        return await self.file.read(ask)

    async def remove(
        self, namespace: str, rows: Sequence[tuple[str, int]], *, grant: Grant | None = None
    ) -> int:
        """Delete these (key, failure) rows, those that still carry that failure. Returns how many."""

        def ask(connection: sqlite3.Connection) -> int:
            check_grant(connection, grant)
            return connection.executemany(
                "DELETE FROM retry WHERE namespace = ? AND key = ? AND failure = ?",
                [(exact(namespace), exact(key), failure) for key, failure in rows],
            ).rowcount

        return max(0, await self.file.write(ask)) if rows or grant else 0

    async def postpone(
        self,
        namespace: str,
        rows: Sequence[tuple[str, int]],
        *,
        seconds: float,
        blocked: str | None = None,
        grant: Grant | None = None,
    ) -> None:
        """Try these rows again after so many seconds; `due_at` stays. *blocked*: the reason that listings show."""
        state, reason = ("waiting", "") if blocked is None else ("blocked", shown(blocked))

        def ask(connection: sqlite3.Connection) -> None:
            check_grant(connection, grant)
            try_at = self.clock.now() + seconds
            connection.executemany(
                "UPDATE retry SET try_at = ?, state = ?, state_reason = ?"
                " WHERE namespace = ? AND key = ? AND failure = ? AND state <> 'held'",
                [(try_at, state, reason, exact(namespace), exact(key), failure) for key, failure in rows],
            )

        await self.file.write(ask)

    async def unblock(self, namespace: str, queue: str, *, grant: Grant | None = None) -> int:
        """Let every blocked row of that queue be tried at once. Returns how many."""

        def ask(connection: sqlite3.Connection) -> int:
            check_grant(connection, grant)
            return connection.execute(
                "UPDATE retry SET state = 'waiting', state_reason = '', try_at = due_at WHERE rowid IN ("
                "SELECT rowid FROM retry WHERE namespace = ? AND queue = ? AND state = 'blocked' LIMIT ?)",
                (exact(namespace), exact(queue), UNBLOCKED_AT_ONCE),
            ).rowcount

        released = 0
        while True:
            changed = await self.file.write(ask)
            released += changed
            if changed < UNBLOCKED_AT_ONCE:
                return released

    async def reschedule(
        self, rows: Sequence[tuple[str, str]], *, due_at: float | None = None, wait: float | None = None
    ) -> int:
        """Set when these (namespace, key) rows are due: at a time, or so many seconds from now. Also unblocks them."""
        due_time(0.0, due_at=due_at, wait=wait)

        def ask(connection: sqlite3.Connection) -> int:
            time = due_time(self.clock.now(), due_at=due_at, wait=wait)
            return connection.executemany(
                "UPDATE retry SET due_at = ?,"
                " try_at = CASE WHEN state = 'held' THEN try_at ELSE ? END,"
                " state_reason = CASE WHEN state = 'held' THEN state_reason ELSE '' END,"
                " state = CASE WHEN state = 'held' THEN state ELSE 'waiting' END"
                " WHERE namespace = ? AND key = ?",
                [(time, time, exact(namespace), exact(key)) for namespace, key in rows],
            ).rowcount

        return max(0, await self.file.write(ask))

    async def hold(self, rows: Sequence[tuple[str, str]], *, held: bool, reason: str = "") -> int:
        """Hold these (namespace, key) rows, or release them. Held rows are never due. Returns how many changed."""
        if held:
            sql = "UPDATE retry SET state = 'held', state_reason = ?, try_at = 9e999 WHERE state <> 'held'"
        else:
            sql = "UPDATE retry SET state = 'waiting', state_reason = ?, try_at = due_at WHERE state = 'held'"
        words = shown(reason) if held else ""

        def ask(connection: sqlite3.Connection) -> int:
            return connection.executemany(
                f"{sql} AND namespace = ? AND key = ?",
                [(words, exact(namespace), exact(key)) for namespace, key in rows],
            ).rowcount

        return max(0, await self.file.write(ask))

    async def move(self, rows: Sequence[tuple[str, str]], *, queue: str) -> int:
        """Let these (namespace, key) rows go to another queue; keys and retry ids stay. Also unblocks them."""

        def ask(connection: sqlite3.Connection) -> int:
            return connection.executemany(
                "UPDATE retry SET queue = ?, through_exchange = 0,"
                " try_at = CASE WHEN state = 'blocked' THEN due_at ELSE try_at END,"
                " state_reason = CASE WHEN state = 'blocked' THEN '' ELSE state_reason END,"
                " state = CASE WHEN state = 'blocked' THEN 'waiting' ELSE state END"
                " WHERE namespace = ? AND key = ?",
                [(exact(queue), exact(namespace), exact(key)) for namespace, key in rows],
            ).rowcount

        return max(0, await self.file.write(ask))

    async def bury(
        self, rows: Sequence[tuple[str, int]], letters: Sequence[DeadLetter], *, grant: Grant | None = None
    ) -> list[bool]:
        """Turn each (key, failure) row, of its letter's namespace, into that dead letter, in one transaction."""

        def ask(connection: sqlite3.Connection) -> list[bool]:
            check_grant(connection, grant)
            there = []
            for (key, failure), letter in zip(rows, letters, strict=True):
                row = letter_row(letter, exact)
                gone = connection.execute(
                    "DELETE FROM retry WHERE namespace = ? AND key = ? AND failure = ?",
                    (row[0], exact(key), failure),
                ).rowcount
                if gone:
                    connection.execute(KEEP_LETTER, row)
                there.append(bool(gone))
            return there

        return await self.file.write(ask)

    async def entries(
        self, wanted: Filter, *, limit: int, after: str | None = None
    ) -> tuple[list[RetryEntry], str | None]:
        """A page of what waits, the next due first, without bodies; and a cursor for the next page, or None."""
        start = (-NEVER, "", "") if after is None else cursors.read(after)

        def ask(connection: sqlite3.Connection) -> tuple[list[RetryEntry], str | None]:
            asked = condition(wanted, RETRIES, DIALECT, namespace=False)
            sql = (
                f"SELECT {RETRY} FROM retry WHERE {asked.namespace} = ? AND (try_at, key) > (?, ?) AND {asked.sql}"  # noqa: S608
                " ORDER BY try_at, key LIMIT ?"
            )
            rows: list[tuple[Any, ...]] = []
            for namespace in namespaces_of(connection, "retry", wanted.namespace):
                # At the very time of the cursor, namespaces before its own are done with, and those behind it are not.
                key = exact(start[2]) if namespace == start[1] else "" if namespace > start[1] else AFTER_ALL
                rows += connection.execute(sql, (exact(namespace), start[0], key, *asked.values, limit + 1))
            rows.sort(key=lambda row: (row[5], place_of(row[0]), place_of(row[1])))
            now = self.clock.now()
            page = [retry_of(row, now, text_of) for row in rows[:limit]]
            more = (
                cursors.written(rows[limit - 1][5], page[-1].namespace, page[-1].key)
                if len(rows) > limit
                else None
            )
            return page, more

        return await self.file.read(ask)

    async def count_entries(self, wanted: Filter, *, overdue: bool = False) -> int:
        """How many wait; *overdue*: only those whose time has come."""

        def ask(connection: sqlite3.Connection) -> int:
            asked = condition(wanted, RETRIES, DIALECT)
            if overdue:
                asked.add("try_at <= ?", self.clock.now())
            sql = f"SELECT count(*) FROM retry WHERE {asked.sql}"  # noqa: S608
            return int(connection.execute(sql, asked.values).fetchone()[0])

        return await self.file.read(ask)

    async def entry(self, namespace: str | None, id: str) -> RetryEntry | None:
        """One entry, with its body, by retry id or message id, or a unique ending of six characters or more."""

        def ask(connection: sqlite3.Connection) -> RetryEntry | None:
            asked = condition(Filter(namespace=namespace, ids=(id,)), RETRIES, DIALECT)
            found = connection.execute(
                f"SELECT rowid, retry_id, key FROM retry WHERE {asked.sql}",  # noqa: S608
                asked.values,
            )
            rowid = the_one("retries", id, [(row[0], text_of(row[1]), text_of(row[2])) for row in found])
            if rowid is None:
                return None
            sql = f"SELECT {RETRY_WHOLE} FROM retry WHERE rowid = ?"  # noqa: S608
            return retry_of(connection.execute(sql, (rowid,)).fetchone(), self.clock.now(), text_of)

        return await self.file.read(ask)
