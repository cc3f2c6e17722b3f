"""A simulator that finds nothing proves nothing: each of these breaks a promise of the core, and is found."""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from leveret.core.errors import LeaseLost
from leveret.core.message import Message, Outgoing
from leveret.core.outcome import WorkerDied
from leveret.core.properties import Properties
from leveret.core.retry_entry import Due, RetryEntry
from leveret.pipeline import delivery as road
from leveret.pipeline.batches import BatchConsumer
from leveret.pipeline.publishing import Publisher
from leveret.retry import republish
from leveret.retry.dispatch import Dispatch
from leveret.retry.republish import TransportRepublisher
from leveret.rpc import client
from leveret.rpc.client import _Way
from leveret.rpc.wire import Answer
from leveret.simulate.run import Result, plan_of, simulate
from leveret.simulate.scene import shop_asks
from leveret.simulate.shrink import shrink
from leveret.stores.memory import MemoryStore

#: Seeds in which a mutant must be found, and messages of each.
SEEDS = 60
MESSAGES = 120

Break = Callable[[pytest.MonkeyPatch], None]


def ack_before_the_hand_over_is_confirmed(patch: pytest.MonkeyPatch) -> None:
    whole = Publisher.hand_over

    async def hastily(self: Publisher, *arguments: Any, **options: Any) -> bool:
        self.hasty = asyncio.create_task(whole(self, *arguments, **options))  # type: ignore[attr-defined]
        return True

    patch.setattr(Publisher, "hand_over", hastily)


def ack_before_it_is_stored(patch: pytest.MonkeyPatch) -> None:
    whole = BatchConsumer._put

    async def hastily(self: Any, taken: Any) -> None:
        for one in taken:
            one.delivery.ack()
        await whole(self, taken)

    patch.setattr(BatchConsumer, "_put", hastily)


def remove_before_the_republish_is_confirmed(patch: pytest.MonkeyPatch) -> None:
    async def sent(
        self: Any, entries: list[RetryEntry], _answers: Any, holds: Callable[[], bool], _unseen: Any
    ) -> list[None]:
        for entry in entries:
            # It breaks one promise, not two.
            if not holds():
                raise LeaseLost("the lease ended while entries were being republished")
            self._parts.transport.send(republish.outgoing(entry))
        return [None] * len(entries)

    patch.setattr(TransportRepublisher, "_sent", sent)


def publish_without_looking_at_the_lease(patch: pytest.MonkeyPatch) -> None:
    whole = TransportRepublisher._sent

    async def blindly(self: Any, entries: Any, answers: Any, _holds: Any, unseen: Any) -> Any:
        return await whole(self, entries, answers, lambda: True, unseen)

    patch.setattr(TransportRepublisher, "_sent", blindly)


def forget_how_often_a_message_was_started(patch: pytest.MonkeyPatch) -> None:
    whole = road.envelope.restarted

    def forgetfully(body: bytes, properties: Any, *, starts: int, **options: Any) -> Any:
        return whole(body, properties, starts=min(starts, 1), **options)

    patch.setattr(road.envelope, "restarted", forgetfully)


