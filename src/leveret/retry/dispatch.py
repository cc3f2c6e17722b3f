"""Dispatch: what is due goes out. Publish, confirmed and not returned, then delete (R1); two lanes (R2)."""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict, deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import NamedTuple

from leveret.core import handover
from leveret.core.alarm import RETRY_REPUBLISH_FAILED, Alarm
from leveret.core.errors import (
    BrokerError,
    LeaseLost,
    PublishError,
    PublishTimeout,
    StoreRefused,
    StoreUnavailable,
    Unroutable,
)
from leveret.core.json_form import may_go_through_exchange
from leveret.core.retry_entry import Due, Lane, RetryEntry
from leveret.pipeline.batches import BATCH_BYTES, portions
from leveret.pipeline.parts import Parts, log
from leveret.pipeline.publishing import held_backoff
from leveret.ports import Grant, Timer
from leveret.retry.lease import LeaseKeeper
from leveret.retry.lines import BATCH, ONCE_MORE, Lines
from leveret.retry.republish import Republisher, place
from leveret.retry.schedule import Schedule

#: Batches under way at once.
UNDER_WAY = 4
#: Seconds until a row is looked at again that went out and has no answer yet, or whose queue withholds its answers or
#: has more rows waiting than are kept for it.
LOOKED_AT_AGAIN = 1.0
#: What comes in so many seconds after its time is overdue; less is a clock that differs a little.
OVERDUE_AFTER = 1.0
#: Seconds between steps of the overdue lane.
LANE_STEP = 0.1
#: Seconds between looks for what standbys have written to a store that they share with us; a retry that waits for less
#: may be late by as much. A look goes twice as far ahead, so that every longer one is seen before its time.
OTHERS_EVERY = 0.5
#: A queue that is gone is looked for with these waits, the last one for ever.
BLOCKED_BACKOFF = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 300.0)
#: Who asks the store here. What can be read cannot always be written.
_LOOKING, _CHANGING = "retries looked for", "retries changed"
ASKERS = (_LOOKING, _CHANGING)
#: Latenesses that are remembered for the percentiles, and failing rows whose tries are counted.
REMEMBERED = 10_000


class Lateness(NamedTuple):
    """Seconds from due to confirmed, of what was republished lately; all 0 where nothing was."""

    p50: float
    p99: float
    max: float


