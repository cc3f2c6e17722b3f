"""What people asked for, and how often flagged deliveries were started, in PostgreSQL."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from leveret.core.errors import NotFound
from leveret.ports import Acknowledged, Act
from leveret.stores.intake import REPORTS_KEPT, act_arguments
from leveret.stores.postgres.columns import exact, text_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leveret.stores.postgres.connections import Connections

_ACT: Final = "id, namespace, verb, arguments, asked_at, report"
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
            f"SELECT {_ACT} FROM act WHERE namespace = %s AND finished_at IS NULL AND verb = ANY(%s::text[])"
            " ORDER BY asked_at, number",
            (exact(namespace), list(verbs)),
        )
        return [_act_of(row) for row in found]

    async def report(self, act_id: str, report: Acknowledged) -> None:
        """Say what became of an act. Reports of finished acts are kept for a day.

        Raises:
            NotFound: there is no such act.
        """
        if not await self.connections.change(
            f"{_CLEAN} UPDATE act SET report = %s, finished_at = CASE WHEN %s THEN epoch_now() END WHERE id = %s",
            (json.dumps(report._asdict()), report.finished, exact(act_id)),
        ):
            raise NotFound(
                f"there is no act {act_id!r}: it was finished more than a day ago, or never asked for here"
            )

    async def act(self, act_id: str) -> Act | None:
        """An act with its newest report."""
        found = await self.connections.fetch(f"SELECT {_ACT} FROM act WHERE id = %s", (exact(act_id),))
        return _act_of(found[0]) if found else None

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


def _act_of(row: tuple[Any, ...]) -> Act:
    report = None
    if row[5] is not None:
        said = json.loads(row[5])
        report = Acknowledged(**{**said, "notes": tuple(said["notes"])})
    return Act(
        id=text_of(row[0]),
        namespace=text_of(row[1]),
        verb=row[2],
        arguments=json.loads(row[3]),
        asked_at=row[4],
        report=report,
    )
