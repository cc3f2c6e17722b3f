"""Dead letters in PostgreSQL. Nothing here deletes."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Final

from leveret.core.dead_letter import LetterGroup
from leveret.core.errors import NotFound
from leveret.core.retry_entry import Filter
from leveret.stores import cursors
from leveret.stores.endings import the_one
from leveret.stores.intake import with_new_body
from leveret.stores.postgres.columns import (
    AFTER_ALL,
    DIALECT,
    LETTER_BODY,
    LETTER_COLUMNS,
    LETTER_REASON,
    arrays,
    exact,
    folded,
    portions,
    text_of,
)
from leveret.stores.postgres.lease import guard, lost
from leveret.stores.postgres.namespaces import NAMESPACES_OF
from leveret.stores.sql import rows
from leveret.stores.sql.filters import LETTERS, condition
from leveret.stores.sql.rows import LETTER, LETTER_WHOLE, NEVER, replays_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leveret.core.dead_letter import DeadLetter, LetterState, Replay
    from leveret.ports import Grant
    from leveret.stores.postgres.connections import Connection, Connections

#: Stores letters; one that is there already is left as it is.
_KEEP: Final = (
    f"INSERT INTO dead_letter ({LETTER_COLUMNS.names}) SELECT * FROM unnest({LETTER_COLUMNS.arrays})"
    " ON CONFLICT DO NOTHING"
)

#: The letters that a fresh claim takes. Those that another claim is just taking are passed over, not waited for.
_CLAIM: Final = """
    WITH {held}, chosen AS MATERIALIZED (
        SELECT namespace, id FROM dead_letter
        WHERE EXISTS (SELECT 1 FROM held) AND state = 'dead' AND {asked}
        ORDER BY died_at, namespace, id LIMIT %s FOR UPDATE SKIP LOCKED
    )
    UPDATE dead_letter SET state = 'claimed', replay_id = %s FROM chosen
    WHERE dead_letter.namespace = chosen.namespace AND dead_letter.id = chosen.id
    RETURNING {letter}
