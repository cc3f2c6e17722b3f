"""What waits, in PostgreSQL. Every call is one transaction; none of the frequent ones looks at more than it names."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from leveret.core.retry_entry import Due, Filter
from leveret.ports import Placed
from leveret.stores import cursors
from leveret.stores.endings import the_one
from leveret.stores.intake import due_time, shown
from leveret.stores.postgres.columns import (
    AFTER_ALL,
    DIALECT,
    LETTER_BODY,
    LETTER_COLUMNS,
    LETTER_REASON,
    RETRY_BODY,
    RETRY_COLUMNS,
    RETRY_REASON,
    arrays,
    exact,
    folded,
    portions,
    text_of,
)
from leveret.stores.postgres.lease import guard, lost
from leveret.stores.postgres.namespaces import NAMESPACES_OF
from leveret.stores.sql import rows
from leveret.stores.sql.filters import RETRIES, condition
from leveret.stores.sql.rows import NEVER, RETRY, RETRY_WHOLE

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from leveret.core.dead_letter import DeadLetter
    from leveret.core.retry_entry import RetryEntry
    from leveret.ports import Grant
    from leveret.stores.postgres.connections import Connection, Connections

_SET = ", ".join(
    f"{name} = excluded.{name}"
    for name in map(str.strip, RETRY_COLUMNS.names.split(","))
    if name not in {"namespace", "key", "state", "state_reason", "try_at"}
)
_SELECTED = RETRY_COLUMNS.names.replace(
    "due_at, try_at", "due_at + since, CASE state WHEN 'held' THEN 'Infinity' ELSE due_at + since END"
)

#: Waits are counted from one moment of the server's clock (`from_now`). A held row stays held when its message fails
#: again: a person holds it, and a person releases it.
_PUT = f"""
    WITH clock AS MATERIALIZED (SELECT epoch_now() AS now),
    given AS (
        SELECT *, CASE WHEN from_now THEN now ELSE 0 END AS since
        FROM unnest({RETRY_COLUMNS.arrays}, %s::bool[]) AS given ({RETRY_COLUMNS.names}, from_now), clock
    ),
    written AS (
        INSERT INTO retry ({RETRY_COLUMNS.names}) SELECT {_SELECTED} FROM given
        ON CONFLICT (namespace, key) DO UPDATE SET {_SET},
            state = CASE retry.state WHEN 'held' THEN 'held' ELSE excluded.state END,
            state_reason = CASE retry.state WHEN 'held' THEN retry.state_reason ELSE excluded.state_reason END,
            try_at = CASE retry.state WHEN 'held' THEN 'Infinity' ELSE excluded.try_at END
        WHERE excluded.failure > retry.failure
        RETURNING namespace, key, due_at
    )
    SELECT namespace, key, due_at - now FROM written, clock
"""

_WAITS = """
    SELECT namespace, key, CASE try_at WHEN 'Infinity' THEN due_at ELSE try_at END - epoch_now()
    FROM retry JOIN unnest(%s::text[], %s::text[]) AS given (namespace, key) USING (namespace, key)
"""

#: The window's edges are asked for once each, so that the index can be read between them.
_UPCOMING = """
    WITH clock AS MATERIALIZED (SELECT epoch_now() AS now)
    SELECT key, failure, try_at, queue, size, (SELECT now FROM clock) FROM retry
    WHERE namespace = %(namespace)s AND try_at <= (SELECT now + %(within)s::float8 FROM clock) AND try_at < 'Infinity'
    AND (try_at, key) > (
        (SELECT greatest(%(time)s::float8, now - %(since)s::float8) FROM clock),
        (SELECT CASE WHEN now - %(since)s::float8 > %(time)s::float8 THEN '' ELSE %(key)s::text END FROM clock)
    )
    ORDER BY try_at, key LIMIT %(limit)s
