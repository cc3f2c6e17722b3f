"""Replay: dead letters go back to the queue that failed them. Claimed, then published, then marked (D3)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from leveret.core import envelope, handover
from leveret.core.dead_letter import DeadLetter, LetterState, Replay
from leveret.core.errors import (
    LeaseLost,
    LeveretError,
    PublishError,
    PublishRefused,
    PublishTimeout,
    StoreRefused,
    StoreUnavailable,
)
from leveret.core.message import Outgoing
from leveret.core.retry_entry import Filter
from leveret.pipeline.parts import Parts, log
from leveret.pipeline.publishing import held_backoff
from leveret.ports import Acknowledged, Act, Grant
from leveret.retry.acts import Unanswered
from leveret.retry.asking import filter_of
from leveret.retry.lease import LeaseKeeper

VERBS: Final = ("dead.replay",)

#: Letters that are claimed and published at once; after a kill at most these may go out twice.
WINDOW = 50


@dataclass(slots=True)
class _Progress:
    """How far one replay has come."""

    asked: int = 0
    published: int = 0
    failed: int = 0
    dead_again: int = 0
    maybe_twice: int = 0
    notes: list[str] = field(default_factory=list)
    #: Letters that this replay published: a letter that names one of them has died again.
    ids: set[str] = field(default_factory=set)

    def report(self, by: str, *, finished: bool) -> Acknowledged:
        return Acknowledged(
            by, self.asked, self.published, tuple(self.notes), finished, self.dead_again, self.maybe_twice
        )


class Replays:
    """Obeys replays, one after the other."""

    def __init__(self, parts: Parts, keeper: LeaseKeeper) -> None:
        self._parts = parts
        self._keeper = keeper
        self._running: dict[str, _Progress] = {}
        self._closing = False
        self._unanswered = Unanswered()
        #: Set while no replay is under way.
        self._at_rest = asyncio.Event()
        self._at_rest.set()

    @property
    def busy(self) -> bool:
        """Whether a replay is under way."""
        return not self._at_rest.is_set()

    async def finish(self) -> None:
        """Finish the window in hand; the next holder goes on with the rest."""
        self._closing = True
        await self._at_rest.wait()

    def kept(self, letter: DeadLetter) -> None:
        """A letter came in: did one of a running replay's messages die again?"""
        for progress in self._running.values():
            if letter.first_letter in progress.ids:
                progress.dead_again += 1

    async def obey(self, grant: Grant) -> int:
        """Do the replays that are asked for and not finished. Returns how many.

        Raises:
            StoreUnavailable: it did not answer for all; those that it did not answer for stay written.
        """
        acts = await self._parts.store.asked(self._parts.names.namespace, VERBS)
        await self._unanswered.in_turn(acts, lambda act: self._obey(act, grant))
        return len(acts)

    async def _obey(self, act: Act, grant: Grant) -> None:
        self._at_rest.clear()
        try:
            report = await self._replay(act, grant)
        except (StoreUnavailable, LeaseLost):
            # It stays written; whoever holds the lease then goes on with it.
            raise
        except (LeveretError, ValueError, TypeError, KeyError) as error:
            report = Acknowledged(self._parts.holder, 0, 0, (f"could not be done: {error}",), True)
        finally:
            self._at_rest.set()
            self._running.pop(act.id, None)
        await self._give_back(act, grant)
        await self._parts.store.report(act.id, report)

    async def _give_back(self, act: Act, grant: Grant) -> None:
        """What a finished replay has still claimed lies there as before; nobody else could ever take it."""
        store, now = self._parts.store, self._parts.world.clock.now()
        # No letter bears this id, so that only what was claimed before is handed out.
        nothing_new = Filter(namespace=self._parts.names.namespace, ids=(act.id,))
        while letters := await store.claim(nothing_new, replay_id=act.id, limit=WINDOW, grant=grant):
            left = Replay(
                at=now,
                replay_id=act.id,
                to=place(letters[0]),
                outcome="failed: no answer came; it may have gone out",
            )
            await store.replayed([(letter.namespace, letter.id) for letter in letters], left, state="dead")

    async def _replay(self, act: Act, grant: Grant) -> Acknowledged:
        store, holder = self._parts.store, self._parts.holder
        wanted = filter_of(act.arguments, self._parts.names.namespace)
        progress = _Progress()
        if not wanted.names_something:
            progress.notes.append("it names no letters; acts never take nothing")
            return progress.report(holder, finished=True)
        if not act.arguments.get("rpc"):
            left_out = await store.count_letters(replace(wanted, rpc=True))
            if left_out:
                progress.notes.append(
                    f"{left_out} RPC requests left out: their callers have given up. One by one, with --rpc"
                )
            wanted = replace(wanted, rpc=False)
        if not wanted.ids:
            # What dies again of the same thing fits the same words, and would be replayed for ever.
            wanted = replace(wanted, until=min(act.asked_at, wanted.until or act.asked_at))
        before = act.report
        if before is not None:
            # Another process began this replay: its figures go on.
            progress.published, progress.dead_again, progress.maybe_twice = (
                before.done, before.dead_again, before.maybe_twice,
            )  # fmt: skip
        progress.asked = progress.published + await store.count_letters(wanted, states=("dead", "claimed"))
        if act.arguments.get("dry_run"):
            progress.notes.append("dry run: nothing was published")
            return progress.report(holder, finished=True)
        self._running[act.id] = progress
        await self._windows(act, wanted, progress, grant)
        return progress.report(holder, finished=True)

    async def _windows(self, act: Act, wanted: Filter, progress: _Progress, grant: Grant) -> None:
        store = self._parts.store
        rate = act.arguments.get("rate")
        stop_after = act.arguments.get("stop_after")
        size = WINDOW if rate is None else max(1, min(WINDOW, round(rate)))
        while True:
            if self._closing:
                raise LeaseLost("stopping; the next holder of the keeper lease goes on with this replay")
            if stop_after is not None and progress.dead_again >= stop_after:
                progress.notes.append(
                    f"stopped: {progress.dead_again} died again. What is left lies there as before"
                )
                return
            # No more than there were at the beginning: a message id names each death of its message, the next one too.
            left = progress.asked - progress.published - progress.failed
            if left <= 0:
                return
            letters = await store.claim(wanted, replay_id=act.id, limit=min(size, left), grant=grant)
            if not letters:
                return
            await self._parts.reach(handover.REPLAY_CLAIMED, letters[0].message_id)
            failed = await self._publish(act, letters, progress, grant)
            await store.report(act.id, progress.report(self._parts.holder, finished=False))
            if failed:
                progress.notes.append(
                    f"{progress.failed} could not be published and lie there as before: {failed}"
                )
                return
            if rate is not None:
                await self._parts.world.clock.sleep(len(letters) / rate)

    async def _publish(
        self, act: Act, letters: Sequence[DeadLetter], progress: _Progress, grant: Grant
    ) -> str:
        """Publish a window and mark it. Returns why some could not be published, empty where all were."""
        transport, world = self._parts.transport, self._parts.world
        reset = bool(act.arguments.get("reset_attempts", True))
        answers: list[asyncio.Future[None]] = []
        for letter in letters:
            if not transport.sendable:
                await transport.ready()
            if not self._keeper.holds_as(grant):
                raise LeaseLost("the keeper lease ended during a replay; the next holder goes on with it")
            progress.ids.add(letter.id)
            try:
                out = outgoing(letter, reset_attempts=reset, parts=self._parts)
            except (LeveretError, ValueError) as error:
                # This one alone; the others of its window go.
                unsent: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                unsent.set_exception(PublishRefused(f"it cannot be written: {error}"))
                answers.append(unsent)
            else:
                answers.append(transport.send(out))
        why = ""
        marks: dict[tuple[str, LetterState], list[tuple[str, str]]] = {}
        for letter, answer in zip(letters, answers, strict=True):
            again = letter.state == "claimed"
            outcome: str
            state: LetterState = "replayed"
            try:
                await answer
            except PublishTimeout as error:
                # Unknown: it may be in the queue. It stays claimed, and goes out again with this replay.
                log.warning("replay of %s: %s", letter.id[-6:], error, extra={"action": "replay"})
                outcome, state = "unknown", "claimed"
            except PublishError as error:
                why = str(error)
                progress.failed += 1
                outcome, state = f"failed: {why}", "dead"
            else:
                if world.reached is not None:
                    await self._parts.reach(handover.REPLAY_CONFIRMED, letter.message_id)
                progress.published += 1
                progress.maybe_twice += again
                outcome = "maybe twice" if again else "published"
            if state != "claimed":
                marks.setdefault((outcome, state), []).append((letter.namespace, letter.id))
        for (outcome, state), ids in marks.items():
            to = place(next(letter for letter in letters if letter.id == ids[0][1]))
            await self._mark(
                ids, Replay(at=world.clock.now(), replay_id=act.id, to=to, outcome=outcome), state
            )
        return why

    async def _mark(self, ids: Sequence[tuple[str, str]], done: Replay, state: LetterState) -> None:
        for wait in held_backoff():
            try:
                await self._parts.store.replayed(ids, done, state=state)
            except StoreUnavailable as error:
                log.warning(
                    "replays cannot be marked, again in %g s: %s", wait, error, extra={"action": "replay"}
                )
                await self._parts.world.clock.sleep(wait)
            else:
                return


def outgoing(letter: DeadLetter, *, reset_attempts: bool, parts: Parts) -> Outgoing:
    """What a replay publishes: straight to the queue that failed it, else to exchange and key.

    Raises:
        StoreRefused: the store does not have its body whole.
    """
    if letter.body is None:
        raise StoreRefused(
            f"the store does not have all of its body; `leveret dead show {letter.id}` says what is missing"
        )
    body, properties = envelope.replayed(letter, reset_attempts=reset_attempts, where=parts.where)
    if letter.queue:
        return Outgoing("", letter.queue, body, properties)
    return Outgoing(letter.exchange, letter.routing_key, body, properties)


def place(letter: DeadLetter) -> str:
    """Where a replay of *letter* goes, for people."""
    return letter.queue or f"{letter.exchange}/{letter.routing_key}"