"""


class PostgresLetters:
    """The dead-letter part of the PostgreSQL store."""

    connections: Connections

    async def keep(self, letters: Sequence[DeadLetter]) -> int:
        """Store letters; an id that is there already is left as it is. Returns how many were new."""
        # Everybody writes ids in one order, so that nobody waits in a circle.
        given = sorted((_row(letter) for letter in letters), key=lambda row: row[:2])

        given_portions = list(portions(given, LETTER_BODY))

        async def ask(connection: Connection) -> int:
            async with connection.transaction() if len(given_portions) > 1 else nullcontext():
                return sum([await _keep(connection, portion) for portion in given_portions])

        return await self.connections.run(ask)

    async def letters(
        self,
        wanted: Filter,
        *,
        limit: int,
        after: str | None = None,
        states: Sequence[LetterState] = ("dead",),
    ) -> tuple[list[DeadLetter], str | None]:
        """A page of letters, the newest first, without bodies; and a cursor for the next page, or None."""
        time, namespace, id = (NEVER, "", "") if after is None else cursors.read(after)
        asked = condition(wanted, LETTERS, DIALECT, namespace=False)
        # At the very time of the cursor, namespaces behind its own are done with, and those before it are not.
        found = await self.connections.fetch(
            f"""
            WITH RECURSIVE {NAMESPACES_OF.format(table="dead_letter")}
            SELECT lying.* FROM (
                SELECT namespace AS name FROM of_dead_letter WHERE %s::text IS NULL
                UNION ALL SELECT %s::text COLLATE "C" WHERE %s::text IS NOT NULL
            ) AS names CROSS JOIN unnest(%s::text[]) AS wanted (wanted_state) CROSS JOIN LATERAL (
                SELECT {LETTER} FROM dead_letter WHERE {asked.namespace} = name AND state = wanted_state
                AND (died_at, id) < (%s::float8, CASE WHEN name = %s THEN %s WHEN name < %s THEN %s ELSE '' END)
                AND {asked.sql} ORDER BY died_at DESC, id DESC LIMIT %s
            ) AS lying ORDER BY died_at DESC, namespace DESC, id DESC LIMIT %s
            """,
            (
                *[None if wanted.namespace is None else exact(wanted.namespace)] * 3,
                list(dict.fromkeys(states)),
                *(time, exact(namespace), exact(id), exact(namespace), AFTER_ALL),
                *(*asked.values, limit + 1, limit + 1),
            ),
        )
        page = [rows.letter_of(row, text_of) for row in found[:limit]]
        last = page[-1] if len(found) > limit else None
        return page, None if last is None else cursors.written(last.died_at, last.namespace, last.id)

    async def count_letters(self, wanted: Filter, *, states: Sequence[LetterState] = ("dead",)) -> int:
        """How many there are."""
        asked = condition(wanted, LETTERS, DIALECT)
        asked.add("state = ANY(%s::text[])", list(states))
        found = await self.connections.fetch(
            f"SELECT count(*) FROM dead_letter WHERE {asked.sql}",
            asked.values,
        )
        return int(found[0][0])

    async def groups(self, wanted: Filter) -> list[LetterGroup]:
        """Dead letters by fingerprint, the largest group first."""
        asked = condition(wanted, LETTERS, DIALECT)
        asked.add("state = 'dead'")
        found = await self.connections.fetch(
            f"""
            SELECT * FROM (
                SELECT fingerprint, count(*), min(died_at), max(died_at) FROM dead_letter WHERE {asked.sql} GROUP BY 1
            ) AS kinds JOIN (
                SELECT DISTINCT ON (fingerprint) fingerprint, worker, error, reason FROM dead_letter WHERE {asked.sql}
                ORDER BY fingerprint, died_at DESC
            ) AS newest USING (fingerprint)
            """,
            (*asked.values, *asked.values),
        )
        groups = [
            LetterGroup(
                fingerprint=row[0],
                count=row[1],
                first_died_at=row[2],
                last_died_at=row[3],
                worker=row[4],
                error=row[5],
                reason=row[6],
            )
            for row in found
        ]
        return sorted(groups, key=lambda group: (-group.count, -group.last_died_at, group.fingerprint))

    async def letter(self, namespace: str | None, id: str) -> DeadLetter | None:
        """One letter in any state, with its body, by letter id or message id, or a unique ending of six or more."""
        asked = condition(Filter(namespace=namespace, ids=(id,)), LETTERS, DIALECT)
        found = await self.connections.fetch(
            f"SELECT namespace, id, state FROM dead_letter WHERE {asked.sql}",
            asked.values,
        )
        named = the_one("dead letters", id, [(row[:2], text_of(row[1]), row[2]) for row in found])
        if named is None:
            return None
        (whole,) = await self.connections.fetch(
            f"SELECT {LETTER_WHOLE} FROM dead_letter WHERE namespace = %s AND id = %s",
            named,
        )
        return rows.letter_of(whole, text_of)

    async def claim(
        self, wanted: Filter, *, replay_id: str, limit: int, grant: Grant | None = None
    ) -> list[DeadLetter]:
        """Take up to *limit* dead letters for a replay, the oldest first, whole. No two claims get the same one.

        Those that this same replay claimed before and did not report come first, `claimed`; the others are `dead`.
        """
        held, proof = guard(grant)
        asked = condition(wanted, LETTERS, DIALECT)
        letter = ", ".join(f"dead_letter.{name.strip()}" for name in LETTER_WHOLE.split(","))
        sql = _CLAIM.format(held=held, asked=asked.sql, letter=letter)

        async def ask(connection: Connection) -> list[DeadLetter]:
            again = await connection.execute(
                f"SELECT {LETTER_WHOLE} FROM dead_letter WHERE replay_id = %s AND state = 'claimed'"
                " ORDER BY died_at, namespace, id LIMIT %s",
                (exact(replay_id), limit),
                binary=True,
            )
            claimed = [rows.letter_of(row, text_of) for row in await again.fetchall()]
            values = (*proof, *asked.values, limit - len(claimed), exact(replay_id))
            found = await connection.execute(sql, values, binary=True)
            fresh = [(*row[:2], "dead", *row[3:]) for row in await found.fetchall()]
            fresh.sort(key=lambda row: (row[3], row[0], row[1]))
            return claimed + [rows.letter_of(row, text_of) for row in fresh]

        claimed = await self.connections.run(ask)
        if grant is not None and not any(letter.state == "dead" for letter in claimed):
            await lost(self.connections, grant)
        return claimed

    async def replayed(
        self, letters: Sequence[tuple[str, str]], replay: Replay, *, state: LetterState
    ) -> int:
        """Note the outcome on these (namespace, id) letters; set the state of those no other replay has claimed."""
        note = replays_text([replay])
        return await self.connections.change(
            # The notes are JSON lists without blanks at their ends: one list goes on where the other began.
            "UPDATE dead_letter SET"
            " replays = CASE replays WHEN '[]' THEN %s ELSE \"left\"(replays, -1) || ', ' || substr(%s, 2) END,"
            " state = CASE WHEN state = 'claimed' AND replay_id <> %s THEN state ELSE %s END,"
            " replay_id = CASE WHEN state = 'claimed' AND replay_id <> %s THEN replay_id ELSE '' END"
            " FROM unnest(%s::text[], %s::text[]) AS given (namespace, id)"
            " WHERE dead_letter.namespace = given.namespace AND dead_letter.id = given.id",
            (
                *(note, note, exact(replay.replay_id), state, exact(replay.replay_id)),
                [exact(namespace) for namespace, _ in letters],
                [exact(id) for _, id in letters],
            ),
        )

    async def set_state(self, wanted: Filter, *, was: LetterState, to: LetterState) -> int:
        """Discard (dead → discarded) or restore (discarded → dead, also replayed → dead). Returns how many."""
        asked = condition(wanted, LETTERS, DIALECT)
        asked.add("state = %s", was)
        return await self.connections.change(
            f"UPDATE dead_letter SET state = %s, replay_id = '' WHERE {asked.sql}",
            (to, *asked.values),
        )

    async def edit(self, namespace: str, id: str, body: bytes) -> DeadLetter:
        """Keep a dead letter under a new body; the old body stays as a discarded letter that names it."""
        named = (exact(namespace), exact(id))

        async def ask(connection: Connection) -> DeadLetter:
            async with connection.transaction():
                found = await connection.execute(
                    f"SELECT {LETTER_WHOLE} FROM dead_letter WHERE namespace = %s AND id = %s FOR UPDATE",
                    named,
                    binary=True,
                )
                row = await found.fetchone()
                if row is None:
                    raise NotFound(f"there is no dead letter {id!r} in namespace {namespace!r}")
                edited, old = with_new_body(rows.letter_of(row, text_of), body)
                await _keep(connection, [_row(old)])
                await connection.execute(
                    "UPDATE dead_letter SET body = %b, size = %s WHERE namespace = %s AND id = %s",
                    (edited.body, edited.size, *named),
                )
                return edited

        return await self.connections.run(ask)


def _row(letter: DeadLetter) -> tuple[Any, ...]:
    return folded(rows.letter_row(letter, exact), LETTER_REASON)


async def _keep(connection: Connection, given: Sequence[tuple[Any, ...]]) -> int:
    return (await connection.execute(_KEEP, arrays(given))).rowcount
