"""RetryWorker: keeps failed messages of the JSON form in a document store, and gives them back when they are due."""

from __future__ import annotations

import asyncio
import functools
import itertools
import math
import os
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, ClassVar, TypeGuard

from leveret.core import json_form
from leveret.core.envelope import HOST
from leveret.core.json_form import FailedMessage
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
from leveret.retry.foreign_lease import ForeignLease
from leveret.retry.keys import RetryKeys
from leveret.retry.lease import LeaseKeeper
from leveret.retry.plain_clock import PlainClock

RETRY_WORKER_TYPE = "retry_worker"

#: Messages that are given back at once; more would only wait for each other's confirms.
AT_ONCE = 100
#: The longest sleep in one piece, in seconds: a machine that was suspended meanwhile is noticed so soon.
LONGEST_SLEEP = 60.0
#: Between tries to give a message back, in seconds; the last one goes on.
BACKOFF = (*HELD_BACKOFF, 60.0, 120.0, 300.0)
#: Seconds for which a row is left alone that the store may have taken without saying so: longer than who brought the
#: envelope waits before bringing it again. Gone out and removed by then, it would be stored and go out once more.
DOUBTED = 60.0
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
        self._publisher = republish_publisher
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
        self._due = DueKeys()
        #: Messages being given back right now, by key, and what is to be done with that key afterwards.
        self._under_way: dict[str, asyncio.Task[None]] = {}
        self._afterwards: dict[str, DueKey] = {}
        #: What was published and is not removed yet, by key: as long as it lies there unchanged it must not go again.
        self._published: dict[str, Mapping[str, Any]] = {}
        #: Until when a row is left alone whose insert failed or is under way, by key and the monotonic clock.
        self._doubted: dict[str, float] = {}
        self._woken = asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        #: When to ask for the lease next, by the monotonic clock; never, while it is being asked for.
        self._poll_at = float("inf")
        self._polling: asyncio.Task[None] | None = None
        self._tries: dict[str, int] = {}
        self._writing: dict[str, asyncio.Lock] = {}
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
        key = self._keys.key(failed)
        async with self._alone(key):
            await self._persist(failed, key)

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
        }
        if (scope := self._keys.scope(failed)) is not None:
            doc["scope"] = scope
        self._doubted[key] = math.inf
        try:
            await self._store.insert(doc, overwrite_existing=True)
        except BaseException:
            self._doubted[key] = self._clock.monotonic() + DOUBTED
            raise
        del self._doubted[key]
        self._tries.pop(key, None)
        if self._may_publish:
            self._schedule(key, generation, fire_at)

    @asynccontextmanager
    async def _alone(self, key: str) -> AsyncIterator[None]:
        """One at a time for each key: what was read is still so when it is written."""
        lock = self._writing.setdefault(key, asyncio.Lock())
        async with lock:
            yield
        if not lock.locked():
            self._writing.pop(key, None)

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
        now = self._clock.monotonic()
        self._doubted = {key: until for key, until in self._doubted.items() if until > now}
        late = 0
        for fire_at, key, generation in sorted(found, key=lambda row: row[:2]):
            known = self._due.get(key)
            # What is scheduled keeps its monotonic time, whatever the wall clock does meanwhile.
            if key in self._under_way or (known is not None and known.generation == generation):
                continue
            if not self._may_publish:
                return
            if self._doubted.get(key) == math.inf:
                # It is just being stored, and scheduled once that is told.
                continue
            late += fire_at <= self._clock.now()
            self._schedule(key, generation, fire_at)
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

    def _drop(self) -> None:
        """Forget what was scheduled, and end what is under way: another one may be at it from now on."""
        self._due.clear()
        self._afterwards.clear()
        for task in self._under_way.values():
            task.cancel()

    def _run(self) -> None:
        if self._running is None or self._running.done():
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
        self._due.add(row)
        self._woken.set()
        self._run()

    def _is_scheduled(self, key: str) -> bool:
        return key in self._afterwards or self._due.get(key) is not None

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
        if not keeper.holds:
            return
        # Standbys store too, and tell nobody: the holder looks at the store each time it renews.
        try:
            await self.schedule_pending()
        except Exception as error:  # noqa: BLE001 - a store of any program, with errors of its own
            # The next renewal looks again.
            log.warning(
                "%s: the stored retries cannot be read: %s", self.name, error, extra={"action": "load"}
            )

    def _launch_due(self, now: float) -> float:
        """Begin to give back what is due; returns the seconds until more of it is."""
        room = AT_ONCE - len(self._under_way)
        for row in itertools.islice(self._due.pop(now), room):
            task = asyncio.create_task(self._give_back(row.key, row.generation))
            self._under_way[row.key] = task
            task.add_done_callback(functools.partial(self._ended, row.key))
        # Where there is no room, the end of one that is under way wakes the loop.
        return self._due.next_in(now) if len(self._under_way) < AT_ONCE else float("inf")

    def _ended(self, key: str, task: asyncio.Task[None]) -> None:
        del self._under_way[key]
        if (row := self._afterwards.pop(key, None)) is not None:
            self._due.add(row)
        self._woken.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("giving back %s failed", key, exc_info=error)

    # ── Out ───────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _give_back(self, key: str, generation: Any) -> None:
        """Publish, confirmed, then remove (R1). What fails stays stored, and is tried again in this process."""
        try:
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
                if not await self._publish(doc, message):
                    return
                self._published[key] = row
        except Exception as error:  # noqa: BLE001 - a store and a publisher of any program, with errors of their own
            self._again(key, generation, error)
            return
        self._tries.pop(key, None)
        await self._remove(key, row)

    async def _publish(self, doc: Mapping[str, Any], message: dict[str, Any]) -> bool:
        """Straight to the queue that failed it, else through the exchange; False where it may not go any more."""
        publisher = self._publisher
        worker = self._keys.worker(doc)
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
