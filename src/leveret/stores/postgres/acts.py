"""What people asked for, and how often flagged deliveries were started, in PostgreSQL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from leveret.stores.acts import REPORTS_KEPT, act_arguments, no_such_act, report_text
from leveret.stores.postgres.columns import exact, text_of
from leveret.stores.sql.rows import ACT, act_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leveret.ports import Acknowledged, Act
    from leveret.stores.postgres.connections import Connections

#: Beside another statement: whoever writes throws away what is old.
_CLEAN: Final = f"WITH old AS (DELETE FROM act WHERE finished_at < (SELECT epoch_now()) - {REPORTS_KEPT:.0f})"


class PostgresActs:
    """Acts and start counts of the PostgreSQL store."""

    connections: Connections

    async def ask(self, act: Act) -> None:
        """Write an act; one with an id that is there already is left as it is."""
        await self.connections.change(
            f"{_CLEAN} INSERT INTO act (id, namespace, verb, arguments, asked_at) VALUES (%s, %s, %s, %s, %s)"
            " ON CONFLICT DO NOTHING",
            (exact(act.id), exact(act.namespace), act.verb, act_arguments(act), act.asked_at),
        )

    async def asked(self, namespace: str, verbs: Sequence[str]) -> list[Act]:
        """Acts that nobody has finished, oldest first."""
        found = await self.connections.fetch(
            f"SELECT {ACT} FROM act WHERE namespace = %s AND finished_at IS NULL AND verb = ANY(%s::text[])"
            " ORDER BY asked_at, number",
            (exact(namespace), list(verbs)),
        )
        return [act_of(row, text_of) for row in found]

    async def report(self, act_id: str, report: Acknowledged) -> None:
        """Say what became of an act. Reports of finished acts are kept for a day.

        Raises:
            NotFound: there is no such act.
        """
        if not await self.connections.change(
            f"{_CLEAN} UPDATE act SET report = %s, finished_at = CASE WHEN %s THEN epoch_now() END WHERE id = %s",
            (report_text(report), report.finished, exact(act_id)),
        ):
            raise no_such_act(act_id)

    async def act(self, act_id: str) -> Act | None:
        """An act with its newest report."""
        found = await self.connections.fetch(f"SELECT {ACT} FROM act WHERE id = %s", (exact(act_id),))
        return act_of(found[0], text_of) if found else None

    async def count_start(self, namespace: str, queue: str, message: str) -> int:
        """One more start of that message; returns how many there were."""
        found = await self.connections.fetch(
            "INSERT INTO start_count (namespace, queue, message, starts) VALUES (%s, %s, %s, 1)"
            " ON CONFLICT (namespace, queue, message) DO UPDATE SET starts = start_count.starts + 1 RETURNING starts",
            (exact(namespace), exact(queue), exact(message)),
        )
        return int(found[0][0])

    async def forget_starts(self, namespace: str, queue: str, messages: Sequence[str]) -> None:
        """These were settled."""
        await self.connections.change(
            "DELETE FROM start_count WHERE namespace = %s AND queue = %s AND message = ANY(%s::text[])",
            (exact(namespace), exact(queue), [exact(message) for message in messages]),
        )