"""

#: Rows that are unblocked in one statement, which has a time limit.
UNBLOCKED_AT_ONCE = 5000


class PostgresRetries:
    """The retry part of the PostgreSQL store."""

    connections: Connections

    async def put(self, entries: Sequence[RetryEntry]) -> list[Placed]:
        """Write entries; a key that waits already is replaced by a higher failure number only."""
        # A statement writes a row once, so the same key once more waits for the next round.
        rounds: list[list[tuple[Any, ...]]] = []
        numbers: list[dict[tuple[str, str], int]] = []
        seen: Counter[tuple[str, str]] = Counter()
        for number, entry in enumerate(entries):
            row = (*folded(rows.retry_row(entry, 0.0, exact), RETRY_REASON), entry.wait is not None)
            turn = seen[row[:2]]
            seen[row[:2]] += 1
            if turn == len(rounds):
                rounds.append([])
                numbers.append({})
            rounds[turn].append(row)
            numbers[turn][row[:2]] = number
        # Everybody locks rows in one order, so that nobody waits in a circle.
        statements = [
            (place, portion)
            for place, each in zip(numbers, rounds, strict=True)
            for portion in portions(sorted(each, key=lambda row: row[:2]), RETRY_BODY)
        ]
        placed: list[Placed] = [Placed(False, 0.0)] * len(entries)

        async def ask(connection: Connection) -> None:
            async with connection.transaction() if len(statements) > 1 else nullcontext():
                for place, portion in statements:
                    for named, answer in (await _put(connection, portion)).items():
                        placed[place[named]] = answer

        if statements:
            await self.connections.run(ask)
        return placed

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
        found = await self.connections.fetch(
            _UPCOMING,
            {
                "namespace": exact(namespace),
                "within": within,
                "time": time,
                "key": exact(key),
                "since": NEVER if since is None else since,
                "limit": limit,
            },
        )
        return [
            (Due(text_of(key), failure, try_at - now, text_of(queue), size), (try_at, text_of(key)))
            for key, failure, try_at, queue, size, now in found
        ]

    async def next_due(self, namespace: str) -> float | None:
        """Seconds until the next row may be tried, negative where one is overdue, None where nothing waits."""
        found = await self.connections.fetch(
            "SELECT try_at - epoch_now() FROM retry WHERE namespace = %s AND try_at < 'Infinity'"
            " ORDER BY try_at LIMIT 1",
            (exact(namespace),),
        )
        return float(found[0][0]) if found else None

    async def take(
        self,
        namespace: str,
        rows_: Sequence[tuple[str, int]],
        *,
        grant: Grant | None = None,
        held: bool = False,
    ) -> list[RetryEntry]:
        """The whole entries of these (key, failure) rows that still carry that failure; held ones only with *held*."""
        # The lease is looked at in the same statement, and not locked: a holder that is stopped while it reads
        # 16 MiB of bodies would hold its lock for as long, and nothing is changed here.
        states = "" if held else " AND state <> 'held'"
        lease = ""
        values: tuple[Any, ...] = ()
        if grant is not None:
            lease = " AND EXISTS (SELECT 1 FROM lease WHERE name = %s AND holder = %s AND term = %s)"
            values = (exact(grant.lease), exact(grant.holder), grant.term)
        found = await self.connections.fetch(
            f"SELECT {RETRY_WHOLE}, epoch_now() FROM retry WHERE namespace = %s AND key = ANY(%s::text[])"
            f"{states}{lease}",
            (exact(namespace), [exact(key) for key, _ in rows_], *values),
        )
        there = {(row[1], row[2]): row for row in found}
        taken = [row for key, failure in rows_ if (row := there.get((exact(key), failure))) is not None]
        if grant is not None and len(taken) < max(1, len(rows_)):
            await lost(self.connections, grant)
        return [rows.retry_of(row[:-1], row[-1], text_of) for row in taken]

    async def remove(
        self, namespace: str, rows_: Sequence[tuple[str, int]], *, grant: Grant | None = None
    ) -> int:
        """Delete these (key, failure) rows, those that still carry that failure. Returns how many."""
        return await self._guarded(
            "DELETE FROM retry USING unnest(%s::text[], %s::bigint[]) AS given (key, failure)"
            " WHERE EXISTS (SELECT 1 FROM held)"
            " AND namespace = %s AND retry.key = given.key AND retry.failure = given.failure",
            (*_keys(rows_), exact(namespace)),
            grant,
        )

    async def postpone(
        self,
        namespace: str,
        rows_: Sequence[tuple[str, int]],
        *,
        seconds: float,
        blocked: str | None = None,
        grant: Grant | None = None,
    ) -> None:
        """Try these rows again after so many seconds; `due_at` stays. *blocked*: the reason that listings show."""
        state, reason = ("waiting", "") if blocked is None else ("blocked", shown(blocked))
        await self._guarded(
            "UPDATE retry SET try_at = epoch_now() + %s::float8, state = %s, state_reason = %s"
            " FROM unnest(%s::text[], %s::bigint[]) AS given (key, failure)"
            " WHERE EXISTS (SELECT 1 FROM held) AND namespace = %s"
            " AND retry.key = given.key AND retry.failure = given.failure AND state <> 'held'",
            (seconds, state, reason, *_keys(rows_), exact(namespace)),
            grant,
        )

    async def unblock(self, namespace: str, queue: str, *, grant: Grant | None = None) -> int:
        """Let every blocked row of that queue be tried at once. Returns how many."""
        held, proof = guard(grant)
        # The state is asked for in words that no index serves: rows are found by key, not by going through all blocked.
        sql = (
            f"WITH {held}, blocked AS MATERIALIZED ("
            " SELECT namespace, key FROM retry WHERE namespace = %s AND queue = %s AND state = 'blocked' LIMIT %s),"
            " released AS (UPDATE retry SET state = 'waiting', state_reason = '', try_at = due_at FROM blocked"
            " WHERE EXISTS (SELECT 1 FROM held) AND retry.namespace = blocked.namespace AND retry.key = blocked.key"
            " AND state || '' = 'blocked' RETURNING 1)"
            " SELECT (SELECT count(*) FROM blocked), (SELECT count(*) FROM released)"
        )
        values = (*proof, exact(namespace), exact(queue), UNBLOCKED_AT_ONCE)
        total: int = 0
        while True:
            ((found, released),) = await self.connections.fetch(sql, values)
            if not released and grant is not None:
                await lost(self.connections, grant)
            total += released
            if found < UNBLOCKED_AT_ONCE:
                return total

    async def reschedule(
        self, rows_: Sequence[tuple[str, str]], *, due_at: float | None = None, wait: float | None = None
    ) -> int:
        """Set when these (namespace, key) rows are due: at a time, or so many seconds from now. Also unblocks them."""
        due_time(0.0, due_at=due_at, wait=wait)
        return await self.connections.change(
            "WITH clock AS MATERIALIZED (SELECT coalesce(%s::float8, epoch_now() + %s::float8) AS time)"
            " UPDATE retry SET due_at = time,"
            " try_at = CASE state WHEN 'held' THEN try_at ELSE time END,"
            " state_reason = CASE state WHEN 'held' THEN state_reason ELSE '' END,"
            " state = CASE state WHEN 'held' THEN state ELSE 'waiting' END"
            f" FROM clock, {_NAMED}",
            (due_at, wait, *_names(rows_)),
        )

    async def hold(self, rows_: Sequence[tuple[str, str]], *, held: bool, reason: str = "") -> int:
        """Hold these (namespace, key) rows, or release them. Held rows are never due. Returns how many changed."""
        if held:
            sql = f"SET state = 'held', state_reason = %s, try_at = 'Infinity' FROM {_NAMED} AND state <> 'held'"
        else:
            sql = (
                f"SET state = 'waiting', state_reason = %s, try_at = due_at FROM {_NAMED} AND state = 'held'"
            )
        return await self.connections.change(
            f"UPDATE retry {sql}",
            (shown(reason) if held else "", *_names(rows_)),
        )

    async def move(self, rows_: Sequence[tuple[str, str]], *, queue: str) -> int:
        """Let these (namespace, key) rows go to another queue; keys and retry ids stay. Also unblocks them."""
        return await self.connections.change(
            "UPDATE retry SET queue = %s, through_exchange = false,"
            " try_at = CASE state WHEN 'blocked' THEN due_at ELSE try_at END,"
            " state_reason = CASE state WHEN 'blocked' THEN '' ELSE state_reason END,"
            " state = CASE state WHEN 'blocked' THEN 'waiting' ELSE state END"
            f" FROM {_NAMED}",
            (exact(queue), *_names(rows_)),
        )

    async def bury(
        self, rows_: Sequence[tuple[str, int]], letters: Sequence[DeadLetter], *, grant: Grant | None = None
    ) -> list[bool]:
        """Turn each (key, failure) row, of its letter's namespace, into that dead letter, in one transaction."""
        held, values = guard(grant)
        sql = (
            f"WITH {held}, given AS MATERIALIZED ("
            f" SELECT * FROM unnest({LETTER_COLUMNS.arrays}, %s::text[], %s::bigint[], %s::bigint[])"
            f" AS given ({LETTER_COLUMNS.names}, given_key, given_failure, number)),"
            " gone AS (DELETE FROM retry USING given WHERE EXISTS (SELECT 1 FROM held)"
            " AND retry.namespace = given.namespace AND key = given_key AND retry.failure = given_failure"
            " RETURNING number),"
            f" kept AS (INSERT INTO dead_letter ({LETTER_COLUMNS.names}) SELECT {LETTER_COLUMNS.names} FROM given"
            " WHERE number IN (SELECT number FROM gone) ON CONFLICT DO NOTHING)"
            " SELECT number FROM gone"
        )
        rows_of_letters = [
            (*folded(rows.letter_row(letter, exact), LETTER_REASON), exact(key), failure, number)
            for number, ((key, failure), letter) in enumerate(zip(rows_, letters, strict=True))
        ]

        statements = list(portions(rows_of_letters, LETTER_BODY))

        async def ask(connection: Connection) -> set[int]:
            there: set[int] = set()
            async with connection.transaction() if len(statements) > 1 else nullcontext():
                for portion in statements:
                    found = await connection.execute(sql, (*values, *arrays(portion)))
                    there.update(number for (number,) in await found.fetchall())
            return there

        there = await self.connections.run(ask)
        if grant is not None and len(there) < max(1, len(rows_)):
            await lost(self.connections, grant)
        return [number in there for number in range(len(rows_))]

    async def entries(
        self, wanted: Filter, *, limit: int, after: str | None = None
    ) -> tuple[list[RetryEntry], str | None]:
        """A page of what waits, the next due first, without bodies; and a cursor for the next page, or None."""
        time, namespace, key = (-NEVER, "", "") if after is None else cursors.read(after)
        asked = condition(wanted, RETRIES, DIALECT, namespace=False)
        # At the very time of the cursor, namespaces before its own are done with, and those behind it are not.
        found = await self.connections.fetch(
            f"""
            WITH RECURSIVE {NAMESPACES_OF.format(table="retry")}
            SELECT waiting.*, epoch_now() FROM (
                SELECT namespace AS name FROM of_retry WHERE %s::text IS NULL
                UNION ALL SELECT %s::text COLLATE "C" WHERE %s::text IS NOT NULL
            ) AS names CROSS JOIN LATERAL (
                SELECT {RETRY} FROM retry WHERE {asked.namespace} = name AND (try_at, key) > (%s::float8,
                    CASE WHEN name = %s THEN %s WHEN name > %s THEN '' ELSE %s END) AND {asked.sql}
                ORDER BY try_at, key LIMIT %s
            ) AS waiting ORDER BY try_at, namespace, key LIMIT %s
            """,
            (
                *[None if wanted.namespace is None else exact(wanted.namespace)] * 3,
                *(time, exact(namespace), exact(key), exact(namespace), AFTER_ALL),
                *(*asked.values, limit + 1, limit + 1),
            ),
        )
        page = [rows.retry_of(row[:-1], row[-1], text_of) for row in found[:limit]]
        more = (
            cursors.written(found[limit - 1][5], page[-1].namespace, page[-1].key)
            if len(found) > limit
            else None
        )
        return page, more

    async def count_entries(self, wanted: Filter, *, overdue: bool = False) -> int:
        """How many wait; *overdue*: only those whose time has come."""
        asked = condition(wanted, RETRIES, DIALECT)
        if overdue:
            asked.add("try_at <= (SELECT epoch_now())")
        found = await self.connections.fetch(f"SELECT count(*) FROM retry WHERE {asked.sql}", asked.values)
        return int(found[0][0])

    async def entry(self, namespace: str | None, id: str) -> RetryEntry | None:
        """One entry, with its body, by retry id or message id, or a unique ending of six characters or more."""
        asked = condition(Filter(namespace=namespace, ids=(id,)), RETRIES, DIALECT)
        found = await self.connections.fetch(
            f"SELECT namespace, key, retry_id FROM retry WHERE {asked.sql}",
            asked.values,
        )
        named = the_one("retries", id, [(row[:2], text_of(row[2]), text_of(row[1])) for row in found])
        if named is None:
            return None
        whole = await self.connections.fetch(
            f"SELECT {RETRY_WHOLE}, epoch_now() FROM retry WHERE namespace = %s AND key = %s",
            named,
        )
        # It may have gone in between.
        return rows.retry_of(whole[0][:-1], whole[0][-1], text_of) if whole else None

    async def _guarded(self, change: str, values: Sequence[Any], grant: Grant | None) -> int:
        """How many rows *change*, which looks at `held`, has changed."""
        held, proof = guard(grant)
        changed = await self.connections.change(f"WITH {held} {change}", (*proof, *values))
        if not changed and grant is not None:
            await lost(self.connections, grant)
        return changed


