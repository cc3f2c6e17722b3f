"""What people asked for, and how often flagged deliveries were started, in memory."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

from leveret.stores.acts import REPORTS_KEPT, act_arguments, no_such_act

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from leveret.ports import Acknowledged, Act, Clock
    from leveret.stores.memory.data import MemoryData


class MemoryActs:
    """Acts and start counts of the memory store."""

    clock: Clock
    _open: Callable[[], MemoryData]

    async def ask(self, act: Act) -> None:
        """Write an act; one with an id that is there already is left as it is."""
        data = self._open()
        # Through JSON, as in every other store: what it cannot carry is refused, and nothing is shared with the caller.
        data.acts.setdefault(act.id, replace(act, arguments=json.loads(act_arguments(act)), report=None))
        self._forget_old()

    async def asked(self, namespace: str, verbs: Sequence[str]) -> list[Act]:
        """Acts that nobody has finished, oldest first."""
        data = self._open()
        found = (
            act
            for act in data.acts.values()
            if act.namespace == namespace and act.verb in verbs and act.id not in data.finished
        )
        return sorted(found, key=lambda act: act.asked_at)

    async def report(self, act_id: str, report: Acknowledged) -> None:
        """Say what became of an act. Reports of finished acts are kept for a day.

        Raises:
            NotFound: there is no such act.
        """
        data = self._open()
        if act_id not in data.acts:
            raise no_such_act(act_id)
        data.acts[act_id] = replace(data.acts[act_id], report=report)
        data.finished.pop(act_id, None)
        if report.finished:
            data.finished[act_id] = self.clock.now()
        self._forget_old()

    async def act(self, act_id: str) -> Act | None:
        """An act with its newest report."""
        return self._open().acts.get(act_id)

    async def count_start(self, namespace: str, queue: str, message: str) -> int:
        """One more start of that message; returns how many there were."""
        starts = self._open().starts
        starts[namespace, queue, message] = starts.get((namespace, queue, message), 0) + 1
        return starts[namespace, queue, message]

    async def forget_starts(self, namespace: str, queue: str, messages: Sequence[str]) -> None:
        """These were settled."""
        for message in messages:
            self._open().starts.pop((namespace, queue, message), None)

    def _forget_old(self) -> None:
        data, oldest = self._open(), self.clock.now() - REPORTS_KEPT
        for act_id in [act_id for act_id, finished_at in data.finished.items() if finished_at < oldest]:
            del data.finished[act_id], data.acts[act_id]
