"""Dead letters in SQLite. Nothing here deletes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leveret.core.dead_letter import LetterGroup
from leveret.core.errors import NotFound
from leveret.core.retry_entry import Filter
from leveret.stores import cursors
from leveret.stores.endings import the_one
from leveret.stores.intake import with_new_body
from leveret.stores.sql.filters import LETTERS, condition
from leveret.stores.sql.rows import (
    LETTER,
    LETTER_WHOLE,
    NEVER,
    letter_of,
    letter_row,
    replays_of,
    replays_text,
)
from leveret.stores.sqlite.columns import AFTER_ALL, DIALECT, KEEP_LETTER, exact, place_of, text_of
from leveret.stores.sqlite.lease import check_grant
from leveret.stores.sqlite.namespaces import namespaces_of

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Sequence

    from leveret.core.dead_letter import DeadLetter, LetterState, Replay
    from leveret.ports import Grant
    from leveret.stores.sqlite.file import SqliteFile


class SqliteLetters:
    """The dead-letter part of the SQLite store."""

    file: SqliteFile

    async def keep(self, letters: Sequence[DeadLetter]) -> int:
        """Store letters; an id that is there already is left as it is. Returns how many were new."""

        def ask(connection: sqlite3.Connection) -> int:
            return sum(
                connection.execute(KEEP_LETTER, letter_row(letter, exact)).rowcount for letter in letters
            )

        return await self.file.write(ask)

    async def letters(
        self,
        wanted: Filter,
        *,
        limit: int,
        after: str | None = None,
        states: Sequence[LetterState] = ("dead",),
    ) -> tuple[list[DeadLetter], str | None]:
        """A page of letters, the newest first, without bodies; and a cursor for the next page, or None."""
        start = (NEVER, "", "") if after is None else cursors.read(after)

        def ask(connection: sqlite3.Connection) -> tuple[list[DeadLetter], str | None]:
            asked = condition(wanted, LETTERS, DIALECT, namespace=False)
            sql = (
                f"SELECT {LETTER} FROM dead_letter"  # noqa: S608
                f" WHERE {asked.namespace} = ? AND state = ? AND (died_at, id) < (?, ?) AND {asked.sql}"
                " ORDER BY died_at DESC, id DESC LIMIT ?"
            )
            rows: list[tuple[Any, ...]] = []
            for namespace in namespaces_of(connection, "dead_letter", wanted.namespace):
                # At the very time of the cursor, namespaces behind its own are done with, and those before it are not.
                id = exact(start[2]) if namespace == start[1] else AFTER_ALL if namespace < start[1] else ""
                for state in dict.fromkeys(states):
                    values = (exact(namespace), state, start[0], id, *asked.values, limit + 1)
                    rows += connection.execute(sql, values)
            rows.sort(key=lambda row: (row[3], place_of(row[0]), place_of(row[1])), reverse=True)
            page = [letter_of(row, text_of) for row in rows[:limit]]
            last = page[-1] if len(rows) > limit else None
            return page, None if last is None else cursors.written(last.died_at, last.namespace, last.id)

        return await self.file.read(ask)

    async def count_letters(self, wanted: Filter, *, states: Sequence[LetterState] = ("dead",)) -> int:
        """How many there are."""

        def ask(connection: sqlite3.Connection) -> int:
            asked = condition(wanted, LETTERS, DIALECT, namespace=False)
            sql = (
                f"SELECT count(*) FROM dead_letter WHERE {asked.namespace} = ? AND state = ? AND {asked.sql}"  # noqa: S608
            )
            return sum(
                connection.execute(sql, (exact(namespace), state, *asked.values)).fetchone()[0]
                for namespace in namespaces_of(connection, "dead_letter", wanted.namespace)
                for state in dict.fromkeys(states)
            )

        return await self.file.read(ask)

    async def groups(self, wanted: Filter) -> list[LetterGroup]:
        """Dead letters by fingerprint, the largest group first."""

        def ask(connection: sqlite3.Connection) -> list[LetterGroup]:
            asked = condition(wanted, LETTERS, DIALECT)
            asked.add("state = 'dead'")
            # With max() as the only extreme, SQLite takes the other columns from the row that has it: the newest.
            newest = connection.execute(
                "SELECT fingerprint, worker, error, reason, count(*), max(died_at) FROM dead_letter"  # noqa: S608
                f" WHERE {asked.sql} GROUP BY fingerprint",
                asked.values,
            ).fetchall()
            first = dict(
                connection.execute(
                    f"SELECT fingerprint, min(died_at) FROM dead_letter WHERE {asked.sql} GROUP BY fingerprint",  # noqa: S608
                    asked.values,
                ).fetchall()
            )
            groups = [
                LetterGroup(
                    fingerprint=row[0],
                    worker=row[1],
                    error=row[2],
                    reason=row[3],
                    count=row[4],
                    first_died_at=first[row[0]],
                    last_died_at=row[5],
                )
                for row in newest
            ]
            return sorted(groups, key=lambda group: (-group.count, -group.last_died_at, group.fingerprint))

        return await self.file.read(ask)

    async def letter(self, namespace: str | None, id: str) -> DeadLetter | None:
        """One letter in any state, with its body, by letter id or message id, or a unique ending of six or more."""

        def ask(connection: sqlite3.Connection) -> DeadLetter | None:
            asked = condition(Filter(namespace=namespace, ids=(id,)), LETTERS, DIALECT)
            found = connection.execute(
                f"SELECT rowid, id, state FROM dead_letter WHERE {asked.sql}",  # noqa: S608
                asked.values,
            )
            rowid = the_one("dead letters", id, [(row[0], text_of(row[1]), row[2]) for row in found])
            return None if rowid is None else _whole(connection, rowid)

        return await self.file.read(ask)

    async def claim(
        self, wanted: Filter, *, replay_id: str, limit: int, grant: Grant | None = None
    ) -> list[DeadLetter]:
        """Take up to *limit* dead letters for a replay, the oldest first, whole. No two claims get the same one.

        Those that this same replay claimed before and did not report come first, `claimed`; the others are `dead`.
        """

        def ask(connection: sqlite3.Connection) -> list[DeadLetter]:
            check_grant(connection, grant)
            asked = condition(wanted, LETTERS, DIALECT, namespace=False)
            again = connection.execute(
                f"SELECT {LETTER_WHOLE} FROM dead_letter WHERE replay_id = ? AND state = 'claimed'"  # noqa: S608
                " ORDER BY died_at, namespace, id LIMIT ?",
                (exact(replay_id), limit),
            )
            claimed = [letter_of(row, text_of) for row in again]
            fresh: list[tuple[float, str, str, int]] = []
            sql = (
                "SELECT died_at, namespace, id, rowid FROM dead_letter"  # noqa: S608
                f" WHERE {asked.namespace} = ? AND state = 'dead' AND {asked.sql} ORDER BY died_at, id LIMIT ?"
            )
            for namespace in namespaces_of(connection, "dead_letter", wanted.namespace):
                found = connection.execute(sql, (exact(namespace), *asked.values, limit - len(claimed)))
                fresh += [(died_at, text_of(name), text_of(id), rowid) for died_at, name, id, rowid in found]
            for *_, rowid in sorted(fresh)[: limit - len(claimed)]:
                claimed.append(_whole(connection, rowid))
                connection.execute(
                    "UPDATE dead_letter SET state = 'claimed', replay_id = ? WHERE rowid = ?",
                    (exact(replay_id), rowid),
                )
            return claimed

        return await self.file.write(ask)

    async def replayed(
        self, letters: Sequence[tuple[str, str]], replay: Replay, *, state: LetterState
    ) -> int:
        """Note the outcome on these (namespace, id) letters; set the state of those no other replay has claimed."""

        def ask(connection: sqlite3.Connection) -> int:
            noted = 0
            for namespace, id in letters:
                named = (exact(namespace), exact(id))
                row = connection.execute(
                    "SELECT replays FROM dead_letter WHERE namespace = ? AND id = ?", named
                ).fetchone()
                if row is not None:
                    noted += connection.execute(
                        "UPDATE dead_letter SET replays = ?,"
                        " state = CASE WHEN state = 'claimed' AND replay_id <> ? THEN state ELSE ? END,"
                        " replay_id = CASE WHEN state = 'claimed' AND replay_id <> ? THEN replay_id ELSE '' END"
                        " WHERE namespace = ? AND id = ?",
                        (
                            replays_text((*replays_of(row[0]), replay)),
                            exact(replay.replay_id),
                            state,
                            exact(replay.replay_id),
                            *named,
                        ),
                    ).rowcount
            return noted

        return await self.file.write(ask)

    async def set_state(self, wanted: Filter, *, was: LetterState, to: LetterState) -> int:
        """Discard (dead → discarded) or restore (discarded → dead, also replayed → dead). Returns how many."""

        def ask(connection: sqlite3.Connection) -> int:
            asked = condition(wanted, LETTERS, DIALECT)
            asked.add("state = ?", was)
            return connection.execute(
                f"UPDATE dead_letter SET state = ?, replay_id = '' WHERE {asked.sql}",  # noqa: S608
                (to, *asked.values),
            ).rowcount

        return await self.file.write(ask)

    async def edit(self, namespace: str, id: str, body: bytes) -> DeadLetter:
        """Keep a dead letter under a new body; the old body stays as a discarded letter that names it."""

        def ask(connection: sqlite3.Connection) -> DeadLetter:
            row = connection.execute(
                "SELECT rowid FROM dead_letter WHERE namespace = ? AND id = ?", (exact(namespace), exact(id))
            ).fetchone()
            if row is None:
                raise NotFound(f"there is no dead letter {id!r} in namespace {namespace!r}")
            edited, old = with_new_body(_whole(connection, row[0]), body)
            connection.execute(KEEP_LETTER, letter_row(old, exact))
            connection.execute(
                "UPDATE dead_letter SET body = ?, size = ? WHERE rowid = ?",
                (edited.body, edited.size, row[0]),
            )
            return edited

        return await self.file.write(ask)


def _whole(connection: sqlite3.Connection, rowid: int) -> DeadLetter:
    sql = f"SELECT {LETTER_WHOLE} FROM dead_letter WHERE rowid = ?"  # noqa: S608
    return letter_of(connection.execute(sql, (rowid,)).fetchone(), text_of)
