"""RetryWorker: keeps failed messages of the JSON form in a document store, and gives them back when they are due."""

from __future__ import annotations

import asyncio
import functools
import itertools
import math
import os
import time
import uuid
import weakref
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext
from typing import Any, ClassVar, TypeGuard

from leveret.core import json_form
from leveret.core.envelope import HOST
from leveret.core.errors import LeaseLost, PublishTimeout
from leveret.core.json_form import RETRY_WORKER_TYPE, FailedMessage
from leveret.core.seconds import seconds
from leveret.pipeline.parts import log
from leveret.pipeline.publishing import HELD_BACKOFF
from leveret.ports import (
    DocumentStoreInterface,
    Grant,
    PublisherInterface,
    QueuePublisherInterface,
    RetryLeaseInterface,
)
from leveret.retry.due_keys import DueKey, DueKeys
from leveret.retry.exchanges import MessagePublisher
from leveret.retry.foreign_lease import ForeignLease
from leveret.retry.keys import RetryKeys
from leveret.retry.lease import LeaseKeeper
from leveret.retry.plain_clock import PlainClock

#: What the store is asked for.
STORED, READ, REMOVED = "stored", "read", "removed"
#: Messages that are given back at once; more would only wait for each other's confirms.
AT_ONCE = 100
#: Of these, so many are kept from what was overdue when it was found, for what falls due now.
KEPT_FOR_FRESH = AT_ONCE // 2
#: Seconds that a publish without an answer counts among them. A queue may withhold its answers for hours.
PATIENCE = 5.0
#: Seconds by which the overdue may be ahead of their rate, as otherwise each of a few would go by itself.
OVERDUE_AHEAD = 0.1
#: Publishes to one place that have no answer for so long, before no more go there until one has.
MOST_SILENT = 10
#: The longest sleep in one piece, in seconds: a machine that was suspended meanwhile is noticed so soon.
LONGEST_SLEEP = 60.0
#: Between tries to give a message back, in seconds; the last one goes on.
BACKOFF = (*HELD_BACKOFF, 60.0, 120.0, 300.0)
#: Seconds for which a row is left alone that the store may have taken without saying so: longer than who brought the
#: envelope waits before bringing it again. Gone out and removed by then, it would be stored and go out once more.
DOUBTED = 60.0
#: How many times as long as reading the store took must pass until it is read again: of a store of any program, all
#: that waits is read.
READ_SELDOM = 10
#: Seconds that a stop waits for what is being given back. A confirm and a removal take milliseconds; what takes longer
#: waits for a broker or a store that is away.
GRACE = 5.0


