"""Acts on what waits: written into the store by whoever asks, obeyed by the holder of the lease (O1)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from leveret.core import envelope
from leveret.core.errors import LeaseLost, LeveretError, StoreUnavailable
from leveret.core.retry_entry import Due, RetryEntry
from leveret.pipeline.parts import Parts
from leveret.ports import Acknowledged, Act, Grant
from leveret.retry.asking import filter_of
from leveret.retry.dispatch import Dispatch

VERBS: Final = (
    "retries.now", "retries.cancel", "retries.reschedule", "retries.hold", "retries.release", "retries.move",
)  # fmt: skip

#: A row that is put again after these would be there once more, or be sent to where it was.
_NOT_WHILE_STORED: Final = ("retries.cancel", "retries.move")

#: Rows that are changed in one transaction.
BATCH = 500
#: So many times an act without an answer keeps those behind it waiting.
WAITED_FOR = 3


class Unanswered:
    """Acts that the store did not answer for, and how often.

    Those behind one wait, as they may be meant to undo it; but not for ever: it may be this one alone that the store
    never answers for.
    """

    def __init__(self) -> None:
        self._times: Counter[str] = Counter()

    async def in_turn(self, acts: Sequence[Act], obey: Callable[[Act], Awaitable[object]]) -> None:
        """Obey these in their order.

        Raises:
            StoreUnavailable: it did not answer for one; those behind it were obeyed where that has happened often.
        """
        self._times = Counter({act.id: self._times[act.id] for act in acts})
        unanswered: StoreUnavailable | None = None
        for act in acts:
            try:
                await obey(act)
            except StoreUnavailable as error:
                self._times[act.id] += 1
                if self._times[act.id] < WAITED_FOR:
                    raise
                unanswered = error
        if unanswered is not None:
            raise unanswered


class RetryActs:
    """Obeys acts on retries."""

    def __init__(self, parts: Parts, dispatch: Dispatch | None) -> None:
        self._parts = parts
        self._store = parts.store
        #: None where the acts are done without republishing (`--here`).
        self._dispatch = dispatch
        self._namespace = parts.names.namespace
        self._unanswered = Unanswered()

    async def obey(self, grant: Grant) -> int:
        """Do what was asked and is not done yet. Returns how many acts.

        Raises:
            StoreUnavailable: it did not answer for all; those that it did not answer for stay written.
        """
        acts = await self._store.asked(self._namespace, VERBS)
        await self._unanswered.in_turn(acts, lambda act: self._obey(act, grant))
        return len(acts)

    async def _obey(self, act: Act, grant: Grant) -> None:
        try:
            report = await self._do(act, grant)
        except (StoreUnavailable, LeaseLost):
            # It stays written; whoever holds the lease then does it.
            raise
        except (LeveretError, ValueError, TypeError, KeyError) as error:
            report = Acknowledged(self._parts.holder, 0, 0, (f"could not be done: {error}",), True)
        await self._store.report(act.id, report)

    async def _do(self, act: Act, grant: Grant) -> Acknowledged:
        wanted = filter_of(act.arguments, self._namespace)
        if not wanted.names_something:
            return Acknowledged(
                self._parts.holder, 0, 0, ("it names no retries; acts never take nothing",), True
            )
        asked = done = late = early = 0
        after: str | None = None
        chosen: list[RetryEntry] = []
        lost: list[RetryEntry] = []
        # Chosen first, changed after: what is changed moves in the order that is paged through.
        while True:
            page, after = await self._store.entries(wanted, limit=BATCH, after=after)
            chosen += page
            if after is None:
                break
        for start in range(0, len(chosen), BATCH):
            batch = chosen[start : start + BATCH]
            asked += len(batch)
            under_way = self._dispatch.lines.under_way if self._dispatch is not None else set()
            free = [entry for entry in batch if entry.key not in under_way and not self._went_out(entry)]
            late += len(batch) - len(free)
            if act.verb in _NOT_WHILE_STORED:
                answered = [entry for entry in free if not self._being_stored(entry)]
                early += len(free) - len(answered)
                free = answered
            # Ours while they are changed: none goes out between the look and the change.
            ours = {entry.key for entry in free}
            under_way |= ours
            try:
                done += await self._change(act, free, grant, lost)
            finally:
                under_way -= ours
        notes = []
        if late:
            notes.append(f"{late} too late: being published at this moment")
        if early:
            notes.append(f"{early} too early: being stored at this moment")
        if lost:
            notes.append(f"{len(lost)} could not be done: {lost[0].state_reason}")
        if gone := asked - late - early - len(lost) - done:
            notes.append(f"{gone} no longer waiting")
        return Acknowledged(self._parts.holder, asked, done, tuple(notes), True)

    def _went_out(self, entry: RetryEntry) -> bool:
        """Whether it was published already, and only its row is still there."""
        return self._dispatch is not None and self._dispatch.went_out(entry.key, entry.failure)

    def _being_stored(self, entry: RetryEntry) -> bool:
        return self._dispatch is not None and self._dispatch.being_stored(entry.key, entry.failure)

    async def _change(self, act: Act, batch: list[RetryEntry], grant: Grant, lost: list[RetryEntry]) -> int:
        """Do it with these rows; those that are not whole, where they would have to be, are added to *lost*."""
        rows = [(entry.namespace, entry.key) for entry in batch]
        if not rows:
            return 0
        match act.verb:
            case "retries.cancel":
                return await self._cancel(batch, act, grant, lost)
            case "retries.now":
                done = await self._store.reschedule(rows, wait=0.0)
                self._scheduled(batch, 0.0)
            case "retries.reschedule":
                due_at = act.arguments.get("due_at")
                wait = act.arguments.get("wait")
                done = await self._store.reschedule(rows, due_at=due_at, wait=wait)
                seconds = due_at - self._parts.world.clock.now() if due_at is not None else float(wait or 0.0)
                self._scheduled(batch, max(0.0, seconds))
            case "retries.hold":
                self._forget(batch)
                done = await self._store.hold(
                    rows, held=True, reason=str(act.arguments.get("why", "by hand"))
                )
            case "retries.release":
                done = await self._store.hold(rows, held=False)
                self._look_again()
            case "retries.move":
                done = await self._store.move(rows, queue=str(act.arguments["queue"]))
                self._look_again()
            case _:
                raise ValueError(f"{act.verb!r} is no act on retries")
        return done

    def _forget(self, batch: list[RetryEntry]) -> None:
        if self._dispatch is not None:
            for entry in batch:
                self._dispatch.forget(entry.key)

    def _look_again(self) -> None:
        if self._dispatch is not None:
            self._dispatch.rescan()

    def _scheduled(self, batch: list[RetryEntry], due_in: float) -> None:
        self._forget(batch)
        for entry in batch:
            if entry.state != "held" and self._dispatch is not None:
                self._dispatch.add(Due(entry.key, entry.failure, due_in, entry.queue, entry.size))

    async def _cancel(self, batch: list[RetryEntry], act: Act, grant: Grant, lost: list[RetryEntry]) -> int:
        """To the dead letters, with the reason `cancelled`: in one transaction, so it is in one place at any time."""
        rows = [(entry.key, entry.failure) for entry in batch]
        taken = await self._store.take(self._namespace, rows, grant=grant, held=True)
        whole = [entry for entry in taken if entry.body is not None]
        lost += [entry for entry in taken if entry.body is None]
        why = str(act.arguments.get("why") or "cancelled")
        letters = [
            envelope.letter_of_entry(
                entry, ending="cancelled", reason=why, letter_id=self._parts.world.new_id(),
                now=self._parts.world.clock.now(),
            )
            for entry in whole
        ]  # fmt: skip
        gone = await self._store.bury([(entry.key, entry.failure) for entry in whole], letters, grant=grant)
        # What is lost is still due; it is held when its time comes.
        still = {entry.key for entry in lost}
        self._forget([entry for entry in batch if entry.key not in still])
        return sum(gone)