class Dispatch:
    """Republishes what is due while the lease is held under one term."""

    def __init__(
        self,
        parts: Parts,
        republisher: Republisher,
        keeper: LeaseKeeper,
        grant: Grant,
        *,
        overdue_rate: float | None,
        horizon: float,
        published: dict[tuple[str, int], asyncio.Future[None] | None],
        storing: Callable[[str, int], bool],
    ) -> None:
        #: (key, failure) of rows that were published and are not removed yet, with the answer where it is not known to
        #: be a confirm. It outlives this object, so that a term which starts over publishes none of them blindly.
        self._published = published
        #: Whether the store was asked here to take a row (key, failure) in, and has no answer yet. It may be seen,
        #: and is put again where no answer comes: gone out and removed by then, it would go out twice.
        self.being_stored = storing
        self._horizon = horizon
        self.schedule = Schedule(horizon=horizon)
        self.lines = Lines()
        self._parts = parts
        self._clock = parts.world.clock
        self._store = parts.store
        self._namespace = parts.names.namespace
        self._republisher = republisher
        self._keeper = keeper
        self._grant = grant
        self._rate = overdue_rate
        self._woken = asyncio.Event()
        self._look_overdue = asyncio.Event()
        self._room = asyncio.Semaphore(UNDER_WAY)
        self._batches: set[asyncio.Task[None]] = set()
        self._late: deque[float] = deque(maxlen=REMEMBERED)
        #: Queues that are gone: how often they were looked for.
        self._gone: dict[str, int] = {}
        self._looking: dict[str, Timer] = {}
        #: Queues that are back and whose blocked rows the store could not let go yet.
        self._unblocking: dict[str, Timer] = {}
        self._tries: OrderedDict[str, int] = OrderedDict()
        self._failure: asyncio.Future[None] | None = None
        #: Places that an alarm was raised for.
        self._alarmed: set[str] = set()
        #: When what is overdue is looked for again, whatever is asked for until then.
        self._look_again_at = float("inf")
        #: Whether the overdue lane has looked since it was last asked to.
        self.overdue_done = False
        self.republished = 0
        self._closing = False

    # ── From outside ──────────────────────────────────────────────────────────────────────────────────────────────────

    def add(self, due: Due) -> None:
        """A row was written, or its time has changed."""
        if due.due_in < -OVERDUE_AFTER:
            # A backlog of envelopes whose time passed while nobody took them in goes at the rate of what is overdue.
            self.schedule.forget(due.key)
            self._look_for_overdue()
            return
        self.schedule.add(due, now=self._clock.monotonic())
        self._woken.set()

    def forget(self, key: str) -> None:
        """This row is gone, or its time is no longer known, also where it waits for room in its queue."""
        self.schedule.forget(key)
        self.lines.forget(key)

    def went_out(self, key: str, failure: int) -> bool:
        """Whether this row was published, and could not be removed yet or has no answer yet."""
        return (key, failure) in self._published

    def lateness(self) -> Lateness:
        """How late republished messages were, lately (R7)."""
        if not self._late:
            return Lateness(0.0, 0.0, 0.0)
        ranked = sorted(self._late)
        return Lateness(
            ranked[len(ranked) // 2], ranked[min(len(ranked) - 1, int(len(ranked) * 0.99))], ranked[-1]
        )

    @property
    def quiet(self) -> bool:
        """Whether nothing is due and nothing is under way or without an answer."""
        now = self._clock.monotonic()
        next_in = self.schedule.next_in(now)
        return (
            self.overdue_done
            and self.schedule.loaded_until >= now
            and self.lines.still
            and (next_in is None or next_in > 0)
        )

    # ── The two lanes ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def run(self) -> None:
        """Republish until cancelled.

        Raises:
            LeaseLost: somebody else holds the lease.
        """
        self._failure = asyncio.get_running_loop().create_future()
        lanes = [asyncio.create_task(self._fresh_lane()), asyncio.create_task(self._overdue_lane())]
        if self._store.shared:
            lanes.append(asyncio.create_task(self._others_lane()))
        try:
            done, _ = await asyncio.wait([*lanes, self._failure], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            under_way = [*lanes, *self._batches]
            for task in under_way:
                task.cancel()
            for timer in (*self._looking.values(), *self._unblocking.values()):
                timer.cancel()
            if under_way:
                await asyncio.wait(under_way)
            if self._failure.done() and not self._failure.cancelled():
                self._failure.exception()

    async def _fresh_lane(self) -> None:
        while True:
            now = self._clock.monotonic()
            if self.schedule.refill_in(now) <= 0:
                await self._refill()
                now = self._clock.monotonic()
            if now >= self._look_again_at:
                # Where more is due than a refill can bring, each goes on at its cursor, and none goes back for what was
                # due before it and did not stay in the schedule.
                self._look_for_overdue()
            # Where no batch can begin the lane does not wait for one: what falls due meanwhile has to be looked at.
            let_go = [] if self._room.locked() else self._let_go()
            await self._begin(let_go)
            due_now = self.schedule.pop_due(now, BATCH)
            rows = [due for due in due_now if due.key not in self.lines.under_way]
            for due in due_now:
                if due.key in self.lines.under_way:
                    # An earlier failure of it is just being removed; it goes right after.
                    self.schedule.add(due._replace(due_in=ONCE_MORE), now=now)
            if rows:
                await self._start(rows)
            if rows or let_go:
                continue
            next_in = self.schedule.next_in(now)
            refill_in = self.schedule.refill_in(now)
            await self._pause(max(0.0, refill_in if next_in is None else min(next_in, refill_in)))

    async def _refill(self) -> None:
        """Load what comes next. What waits here for its queue counts: a burst is read no faster than it goes out."""
        schedule = self.schedule
        limit = schedule.room - self.lines.waiting(Lane.LOADED)
        if limit < schedule.capacity // 2:
            schedule.refill_later(now=self._clock.monotonic())
            return
        for wait in held_backoff():
            asked_at = self._clock.monotonic()
            after = schedule.refilling()
            try:
                with self._asking(_LOOKING):
                    rows = await self._store.upcoming(
                        self._namespace,
                        within=schedule.horizon,
                        since=schedule.overlooked(asked_at) if after is None else None,
                        after=after,
                        limit=limit,
                    )
            except StoreUnavailable:
                await self._clock.sleep(wait)
                continue
            schedule.refilled(
                (
                    due
                    for due, _ in rows
                    if not self.being_stored(due.key, due.failure) and not self.lines.keeps(due)
                ),
                now=self._clock.monotonic(),
                asked_at=asked_at,
                ended_at=rows[-1][1] if len(rows) == limit else None,
            )
            if after is None:
                # What others have stored too late lies before the part that was read.
                self._look_for_overdue()
            return

    def _look_for_overdue(self) -> None:
        self.overdue_done = False
        self._look_overdue.set()
        self._look_again_at = self._clock.monotonic() + self._horizon / 2

    async def _overdue_lane(self) -> None:
        """What was due before we looked: oldest first, at a rate of its own, so that fresh ones are on time (R2)."""
        limit = BATCH if self._rate is None else max(1, min(BATCH, round(self._rate * LANE_STEP)))
        while True:
            await self._look_overdue.wait()
            self._look_overdue.clear()
            after: tuple[float, str] | None = None
            while True:
                while self.lines.crowded(Lane.OVERDUE):
                    await self._clock.sleep(LANE_STEP)
                asked_at = self._clock.monotonic()
                try:
                    with self._asking(_LOOKING):
                        rows = await self._store.upcoming(self._namespace, within=0, limit=limit, after=after)
                except StoreUnavailable:
                    await self._clock.sleep(1.0)
                    continue
                # What comes after the part that is loaded is for the next refill, however late that is.
                rows = [row for row in rows if self.schedule.covers(*row, asked_at=asked_at)]
                if not rows:
                    break
                after = rows[-1][1]
                due = [
                    row._replace(lane=Lane.OVERDUE)
                    for row, _ in rows
                    if not self._in_hand(row) and row.key not in self.schedule
                ]
                if due:
                    await self._start(due)
                    if self._rate is not None:
                        await self._clock.sleep(len(due) / self._rate)
            self.overdue_done = not self._look_overdue.is_set()

    async def _others_lane(self) -> None:
        """What standbys have stored for soon, or what they stored too late: nothing else tells us of it (R4)."""
        abreast_at = self._clock.monotonic()
        while True:
            await self._clock.sleep(OTHERS_EVERY)
            asked_at = self._clock.monotonic()
            if not self.lines.waiting(Lane.LOADED):
                abreast_at = asked_at
            # Where a burst is being worked off, what is not due yet is not to wait behind it, whoever has written it.
            behind = asked_at - abreast_at > OVERDUE_AFTER
            lane = Lane.WRITTEN if behind else Lane.LOADED
            try:
                with self._asking(_LOOKING):
                    rows = await self._store.upcoming(
                        self._namespace,
                        within=2 * OTHERS_EVERY,
                        since=0.0 if behind else OVERDUE_AFTER,
                        limit=self.schedule.capacity,
                    )
                    next_due = await self._store.next_due(self._namespace)
            except StoreUnavailable:
                await self._clock.sleep(1.0)
                continue
            if self.lines.crowded(lane):
                # They write faster than it goes out. What is not taken now is overdue when there is room again.
                rows = []
            for due, cursor in rows:
                # What is due already, and comes after the part that is loaded, is for the next refill.
                ours = due.due_in > 0 or self.schedule.covers(due, cursor, asked_at=asked_at)
                if ours and not self._in_hand(due) and not self.schedule.has(due):
                    self.add(due._replace(lane=lane))
            if next_due is not None and next_due < -OVERDUE_AFTER and self.overdue_done:
                self._look_for_overdue()

    async def _pause(self, seconds: float) -> None:
        timer = self._clock.call_later(seconds, self._woken.set)
        await self._woken.wait()
        self._woken.clear()
        timer.cancel()

    # ── A batch ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def finish(self) -> None:
        """Begin no new batch, and return when those under way are removed: what went out must not go out again."""
        self._closing = True
        while self._batches:
            await asyncio.wait(self._batches)

    async def _start(self, rows: Sequence[Due]) -> None:
        await self._begin(self._without_unanswered(rows))

    async def _begin(self, going: Sequence[Due]) -> None:
        for batch in portions(going, number=BATCH, size=BATCH_BYTES):
            await self._start_batch(batch)

    def _in_hand(self, due: Due) -> bool:
        """Whether this row is being stored or republished, or waits for room in its queue."""
        return self.being_stored(due.key, due.failure) or self.lines.has(due)

    def _without_unanswered(self, rows: Sequence[Due]) -> list[Due]:
        """Rows that may go out; those that did and have no answer yet wait for it, with the rest of a silent queue.

        So do those that are being stored: also a person's act schedules what the store has not answered for.
        """
        going: list[Due] = []
        lines, probed = self.lines, self.lines.probed()
        for due in rows:
            answer = self._published.get((due.key, due.failure))
            unanswered = (answer is not None and not answer.done()) or self.being_stored(due.key, due.failure)
            full = lines.full(due, probed=probed)
            if unanswered or (full and not lines.may_wait(due)):
                # The schedule leaves to the store what it cannot keep.
                self.add(due._replace(due_in=LOOKED_AT_AGAIN))
            elif full:
                lines.wait(due)
            else:
                lines.start(due)
                going.append(due)
        return going

    async def _start_batch(self, rows: Sequence[Due]) -> None:
        if self._closing:
            await asyncio.get_running_loop().create_future()
        await self._room.acquire()
        task = asyncio.create_task(self._batch(rows))
        self._batches.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._batches.discard(task)
        self._room.release()
        self._woken.set()
        self._hand_on(task)

    def _let_go(self) -> list[Due]:
        going, again = self.lines.let_go()
        for due in again:
            self.add(due)
        return going

    def _hand_on(self, task: asyncio.Task[None]) -> None:
        """What ended a task of ours ends the term."""
        if task.cancelled() or self._failure is None or self._failure.done():
            return
        error = task.exception()
        if error is not None:
            self._failure.set_exception(error)

    async def _batch(self, rows: Sequence[Due]) -> None:
        try:
            open_rows = await self._without_gone(rows)
            if open_rows:
                await self._publish(open_rows)
        finally:
            self.lines.ended(rows)

    async def _publish(self, rows: Sequence[Due]) -> None:
        """Take, publish, confirmed and not returned, delete."""
        taken_at = self._clock.monotonic()
        try:
            with self._asking(_CHANGING):
                entries = await self._store.take(
                    self._namespace, [(due.key, due.failure) for due in rows], grant=self._proof()
                )
        except StoreUnavailable:
            for due in rows:
                self.add(due._replace(due_in=1.0))
            return
        if self._parts.world.reached is not None:
            for entry in entries:
                await self._parts.reach(handover.TAKEN_WHEN_DUE, entry.message_id)
        if self._published:
            entries = await self._without_published(entries)
        answers = await self._republisher.republish(
            entries, holds=lambda: self._keeper.holds_as(self._grant), unseen=self._unseen
        )
        done: list[RetryEntry] = []
        failed: list[tuple[RetryEntry, PublishError]] = []
        for entry, answer in zip(entries, answers, strict=True):
            if answer is None:
                done.append(entry)
            else:
                failed.append((entry, answer))
        if done:
            confirmed_at = self._clock.monotonic()
            self._late.extend(max(0.0, confirmed_at - taken_at - entry.due_in) for entry in done)
            await self._remove(done)
            self.republished += len(done)
            for entry in done:
                self._tries.pop(entry.key, None)
                self._works_again(place(entry))
                if not entry.through_exchange and entry.queue in self._gone:
                    self._returned(entry.queue)
        for entry, answer in failed:
            await self._failed(entry, answer)

    async def _remove(self, done: Sequence[RetryEntry]) -> None:
        """Delete what was published: it must not go out again while the store is away, nor after we start over."""
        self._published.update({(entry.key, entry.failure): None for entry in done})
        for wait in held_backoff():
            try:
                with self._asking(_CHANGING):
                    await self._store.remove(
                        self._namespace, [(entry.key, entry.failure) for entry in done], grant=self._proof()
                    )
            except StoreUnavailable:
                await self._clock.sleep(wait)
            else:
                for entry in done:
                    self._published.pop((entry.key, entry.failure), None)
                return

    def _unseen(self, entry: RetryEntry, answer: asyncio.Future[None]) -> None:
        self._published[entry.key, entry.failure] = answer
        queue = "" if entry.through_exchange else entry.queue
        self.lines.unseen(queue)

        def answered(_: asyncio.Future[None]) -> None:
            self.lines.answered(queue)
            self._woken.set()

        answer.add_done_callback(answered)

    async def _without_published(self, entries: Sequence[RetryEntry]) -> list[RetryEntry]:
        """Entries that are to be published; what is confirmed is removed, what has no answer yet is waited for (P9)."""
        due: list[RetryEntry] = []
        confirmed: list[RetryEntry] = []
        for entry in entries:
            row = (entry.key, entry.failure)
            answer = self._published.get(row)
            if row not in self._published:
                due.append(entry)
            elif answer is not None and not answer.done():
                self.add(Due(entry.key, entry.failure, LANE_STEP, entry.queue, entry.size))
            elif answer is None or (not answer.cancelled() and answer.exception() is None):
                confirmed.append(entry)
            else:
                del self._published[row]
                due.append(entry)
        if confirmed:
            await self._remove(confirmed)
        return due

    async def _failed(self, entry: RetryEntry, error: PublishError) -> None:
        """It stays stored, and is tried again in this process."""
        if isinstance(error, PublishTimeout):
            # The connection that carried it is closed: what is unknown may be repeated now (P9).
            self.add(Due(entry.key, entry.failure, 1.0, entry.queue, entry.size))
            return
        tries = self._tries.pop(entry.key, 0)
        self._tries[entry.key] = tries + 1
        while len(self._tries) > REMEMBERED:
            self._tries.popitem(last=False)
        wait = BLOCKED_BACKOFF[min(tries, len(BLOCKED_BACKOFF) - 1)]
        gone = isinstance(error, Unroutable)
        reason = f"queue gone: {place(entry)}" if gone else f"refused: {error}"
        # What may also go through an exchange does not depend on that queue coming back.
        if gone and not entry.through_exchange and not may_go_through_exchange(entry):
            self._watch_gone(entry.queue)
        log.warning(
            "retry %s cannot be published to %s, again in %g s: %s",
            entry.retry_id[-6:], place(entry), wait, reason, extra={"action": "blocked"},
        )  # fmt: skip
        self._alarmed.add(place(entry))
        self._parts.alarms.emit(
            Alarm(
                code=RETRY_REPUBLISH_FAILED,
                title=f"retries for {place(entry)} cannot be published; they stay stored ({reason})",
                about=place(entry),
                fields={"queue": place(entry), "error": str(error)},
            )
        )
        await self._postpone([Due(entry.key, entry.failure, 0.0, entry.queue, entry.size)], wait, reason)

    def _works_again(self, where: str) -> None:
        if where in self._alarmed:
            self._alarmed.discard(where)
            self._parts.alarms.resolved(RETRY_REPUBLISH_FAILED, where)

    async def _postpone(self, rows: Sequence[Due], wait: float, reason: str) -> None:
        # Where it stays due in the store, it is looked for again all the same.
        with contextlib.suppress(StoreUnavailable), self._asking(_CHANGING):
            await self._store.postpone(
                self._namespace,
                [(due.key, due.failure) for due in rows],
                seconds=wait,
                blocked=reason,
                grant=self._proof(),
            )
        for due in rows:
            self.add(due._replace(due_in=wait))

    # ── Queues that are gone ──────────────────────────────────────────────────────────────────────────────────────────

    async def _without_gone(self, rows: Sequence[Due]) -> list[Due]:
        """Rows whose queue is not known to be gone; the others are blocked without a try each."""
        if not self._gone:
            return list(rows)
        for queue in sorted({due.queue for due in rows} & self._gone.keys()):
            wait = BLOCKED_BACKOFF[min(self._gone[queue], len(BLOCKED_BACKOFF) - 1)]
            await self._postpone([due for due in rows if due.queue == queue], wait, f"queue gone: {queue}")
        return [due for due in rows if due.queue not in self._gone]

    def _watch_gone(self, queue: str) -> None:
        if queue in self._looking:
            return
        tries = self._gone.setdefault(queue, 0)
        wait = BLOCKED_BACKOFF[min(tries, len(BLOCKED_BACKOFF) - 1)]

        self._looking[queue] = self._clock.call_later(wait, lambda: self._beside(self._look_for(queue)))

    def _beside(self, work: Coroutine[object, object, None]) -> None:
        """Do this beside the batches."""
        task = asyncio.create_task(work)
        self._batches.add(task)
        task.add_done_callback(self._done_beside)

    def _done_beside(self, task: asyncio.Task[None]) -> None:
        self._batches.discard(task)
        self._hand_on(task)

    async def _look_for(self, queue: str) -> None:
        self._looking.pop(queue, None)
        try:
            there = await self._parts.transport.queue_state(queue) is not None
        except BrokerError as error:
            log.info("cannot look for %s: %s", queue, error, extra={"action": "blocked"})
            there = False
        if there:
            self._returned(queue)
        else:
            self._gone[queue] = self._gone.get(queue, 0) + 1
            self._watch_gone(queue)

    def _returned(self, queue: str) -> None:
        """The queue is back: all that was blocked for it goes; until the store has let it go, each at its own time."""
        self._gone.pop(queue, None)
        timer = self._looking.pop(queue, None)
        if timer is not None:
            timer.cancel()
        self._works_again(queue)
        self._beside(self._unblock(queue, held_backoff()))

    async def _unblock(self, queue: str, waits: Iterator[float]) -> None:
        try:
            with self._asking(_CHANGING):
                released = await self._store.unblock(self._namespace, queue, grant=self._proof())
        except (StoreUnavailable, StoreRefused) as error:
            wait = next(waits)
            log.warning(
                "%s is back, but not all of its blocked retries can be released, again in %g s: %s",
                queue, wait, error, extra={"action": "unblocked"},
            )  # fmt: skip
            self._unblock_later(queue, wait, waits)
            return
        log.info("%s is back; %d blocked retries go", queue, released, extra={"action": "unblocked"})
        self.rescan()

    def _unblock_later(self, queue: str, wait: float, waits: Iterator[float]) -> None:
        def again() -> None:
            del self._unblocking[queue]
            # Where it is gone once more, they are released when it is back.
            if queue not in self._gone:
                self._beside(self._unblock(queue, waits))

        if queue in self._unblocking:
            self._unblocking[queue].cancel()
        self._unblocking[queue] = self._clock.call_later(wait, again)

    def rescan(self) -> None:
        """Times have changed in the store: forget what was loaded, and look again."""
        self.schedule = Schedule(horizon=self._horizon)
        self.overdue_done = False
        self._woken.set()

    # ── The store ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _proof(self) -> Grant:
        if not self._keeper.holds_as(self._grant):
            raise LeaseLost(f"the lease is not held any more under term {self._grant.term}")
        return self._grant

    def _asking(self, who: str) -> contextlib.AbstractContextManager[None]:
        title = f"retries of {self._namespace} cannot be read or removed; nothing is published blindly"
        return self._parts.store_condition.asking(who, title)