async def _put(connection: Connection, portion: Sequence[tuple[Any, ...]]) -> dict[tuple[str, str], Placed]:
    """Write rows, each of another key. Returns what became of each."""
    found = await connection.execute(_PUT, arrays(portion), binary=True)
    answers = {(namespace, key): Placed(True, due_in) for namespace, key, due_in in await found.fetchall()}
    left = [row[:2] for row in portion if row[:2] not in answers]
    if left:
        # Only told, not changed: what happens in between does not matter.
        found = await connection.execute(_WAITS, arrays(left), binary=True)
        answers |= {
            (namespace, key): Placed(False, due_in) for namespace, key, due_in in await found.fetchall()
        }
    return answers


#: Rows by namespace and key.
_NAMED = (
    "unnest(%s::text[], %s::text[]) AS given (namespace, key)"
    " WHERE retry.namespace = given.namespace AND retry.key = given.key"
)


def _names(rows_: Iterable[tuple[str, str]]) -> list[list[str]]:
    named = [(exact(namespace), exact(key)) for namespace, key in rows_]
    return [[namespace for namespace, _ in named], [key for _, key in named]]


def _keys(rows_: Iterable[tuple[str, int]]) -> list[list[Any]]:
    keyed = [(exact(key), failure) for key, failure in rows_]
    return [[key for key, _ in keyed], [failure for _, failure in keyed]]
