"""What people asked for, and how often flagged deliveries were started, in SQLite."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.stores.acts import REPORTS_KEPT, act_arguments, no_such_act, report_text
from leveret.stores.sql.rows import ACT, act_of
from leveret.stores.sqlite.columns import exact, text_of

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Sequence

    from leveret.ports import Acknowledged, Act, Clock
    from leveret.stores.sqlite.file import SqliteFile


class SqliteActs:
    """Acts and start counts of the SQLite store."""

    file: SqliteFile
    clock: Clock

    async def ask(self, act: Act) -> None:
        """Write an act; one with an id that is there already is left as it is."""
        row = (exact(act.id), exact(act.namespace), act.verb, act_arguments(act), act.asked_at)

        def ask(connection: sqlite3.Connection) -> None:
            connection.execute(
                "INSERT OR IGNORE INTO act (id, namespace, verb, arguments, asked_at) VALUES (?, ?, ?, ?, ?)",
                row,
            )
            connection.execute("DELETE FROM act WHERE finished_at < ?", (self.clock.now() - REPORTS_KEPT,))

        await self.file.write(ask)

    async def asked(self, namespace: str, verbs: Sequence[str]) -> list[Act]:
        """Acts that nobody has finished, oldest first."""

        def ask(connection: sqlite3.Connection) -> list[Act]:
            found = connection.execute(
                f"SELECT {ACT} FROM act WHERE namespace = ? AND finished_at IS NULL ORDER BY asked_at, rowid",  # noqa: S608
                (exact(namespace),),
            )
            return [act_of(row, text_of) for row in found if row[2] in verbs]

        return await self.file.read(ask)

    async def report(self, act_id: str, report: Acknowledged) -> None:
        """Say what became of an act. Reports of finished acts are kept for a day.

        Raises:
            NotFound: there is no such act.
        """
        text = report_text(report)

        def ask(connection: sqlite3.Connection) -> None:
            now = self.clock.now()
            found = connection.execute(
                "UPDATE act SET report = ?, finished_at = ? WHERE id = ?",
                (text, now if report.finished else None, exact(act_id)),
            ).rowcount
            if not found:
                raise no_such_act(act_id)
            connection.execute("DELETE FROM act WHERE finished_at < ?", (now - REPORTS_KEPT,))

        await self.file.write(ask)

    async def act(self, act_id: str) -> Act | None:
        """An act with its newest report."""

        def ask(connection: sqlite3.Connection) -> Act | None:
            row = connection.execute(f"SELECT {ACT} FROM act WHERE id = ?", (exact(act_id),)).fetchone()  # noqa: S608
            return None if row is None else act_of(row, text_of)

        return await self.file.read(ask)

    async def count_start(self, namespace: str, queue: str, message: str) -> int:
        """One more start of that message; returns how many there were."""
        named = (exact(namespace), exact(queue), exact(message))

        def ask(connection: sqlite3.Connection) -> int:
            connection.execute(
                "INSERT INTO start_count (namespace, queue, message, starts) VALUES (?, ?, ?, 1)"
                " ON CONFLICT (namespace, queue, message) DO UPDATE SET starts = starts + 1",
                named,
            )
            return int(
                connection.execute(
                    "SELECT starts FROM start_count WHERE namespace = ? AND queue = ? AND message = ?", named
                ).fetchone()[0]
            )

        return await self.file.write(ask)

    async def forget_starts(self, namespace: str, queue: str, messages: Sequence[str]) -> None:
        """These were settled."""

        def ask(connection: sqlite3.Connection) -> None:
            connection.executemany(
                "DELETE FROM start_count WHERE namespace = ? AND queue = ? AND message = ?",
                [(exact(namespace), exact(queue), exact(message)) for message in messages],
            )

        await self.file.write(ask)
