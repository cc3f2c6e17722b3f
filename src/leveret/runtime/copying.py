"""From one store to another: what waits, what is dead, and what people have asked for (`leveret store copy`)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from leveret.core.dead_letter import DeadLetter, LetterState, Replay
from leveret.core.errors import LeaseLost, StoreError, StoreRefused
from leveret.core.json_form import RETRY_WORKER_TYPE
from leveret.core.retry_entry import Filter, RetryEntry
from leveret.dead_letters import replay
from leveret.pipeline.batches import portions
from leveret.ports import Acknowledged, Act, DocumentStore, Grant, Lease, Store, World
from leveret.retry import acts
from leveret.retry.lease import LeaseKeeper
from leveret.runtime.copy_counts import Copied, Count, Tally
from leveret.runtime.world import holder_name

STATES: Final[tuple[LetterState, ...]] = ("dead", "claimed", "replayed", "discarded")

#: Rows that are read and written at once; fewer where they are large.
ROWS = 200
#: Bytes of bodies in memory at once; a single larger one travels alone.
BYTES = 8 * 1024 * 1024

#: An act that nobody does: it lies in the target with the terms that the leases had during the last copy, so that who
#: copies once more is told whether somebody was at work meanwhile.
MARK: Final = "store.copy"

#: Documents in memory at once.
DOCUMENTS: Final = 50

_LEASES: Final = ("retry", "keeper")


class StoreCopy:
    """Copies what waits and what is dead from one open store to another; the source stays as it is.

    Bodies and properties stay byte for byte. What is left of a delay is kept, by the clock of each store. It can be
    stopped at any point and done again: what is there already is left as it is. How often a flagged delivery of an
    ordered queue was started is not copied, and counted anew.

    Args:
        source: is read.
        target: is written.
        world: of this process.
        ttl: seconds that a lease lasts unrenewed.
        documents: what waits in the JSON form, by namespace: the open stores of source and target.

    Example:
        copy = StoreCopy(source, target, world=world, ttl=30.0)
        async with copy.holding(["shop"]):
            copied = await copy.run("shop")
    """

    def __init__(
        self,
        source: Store,
        target: Store,
        *,
        world: World,
        ttl: float,
        documents: Mapping[str, tuple[DocumentStore, DocumentStore]] | None = None,
    ) -> None:
        self._source = source
        self._target = target
        self._stores: Mapping[str, Store] = {"source": source, "target": target}
        self._documents = documents or {}
        self._world = world
        self._ttl = ttl
        #: By namespace, while they are held: the keepers, and the proof of what each has held since the beginning.
        self._keepers: dict[str, list[tuple[LeaseKeeper, Grant]]] = {}

    async def at_work_since(self, namespace: str) -> list[str]:
        """Where somebody has been at work on the namespace since it was last copied into the target, in words.

        What a target has processed meanwhile, another copy would bring back.
        """
        marks = await self._target.asked(namespace, [MARK])
        if not marks:
            return []
        known, now = marks[-1].arguments, await self._terms(namespace)
        return [
            f"{self._stores[side].display}: somebody held the {lease} lease of {namespace}"
            for side, terms in now.items()
            for lease, term in terms.items()
            if term != known[side].get(lease, 0)
        ]

    async def in_the_way(self, namespace: str) -> list[str]:
        """Who holds a lease of the namespace on either side, a sentence for each."""
        found = []
        for side, name, lease in self._leases(namespace):
            state = await lease.state()
            if state is not None and state.left > 0:
                found.append(self._held(side, namespace, name, state.holder, state.left))
        return found

    @contextlib.asynccontextmanager
    async def holding(self, namespaces: Sequence[str]) -> AsyncIterator[None]:
        """Hold the leases of these namespaces on both sides within the block, so that nobody publishes meanwhile.

        Raises:
            StoreError: somebody else holds one of them.
        """
        async with contextlib.AsyncExitStack() as held:
            for namespace in namespaces:
                self._keepers[namespace] = [
                    await held.enter_async_context(self._lease(side, namespace, name, lease))
                    for side, name, lease in self._leases(namespace)
                ]
            try:
                yield
            finally:
                self._keepers.clear()

    async def run(self, namespace: str, *, told: Callable[[int], object] = lambda _: None) -> Copied:
        """Copy one namespace whose leases are held.

        Args:
            namespace: which.
            told: called with how many more rows were dealt with, again and again.

        Raises:
            LeaseLost: a lease is no longer held; what was written by then stays.
            StoreError: a store failed; likewise.
        """
        self._check(namespace)
        await self._mark(namespace)
        waiting, dead = Count(told), Count(told)
        async for entries in self._entries(namespace):
            self._check(namespace)
            await waiting.put([entry for entry in entries if entry.body is not None], self._put)
            for entry in entries:
                if entry.body is None:
                    waiting.lose(entry, entry.state_reason)
        claimed = 0
        async for letters in self._letters(namespace, dead):
            self._check(namespace)
            claimed += sum(letter.state == "claimed" for letter in letters)
            await dead.put([self._at_rest(letter) for letter in letters], self._target.keep)
        asked = await self._source.asked(namespace, [*acts.VERBS, *replay.VERBS])
        for act in asked:
            await self._target.ask(act)
        wanted = Filter(namespace=namespace)
        return Copied(
            namespace=namespace,
            retries=waiting.tally(
                await self._source.count_entries(wanted), await self._target.count_entries(wanted)
            ),
            letters=dead.tally(
                await self._source.count_letters(wanted, states=STATES),
                await self._target.count_letters(wanted, states=STATES),
            ),
            documents=await self._copy_documents(namespace, told),
            acts=len(asked),
            claimed=claimed,
        )

    # ── What waits ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _entries(self, namespace: str) -> AsyncIterator[list[RetryEntry]]:
        """All that waits, whole, in portions; `wait` is the moment at which each is due, by our monotonic clock."""
        clock, after = self._world.clock, None
        while True:
            page, after = await self._source.entries(Filter(namespace=namespace), limit=ROWS, after=after)
            for portion in portions(page, number=ROWS, size=BYTES):
                rows = [(row.key, row.failure) for row in portion]
                found = await self._source.take(namespace, rows, held=True)
                now = clock.monotonic()
                yield [replace(each, wait=now + each.due_in) for each in found]
            if after is None:
                return

    async def _put(self, entries: Sequence[RetryEntry]) -> int:
        now = self._world.clock.monotonic()
        waiting = [replace(each, wait=(each.wait or 0.0) - now) for each in entries]
        return sum(placed.written for placed in await self._target.put(waiting))

    # ── What is dead ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def _letters(self, namespace: str, dead: Count) -> AsyncIterator[list[DeadLetter]]:
        """All that is dead, whole, in portions; what is not whole is counted as lost."""
        after = None
        while True:
            page, after = await self._source.letters(
                Filter(namespace=namespace), limit=ROWS, after=after, states=STATES
            )
            for portion in portions(page, number=ROWS, size=BYTES):
                found = await asyncio.gather(*(self._letter(row, dead) for row in portion))
                yield [letter for letter in found if letter is not None]
            if after is None:
                return

    async def _letter(self, row: DeadLetter, dead: Count) -> DeadLetter | None:
        try:
            return await self._source.letter(row.namespace, row.id)
        except StoreRefused as error:
            dead.lose(row, str(error))
            return None

    def _at_rest(self, letter: DeadLetter) -> DeadLetter:
        """The letter as it may lie in a store that knows nothing of a replay which has claimed it."""
        if letter.state != "claimed":
            return letter
        # It may be out already: the replay was killed, and nobody has reported.
        unknown = Replay(
            at=self._world.clock.now(), replay_id="", to=replay.place(letter), outcome="maybe twice"
        )
        return replace(letter, state="dead", replays=(*letter.replays, unknown))

    # ── What waits in the JSON form ───────────────────────────────────────────────────────────────────────────────────

    async def _copy_documents(self, namespace: str, told: Callable[[int], object]) -> Tally | None:
        if namespace not in self._documents:
            return None
        source, target = self._documents[namespace]
        id_field = source.get_doc_id_field()

        async def write(docs: Sequence[dict[str, Any]]) -> int:
            there = await asyncio.gather(*(target.exists(str(doc.get(id_field))) for doc in docs))
            new = [doc for doc, is_there in zip(docs, there, strict=True) if not is_there]
            await target.upsert_many(new)
            return len(new)

        count = Count(told)
        portion: list[dict[str, Any]] = []
        async for doc in source.query({}):
            portion.append(doc)
            if len(portion) == DOCUMENTS:
                self._check(namespace)
                await count.put(portion, write)
                portion = []
        self._check(namespace)
        await count.put(portion, write)
        return count.tally(await how_many(source), await how_many(target))

    # ── Leases ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _leases(self, namespace: str) -> Iterator[tuple[str, str, Lease]]:
        """Side, name and lease of all that somebody may hold who works on the namespace."""
        for side, store in self._stores.items():
            for name in _LEASES:
                yield side, name, store.lease(f"{namespace}/{name}")
        for side, documents in zip(self._stores, self._documents.get(namespace, ()), strict=False):
            yield side, RETRY_WORKER_TYPE, documents.lease(f"{namespace}/{RETRY_WORKER_TYPE}")

    @contextlib.asynccontextmanager
    async def _lease(
        self, side: str, namespace: str, name: str, lease: Lease
    ) -> AsyncIterator[tuple[LeaseKeeper, Grant]]:
        keeper = LeaseKeeper(
            lease,
            holder=holder_name(self._world),
            ttl=self._ttl,
            clock=self._world.clock,
            gained=lambda _: None,
            lost=lambda _: None,
        )
        await keeper.run_once()
        grant = keeper.grant
        if grant is None:
            other = await keeper.standing()
            raise StoreError(self._held(side, namespace, name, other.holder, other.left))
        keeper.start()
        try:
            yield keeper, grant
        finally:
            await keeper.stop()

    def _check(self, namespace: str) -> None:
        held = self._keepers.get(namespace, [])
        # Lost and taken again is lost: somebody may have been at work in between.
        if not held or not all(keeper.holds_as(grant) for keeper, grant in held):
            raise LeaseLost(
                f"a lease of {namespace} is no longer held, so that others may be at work. What was copied stays; run "
                "it again to go on"
            )

    async def _terms(self, namespace: str) -> dict[str, dict[str, int]]:
        terms: dict[str, dict[str, int]] = {side: {} for side in self._stores}
        for side, name, lease in self._leases(namespace):
            state = await lease.state()
            terms[side][name] = 0 if state is None else state.term
        return terms

    def _held(self, side: str, namespace: str, lease: str, holder: str, left: float) -> str:
        return (
            f"{holder or 'somebody'} holds the {lease} lease of {namespace} in {self._stores[side].display} "
            f"({left:.0f} s left). Stop it first: what it does meanwhile would be copied as not done. Where it was "
            "killed, wait until its time is over"
        )

    async def _mark(self, namespace: str) -> None:
        before = await self._target.asked(namespace, [MARK])
        await self._target.ask(
            Act(
                id=self._world.new_id(),
                namespace=namespace,
                verb=MARK,
                arguments=await self._terms(namespace),
                asked_at=self._world.clock.now(),
            )
        )
        done = Acknowledged(by="leveret store copy", asked=0, done=0, notes=(), finished=True)
        for act in before:
            await self._target.report(act.id, done)


async def how_many(documents: DocumentStore) -> int:
    """How many documents there are."""
    count = 0
    async for _ in documents.query({}):
        count += 1
    return count