def bury_after_one_start(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(road.Road, "_died", lambda _self, starts: WorkerDied(starts))


def put_back_what_came_again_many_times(patch: pytest.MonkeyPatch) -> None:
    whole = road.Road._publish_counted

    async def often(self: road.Road, delivery: Any, message: Any) -> None:
        unsettled = SimpleNamespace(
            body=delivery.body, properties=delivery.properties, stale=False, ack=lambda: True
        )
        for _ in range(4):
            await whole(self, unsettled, message)  # type: ignore[arg-type]
        await whole(self, delivery, message)

    patch.setattr(road.Road, "_publish_counted", often)


def publish_a_little_early(patch: pytest.MonkeyPatch) -> None:
    whole = MemoryStore.put

    async def early(self: MemoryStore, entries: Any) -> Any:
        return await whole(
            self, [replace(entry, wait=max(0.0, (entry.wait or 0.0) - 0.1)) for entry in entries]
        )

    patch.setattr(MemoryStore, "put", early)


def give_a_retry_to_everybody(patch: pytest.MonkeyPatch) -> None:
    whole = republish.outgoing

    def to_all(entry: RetryEntry) -> Outgoing:
        message = whole(entry)
        return (
            message if message.exchange else message._replace(exchange="shop.events", routing_key=entry.type)
        )

    patch.setattr(republish, "outgoing", to_all)


def never_publish_some_of_what_is_due(patch: pytest.MonkeyPatch) -> None:
    whole = Dispatch._publish

    async def some(self: Dispatch, rows: Sequence[Due]) -> None:
        await whole(self, [row for row in rows if zlib.crc32(row.key.encode()) % 5])

    patch.setattr(Dispatch, "_publish", some)


def let_some_publishes_hang(patch: pytest.MonkeyPatch) -> None:
    whole = Publisher.publish

    async def hanging(self: Publisher, message: Message, **options: Any) -> str:
        if str(message.id).endswith("7"):
            await asyncio.get_running_loop().create_future()
        return await whole(self, message, **options)

    patch.setattr(Publisher, "publish", hanging)


def give_a_reply_to_any_call_that_waits(patch: pytest.MonkeyPatch) -> None:
    def replied(self: _Way, body: bytes, properties: Properties) -> None:
        waiting = [call for call in self.calls.values() if not call.answer.done()]
        if waiting:
            waiting[0].answer.set_result((body, properties))

    patch.setattr(_Way, "replied", replied)


def answer_a_failed_request_as_though_it_had_not(patch: pytest.MonkeyPatch) -> None:
    def kindly(_queue: str, body: bytes, _properties: Properties, *, seconds: float) -> Answer:
        return Answer(json.loads(body), "", seconds)

    patch.setattr(client, "read", kindly)


MUTANTS: tuple[tuple[Break, set[str]], ...] = (
    (ack_before_the_hand_over_is_confirmed, {"accounted for", "conservation"}),
    (ack_before_it_is_stored, {"accounted for", "conservation"}),
    (remove_before_the_republish_is_confirmed, {"accounted for", "conservation"}),
    (publish_without_looking_at_the_lease, {"old term"}),
    (forget_how_often_a_message_was_started, {"copies", "backlog"}),
    (bury_after_one_start, {"attempts"}),
    (put_back_what_came_again_many_times, {"copies"}),
    (publish_a_little_early, {"never early"}),
    (never_publish_some_of_what_is_due, {"rest"}),
    (let_some_publishes_hang, {"rest"}),
    (give_a_reply_to_any_call_that_waits, {"calls"}),
    (answer_a_failed_request_as_though_it_had_not, {"calls"}),
    (give_a_retry_to_everybody, {"only the failing worker", "attempts", "copies"}),
)


def _found() -> Result | None:
    for seed in range(SEEDS):
        result = simulate(plan_of(seed, shop_asks(seed, MESSAGES)))
        if not result.passed:
            return result
    return None


@pytest.mark.parametrize(("broken", "rules"), MUTANTS, ids=[broken.__name__ for broken, _ in MUTANTS])
def test_it_finds_a_core_that_would(broken: Break, rules: set[str], monkeypatch: pytest.MonkeyPatch):
    broken(monkeypatch)
    found = _found()
    assert found is not None, f"{SEEDS} seeds did not find it"
    assert found.wrong & rules, found.verdict.faults


def test_what_is_found_shrinks_to_a_few_messages_and_faults(monkeypatch: pytest.MonkeyPatch):
    ack_before_the_hand_over_is_confirmed(monkeypatch)
    # In some other seeds a fault waits for the tenth message to come by, so that ten are the fewest.
    found = simulate(plan_of(35, shop_asks(35, MESSAGES)))
    assert len({fault.subject for fault in found.verdict.faults}) > 30
    small = shrink(found)
    assert small.wrong & found.wrong
    assert len(small.plan.asks) <= 3
    assert len(small.plan.faults) <= 2