class RetryWorker:
    """Keeps failed messages until they are due, and gives them back.

    It takes envelopes of soft failures in the JSON form, stores them before it returns, and publishes the failed
    message when its time has come: confirmed first, then removed. What cannot be published stays stored and is tried
    again. Late is delivered, never skipped.

    Several may share one store where they share a lease: all of them store, its holder alone publishes. Without a lease
    it works alone.

    Args:
        worker_name: its name, for people.
        retry_store: where messages wait; its id field is `retry_key`.
        republish_publisher: gives a message back; one of leveret's own goes straight to the queue that failed it.
        message_key_func: the first part of a message's key; None: by job, document and part.
        scoping_enabled: put `s:<scope>:` in front of the keys of messages that name a valid scope.
        lease: who may publish; None: nobody else is there.
        lease_ttl_seconds: how long the lease lasts that nobody renews.
        clock: the wall clock, epoch seconds.
        sleep: waits.

    Raises:
        ValueError: the store's id field is another one, or `lease_ttl_seconds` is not more than 0.

    Example:
        worker = RetryWorker("retry", retry_store=store, republish_publisher=publisher)
        await worker.start()
        await worker({"data_type": "soft-failure", "data": {"data_type": "page", "retry": {"after": 5}},
                      "origin": {"type": "parser"}})
        await worker.shutdown()
    """

    REQUIRED_DOC_ID_FIELD: ClassVar[str] = "retry_key"
    #: How many overdue messages a second are given back, beside those that fall due; None: no limit.
    overdue_rate: float | None = 1000.0

    def __init__(
        self,
        worker_name: str,
        *,
        retry_store: DocumentStoreInterface,
        republish_publisher: PublisherInterface,
        message_key_func: Callable[[dict[str, Any]], str] | None = None,
        scoping_enabled: bool = False,
        lease: RetryLeaseInterface | None = None,
        lease_ttl_seconds: float = 30,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        field = retry_store.get_doc_id_field()
        if field != self.REQUIRED_DOC_ID_FIELD:
            raise ValueError(
                f"retry_store has doc_id_field={field!r}: a retry worker needs {self.REQUIRED_DOC_ID_FIELD!r}"
            )
        ttl = seconds(lease_ttl_seconds, "lease_ttl_seconds")
        if ttl == 0:
            raise ValueError(f"lease_ttl_seconds={lease_ttl_seconds!r}: expected more than 0 seconds")
        self.name = worker_name
        self.type = RETRY_WORKER_TYPE
        self._store = retry_store
        self._publisher: PublisherInterface = republish_publisher
        if isinstance(republish_publisher, MessagePublisher):
            self._publisher = republish_publisher.guarded(lambda: self._may_publish)
        self._keys = RetryKeys(message_key_func, scoping=scoping_enabled)
        self._clock = PlainClock(clock, sleep)
        self._keeper = (
            None
            if lease is None
            else LeaseKeeper(
                ForeignLease(lease),
                holder=f"{worker_name}@{HOST}/{os.getpid()}/{uuid.uuid4().hex[:6]}",
                ttl=ttl,
                clock=self._clock,
                gained=self._gained,
                lost=self._lost,
                away=self._store_is_away,
            )
        )
        #: What falls due, and what was overdue when it was found.
        self._due = DueKeys()
        self._overdue = DueKeys()
        #: When the next overdue one goes, by the monotonic clock, so that they keep to their rate.
        self._next_overdue = float("-inf")
        #: Messages being given back right now, by key, and what is to be done with that key afterwards.
        self._under_way: dict[str, asyncio.Task[None]] = {}
        self._afterwards: dict[str, DueKey] = {}
        self._overdue_under_way: set[str] = set()
        #: Publishes that wait for long, by place; and what waits for their answers, by key.
        self._silent: Counter[str] = Counter()
        self._held: dict[str, tuple[str, DueKey]] = {}
        #: What was published and is not removed yet, by key: as long as it lies there unchanged it must not go again.
        self._published: dict[str, Mapping[str, Any]] = {}
        #: Until when a row is left alone whose insert failed or is under way, by key and the monotonic clock.
        self._doubted: dict[str, float] = {}
        #: Envelopes without a document whose insert failed, by their identity, with what each one carried and the key
        #: that it got: brought again, it is the same message, and not one more.
        self._brought: dict[int, tuple[Mapping[str, Any], str, str]] = {}
        self._woken = asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        #: When to ask for the lease next, by the monotonic clock; never, while it is being asked for.
        self._poll_at = float("inf")
        self._polling: asyncio.Task[None] | None = None
        #: Until when the store is not read again, by the monotonic clock; always, while it is being read.
        self._read_at = float("-inf")
        self._tries: dict[str, int] = {}
        self._writing: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()
        self._closed = False

    # ── In ────────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def __call__(self, message: dict[str, Any]) -> None:
        """Store what an envelope of a soft failure carries, and schedule it; anything else is ignored.

        When it returns, the message is stored. Nothing goes downstream.

        Raises:
            Malformed: it is an envelope of a soft failure, and cannot be read.
            Exception: what the store raised; nothing was stored.
        """
        if not isinstance(message, Mapping) or message.get("data_type") != json_form.SOFT_FAILURE:
            return
        if json_form.RETRY_ID in message:
            log.debug(
                "a copy for observers: its message waits in leveret's own store", extra={"action": "copy"}
            )
            return
        failed = json_form.parse(message)
        key = self._known_key(message, failed) or self._keys.key(failed)
        async with self._alone(key):
            try:
                with self._asking(STORED):
                    await self._persist(failed, key)
            except BaseException:
                self._forget_doubts()
                if key in self._doubted:
                    self._doubted[key] = self._clock.monotonic() + DOUBTED
                    if failed.doc_id is None:
                        self._brought[id(message)] = (message, failed.digest, key)
                raise

    async def _persist(self, failed: FailedMessage, key: str) -> None:
        fire_at = self._clock.now() + failed.after
        generation = 1
        before = await self._stored(key)
        if before is not None:
            retry = _retry_of(before.get("message"))
            count = retry.get("count")
            if isinstance(count, int) and count > failed.count:
                # A late envelope of an earlier failure: what waits knows more.
                return
            if isinstance(before.get("generation"), int):
                generation = before["generation"] + 1
            # The same envelope once more moves nothing. Where its time is over it may be out already, and this be a new
            # failure of it that spent no attempt.
            known = before.get("fire_at")
            if retry == _retry_of(failed.message) and _is_time(known) and self._clock.now() < known < fire_at:
                fire_at = known
        doc: dict[str, Any] = {
            self.REQUIRED_DOC_ID_FIELD: key,
            "message": dict(failed.message),
            "fire_at": fire_at,
            "retry_after_seconds": failed.after,
            "generation": generation,
            "worker": failed.worker,
        }
        if (scope := self._keys.scope(failed)) is not None:
            doc["scope"] = scope
        self._doubted[key] = math.inf
        await self._store.insert(doc, overwrite_existing=True)
        del self._doubted[key]
        self._tries.pop(key, None)
        if self._may_publish:
            self._schedule(key, generation, fire_at)

    @asynccontextmanager
    async def _alone(self, key: str) -> AsyncIterator[None]:
        """One at a time for each key: what was read is still so when it is written."""
        # Whoever holds or awaits the lock keeps it there.
        async with self._writing.setdefault(key, asyncio.Lock()):
            yield

    def _known_key(self, message: Mapping[str, Any], failed: FailedMessage) -> str:
        """The key that this envelope got when its insert failed; empty where it is a new one."""
        _, digest, key = self._brought.pop(id(message), (None, "", ""))
        return key if key and failed.digest == digest else ""

    def _forget_doubts(self) -> None:
        """Doubts that are over, and envelopes that nobody has brought again since."""
        now = self._clock.monotonic()
        self._doubted = {key: until for key, until in self._doubted.items() if until > now}
        self._brought = {number: each for number, each in self._brought.items() if each[2] in self._doubted}

    async def _stored(self, key: str) -> dict[str, Any] | None:
        if not await self._store.exists(key):
            return None
        try:
            return await self._store.get_document(key)
        except Exception:
            # Each program's store has an error of its own for what is not there; it may have been removed since.
            if await self._store.exists(key):
                raise
            return None

    # ── From start to end ─────────────────────────────────────────────────────────────────────────────────────────────

    async def start(self) -> None:
        """Ask for the lease where there is one, and schedule what is stored. Idempotent.

        Raises:
            Exception: what the store raised; nothing was started.
        """
        self._closed = False
        if self._running is not None:
            return
        if self._keeper is not None:
            await self._keeper.run_once()
            self._poll_at = self._clock.monotonic() + self._keeper.next_in
        await self.schedule_pending()
        self._run()

    async def schedule_pending(self) -> None:
        """Schedule all that is stored: what is past its time at once, the oldest first, the rest for when it is due.

        Nothing happens where somebody else holds the lease. Bodies are left in the store.

        Raises:
            Exception: what the store raised.
        """
        if not self._may_publish:
            return
        found: list[tuple[float, str, Any]] = []
        with self._asking(READ):
            async for doc in self._store.query({}):
                key, fire_at = doc.get(self.REQUIRED_DOC_ID_FIELD), doc.get("fire_at")
                if not isinstance(key, str) or not _is_time(fire_at):
                    log.error(
                        "a stored retry cannot be read, and stays where it is: retry_key %r, fire_at %r",
                        key, fire_at, extra={"action": "malformed"},
                    )  # fmt: skip
                    continue
                found.append((fire_at, key, doc.get("generation")))
        if self._published:
            # Another process may have removed some of it.
            there = {key for _, key, _ in found}
            self._published = {key: row for key, row in self._published.items() if key in there}
        self._forget_doubts()
        late = 0
        for fire_at, key, generation in sorted(found, key=lambda row: row[:2]):
            known = self._scheduled(key)
            # What is scheduled keeps its monotonic time, whatever the wall clock does meanwhile.
            if key in self._under_way or (known is not None and known.generation == generation):
                continue
            if not self._may_publish:
                return
            if self._doubted.get(key) == math.inf:
                # It is just being stored, and scheduled once that is told.
                continue
            if fire_at > self._clock.now():
                self._schedule(key, generation, fire_at)
            else:
                late += 1
                self._schedule_overdue(key, generation)
        if late:
            log.info("%s: %d stored retries are past their time and go now", self.name, late)

    async def shutdown(self) -> None:
        """Stop; what is stored stays stored, and goes on with the next start. Idempotent."""
        self._closed = True
        tasks = [task for task in (self._running, self._polling) if task is not None]
        self._running = self._polling = None
        for task in tasks:
            task.cancel()
        if self._under_way:
            # What is published and not removed yet would go out once more.
            await asyncio.wait(list(self._under_way.values()), timeout=GRACE)
        self._drop()
        tasks += self._under_way.values()
        if tasks:
            await asyncio.wait(tasks)
        if self._keeper is not None:
            await self._keeper.stop()

    @property
    def _holds(self) -> bool:
        return self._keeper is None or self._keeper.holds

    @property
    def _may_publish(self) -> bool:
        return not self._closed and self._holds

    def _gained(self, grant: Grant) -> None:
        log.info("%s holds the lease of the retries (term %d)", grant.holder, grant.term)

    def _lost(self, why: str) -> None:
        if not self._closed:
            log.warning("%s publishes nothing from here on: %s", self.name, why)
        self._drop()

    def _store_is_away(self, why: str | None) -> None:
        """The lease could not be asked for, and why, or it could (None). Whoever runs this worker may tell people."""

    def _asking(self, what: str) -> AbstractContextManager[None]:
        """Ask the store within the block, so that retries are stored, read or removed. As above."""
        return nullcontext()

    def _drop(self) -> None:
        """Forget what was scheduled, and end what is under way: another one may be at it from now on."""
        self._due.clear()
        self._overdue.clear()
        self._next_overdue = float("-inf")
        self._held.clear()
        self._afterwards.clear()
        for task in self._under_way.values():
            task.cancel()

    def _run(self) -> None:
        if not self._closed and (self._running is None or self._running.done()):
            self._running = asyncio.create_task(self._work(), name=f"leveret retries {self.name}")
            self._running.add_done_callback(self._stopped)

    def _stopped(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s stopped; it starts again with the next message", self.name, exc_info=error)

    # ── Time ──────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _schedule(self, key: str, generation: Any, fire_at: float) -> None:
        """For its time; what may have been stored without an answer, once its envelope has been brought again."""
        wait = fire_at - self._clock.now()
        if (until := self._doubted.get(key)) is not None:
            wait = max(wait, min(DOUBTED, until - self._clock.monotonic()))
        self._schedule_in(key, generation, wait)

    def _schedule_in(self, key: str, generation: Any, wait: float) -> None:
        row = DueKey(key, generation, self._clock.monotonic() + wait)
        if key in self._under_way:
            self._afterwards[key] = row
            return
        self._let_wait(self._due, row)

    def _schedule_overdue(self, key: str, generation: Any) -> None:
        """As one of many, in their order and at their rate, the first tenth of a second's worth at once."""
        now = self._clock.monotonic()
        if (until := self._doubted.get(key)) is not None:
            self._schedule_in(key, generation, min(DOUBTED, until - now))
            return
        self._next_overdue = max(self._next_overdue, now)
        self._let_wait(self._overdue, DueKey(key, generation, max(now, self._next_overdue - OVERDUE_AHEAD)))
        if self.overdue_rate is not None:
            self._next_overdue += 1 / self.overdue_rate

    def _let_wait(self, lane: DueKeys, row: DueKey) -> None:
        for other in (self._due, self._overdue):
            other.discard(row.key)
        self._held.pop(row.key, None)
        lane.add(row)
        self._woken.set()
        self._run()

    def _scheduled(self, key: str) -> DueKey | None:
        """What waits under that key, for its time or for an answer of its place."""
        held = self._held.get(key)
        return self._due.get(key) or self._overdue.get(key) or (None if held is None else held[1])

    def _is_scheduled(self, key: str) -> bool:
        return key in self._afterwards or self._scheduled(key) is not None

    async def _work(self) -> None:
        """One loop for the lease and for what is due, so that it sleeps once at a time."""
        clock = self._clock
        nap: asyncio.Future[None] | None = None
        nap_until = float("inf")
        try:
            while True:
                self._woken.clear()
                now = clock.monotonic()
                if self._keeper is not None and now >= self._poll_at:
                    # In a task of its own: what is due does not wait for an answer that is slow to come.
                    self._poll_at = float("inf")
                    self._polling = asyncio.create_task(self._poll(self._keeper))
                until = min(now + self._launch_due(now), self._poll_at)
                if until < float("inf") and (nap is None or until < nap_until):
                    if nap is not None:
                        nap.cancel()
                    nap_until = min(until, now + LONGEST_SLEEP)
                    nap = asyncio.ensure_future(clock.sleep(nap_until - now))
                    nap.add_done_callback(lambda _: self._woken.set())
                await self._woken.wait()
                if nap is not None and nap.done():
                    nap.result()
                    nap = None
                    if nap_until == self._poll_at:
                        # It slept its time, whatever a clock says that stands still.
                        self._poll_at = float("-inf")
        finally:
            if nap is not None:
                nap.cancel()

    async def _poll(self, keeper: LeaseKeeper) -> None:
        try:
            await keeper.run_once()
        finally:
            self._poll_at = self._clock.monotonic() + keeper.next_in
            self._woken.set()
        if not keeper.holds or self._clock.monotonic() < self._read_at:
            return
        # Standbys store too, and tell nobody: the holder looks at the store each time it renews.
        began, self._read_at = self._clock.monotonic(), float("inf")
        try:
            await self.schedule_pending()
        except Exception as error:  # noqa: BLE001 - a store of any program, with errors of its own
            # The next renewal looks again.
            log.warning(
                "%s: the stored retries cannot be read: %s", self.name, error, extra={"action": "load"}
            )
        finally:
            ended = self._clock.monotonic()
            self._read_at = ended + READ_SELDOM * (ended - began)

    def _launch_due(self, now: float) -> float:
        """Begin to give back what is due; returns the seconds until more of it is."""
        next_in = float("inf")
        for lane in (self._due, self._overdue):
            for row in itertools.islice(lane.pop(now), max(0, self._room_of(lane))):
                task = asyncio.create_task(self._give_back(row.key, row.generation))
                self._under_way[row.key] = task
                if lane is self._overdue:
                    self._overdue_under_way.add(row.key)
                task.add_done_callback(functools.partial(self._ended, row.key))
            # Where there is no room, the end of one that is under way wakes the loop.
            if self._room_of(lane) > 0:
                next_in = min(next_in, lane.next_in(now))
        return next_in

    def _room_of(self, lane: DueKeys) -> int:
        """How many more of that lane may go now; what waits long for an answer takes no room."""
        room = AT_ONCE - (len(self._under_way) - self._silent.total())
        return (
            room if lane is self._due else min(room, AT_ONCE - KEPT_FOR_FRESH - len(self._overdue_under_way))
        )

    def _ended(self, key: str, task: asyncio.Task[None]) -> None:
        del self._under_way[key]
        self._overdue_under_way.discard(key)
        if (row := self._afterwards.pop(key, None)) is not None:
            self._let_wait(self._due, row)
        self._woken.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("giving back %s failed", key, exc_info=error)

    # ── Out ───────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _give_back(self, key: str, generation: Any) -> None:
        """Publish, confirmed, then remove (R1). What fails stays stored, and is tried again in this process."""
        try:
            with self._asking(READ):
                doc = await self._stored(key)
            if doc is None or doc.get("generation") != generation:
                self._another(key, doc)
                return
            message = doc.get("message")
            if not isinstance(message, dict):
                log.error(
                    "stored retry %s cannot be read, and stays where it is: its message is %s",
                    key, type(message).__name__, extra={"action": "malformed"},
                )  # fmt: skip
                return
            if not self._may_publish:
                return
            # A generation alone may come again: the first failure after a removal counts from 1.
            row = {"generation": generation, "fire_at": doc.get("fire_at")}
            if self._published.get(key) != row:
                worker = self._keys.worker(doc)
                place = worker or json_form.replay_key(message)
                if self._silent[place] >= MOST_SILENT:
                    self._held[key] = (place, DueKey(key, generation, self._clock.monotonic()))
                    return
                with self._answering(place, key):
                    if not await self._publish(worker, message):
                        return
                self._place_works(place)
                self._published[key] = row
        except Exception as error:  # noqa: BLE001 - a store and a publisher of any program, with errors of their own
            self._again(key, generation, error)
            return
        self._tries.pop(key, None)
        await self._remove(key, row)

    @contextmanager
    def _answering(self, place: str, key: str) -> Iterator[None]:
        """Publish to that place within the block: told where it fails, and no hindrance to others where it is slow."""
        silent = False

        def waits_long() -> None:
            nonlocal silent
            silent = True
            self._silent[place] += 1
            self._overdue_under_way.discard(key)
            self._woken.set()

        timer = self._clock.call_later(PATIENCE, waits_long)
        try:
            yield
        except (LeaseLost, PublishTimeout):
            raise
        except Exception as error:
            self._place_fails(place, error)
            raise
        finally:
            timer.cancel()
            if silent:
                self._silent -= Counter([place])
                self._release(place)

    def _release(self, place: str) -> None:
        """What waits for an answer of that place goes, where enough have come."""
        if self._silent[place] >= MOST_SILENT:
            return
        for waits_for, row in list(self._held.values()):
            if waits_for == place:
                self._schedule_overdue(row.key, row.generation)

    def _place_fails(self, place: str, error: Exception) -> None:
        """What goes there cannot be published, and stays stored. Whoever runs this worker may tell people."""

    def _place_works(self, place: str) -> None:
        """Something was published there."""

    async def _publish(self, worker: str, message: dict[str, Any]) -> bool:
        """Straight to the queue that failed it, else through the exchange; False where it may not go any more."""
        publisher = self._publisher
        # Nothing but True counts: who merely has a method of that name has promised nothing.
        if (
            worker
            and isinstance(publisher, QueuePublisherInterface)
            and await publisher.to_worker(worker, message) is True
        ):
            return True
        # The broker's answer took time, and the machine may have been suspended meanwhile.
        if not self._may_publish:
            return False
        await self._publisher(message)
        return True

    def _again(self, key: str, generation: Any, error: Exception) -> None:
        tries = self._tries.get(key, 0)
        self._tries[key] = tries + 1
        wait = BACKOFF[min(tries, len(BACKOFF) - 1)]
        log.warning(
            "retry %s cannot be given back, again in %g s: %s: %s",
            key, wait, type(error).__name__, error, extra={"action": "blocked"},
        )  # fmt: skip
        # A later failure that came meanwhile has its own time.
        if self._may_publish and not self._is_scheduled(key):
            self._schedule_in(key, generation, wait)

    async def _remove(self, key: str, row: Mapping[str, Any]) -> None:
        """Remove what was published; it must not go out again while the store is away.

        A removal that the store did and did not tell is asked for again, and must not take a later failure along.
        """
        tries = 0
        while self._holds:
            try:
                # Not while a later failure is being written: a store may look and remove in two steps.
                async with self._alone(key):
                    with self._asking(REMOVED):
                        removed = await self._store.delete(key, expected=row)
                    self._published.pop(key, None)
                    if not removed:
                        self._another(key, await self._stored(key))
                return
            except Exception as error:  # noqa: BLE001 - as above
                wait = HELD_BACKOFF[min(tries, len(HELD_BACKOFF) - 1)]
                tries += 1
                log.warning(
                    "retry %s is published, and cannot be removed yet, again in %g s: %s: %s",
                    key, wait, type(error).__name__, error, extra={"action": "held"},
                )  # fmt: skip
                await self._clock.sleep(wait)

    def _another(self, key: str, doc: Mapping[str, Any] | None) -> None:
        """Another process removed that message, or stored a later failure of it, which has a time of its own."""
        if doc is None:
            self._tries.pop(key, None)
        elif _is_time(doc.get("fire_at")) and self._may_publish and not self._is_scheduled(key):
            self._schedule(key, doc.get("generation"), doc["fire_at"])


def _retry_of(message: object) -> Mapping[str, Any]:
    """The retry block of a failed message, empty where it has none."""
    retry = message.get("retry") if isinstance(message, Mapping) else None
    return retry if isinstance(retry, Mapping) else {}


def _is_time(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
