"""Load: what the shop's producers publish and its callers ask, and what they are told of it."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Iterator
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from leveret.app import Leveret
from leveret.core.errors import (
    LeveretError,
    PublishFailures,
    PublishRefused,
    PublishTimeout,
    RpcRemoteError,
    RpcTimeoutError,
    RpcUnknownError,
    RpcUnreachableError,
    TransportUnavailableError,
    Unroutable,
)
from leveret.core.message import Message
from leveret.proof import shop
from leveret.proof.record import Answer, Answered, Asked, Called, CallEnded, CallOutcome, Record
from leveret.runtime.world import random_uuid

if TYPE_CHECKING:
    from leveret.torture.process import Told

#: Seconds between two looks at what is owed by now.
_TICK: Final = 0.02
#: Publishes without an answer at most: what more is owed waits.
_MOST: Final = 1500
#: So many times the rate is published while an outage is caught up with: more, and the queues would be full for longer
#: than the outage was, and the lateness shown would be that of the machine.
_CATCH_UP: Final = 1.2
#: Shares of what is published: to be delivered later, and many at once.
_DELAYED: Final = 0.02
_MANY: Final = 0.1
_SO_MANY: Final = 20
#: Seconds until what was refused is published again, and what is unknown: each of that may be one more copy.
_AGAIN: Final = 0.5
_AGAIN_UNKNOWN: Final = 5.0
#: Seconds that a caller waits, and the share of its requests whose handler fails.
_CALL: Final = 2.0
_FAILS: Final = 0.1


class _Load:
    """Something that begins so many times a second, until it is to rest."""

    def __init__(self, rate: float) -> None:
        self._rate: Final = rate
        self._tasks: Final[set[asyncio.Task[None]]] = set()
        #: What ended some of them, and none may end with.
        self._failures: Final[list[BaseException]] = []
        self._resting = False

    def begin(self) -> Iterator[Any]:
        """What to begin: how many units it counts for, after having begun them."""
        raise AssertionError(f"{type(self).__name__} does not say what to begin")

    async def run(self) -> None:
        """Begin so many a second, never more than that and what is owed from an outage; it does not return.

        Raises:
            Exception: what ended something that was begun.
        """
        loop = asyncio.get_running_loop()
        last, owed = loop.time(), 0.0
        begins = self.begin()
        while True:
            await asyncio.sleep(_TICK)
            if self._failures:
                raise self._failures[0]
            now = loop.time()
            owed += (now - last) * self._rate
            # What is owed from an outage is not published all at once.
            most = owed - (now - last) * self._rate * _CATCH_UP
            last = now
            while not self._resting and owed >= 1 and owed > most and len(self._tasks) < _MOST:
                owed -= next(begins)

    def start(self, coroutine: Any) -> None:
        """Have it done beside others."""
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failures.append(error)

    async def rest(self) -> None:
        """Begin nothing new, and return when all that was begun has its answer."""
        self._resting = True
        while self._tasks:
            await asyncio.wait(list(self._tasks))


class Producers(_Load):
    """Publish orders; what is refused or unknown is published again, under the same id, until it is accepted."""

    def __init__(self, app: Leveret, record: Record, told: Told) -> None:
        super().__init__(told.rate)
        self._app: Final = app
        self._record: Final = record
        # More than any run publishes: they are made one by one.
        self._orders: Final = shop.orders(told.seed, 1_000_000_000, soft=told.soft, hard=told.hard)
        self._chance: Final = random.Random(f"load of {told.seed}")
        self._more: Final[deque[tuple[str, shop.Order]]] = deque()

    def also(self, type: str, order: shop.Order) -> None:
        """Publish this one too."""
        self._more.append((type, order))

    def begin(self) -> Iterator[int]:
        """Publish the next order, or many at once."""
        while True:
            if self._more:
                type, order = self._more.popleft()
                self.start(self._publish(type, order, 0.0))
                yield 1
                continue
            drawn = self._chance.random()
            if drawn < _MANY / _SO_MANY:
                self.start(self._publish_many([next(self._orders) for _ in range(_SO_MANY)]))
                yield _SO_MANY
            else:
                wait = self._chance.uniform(0.5, 3.0) if drawn > 1 - _DELAYED else 0.0
                self.start(self._publish(*next(self._orders), wait))
                yield 1

    async def _publish(self, type: str, order: shop.Order, wait: float) -> None:
        message = Message(type, order, id=random_uuid())
        while True:
            self._ask(message, order["subject"], wait)
            error: LeveretError | None = None
            try:
                await self._app.publish(type, order, id=message.id, delay=wait or None)
            except LeveretError as raised:
                error = raised
            answer = self._told(order["subject"], error)
            if answer in {"accepted", "unroutable"}:
                return
            await asyncio.sleep(_AGAIN_UNKNOWN if answer == "unknown" else _AGAIN)

    async def _publish_many(self, orders: list[tuple[str, shop.Order]]) -> None:
        messages = [Message(type, order, id=random_uuid()) for type, order in orders]
        left = list(range(len(orders)))
        while left:
            for position in left:
                self._ask(messages[position], orders[position][1]["subject"], 0.0)
            failed: dict[int, LeveretError] = {}
            try:
                await self._app.publish_many([messages[position] for position in left])
            except PublishFailures as failures:
                failed = {left[number]: error for number, error in failures.failed.items()}
            answers = {
                position: self._told(orders[position][1]["subject"], failed.get(position))
                for position in left
            }
            left = [position for position in left if answers[position] not in {"accepted", "unroutable"}]
            if left:
                await asyncio.sleep(_AGAIN_UNKNOWN if "unknown" in answers.values() else _AGAIN)

    def _ask(self, message: Message, subject: str, wait: float) -> None:
        record = self._record
        record.write(
            Asked(
                at=record.now(), by=record.by, subject=subject, type=message.type, message_id=message.id or "",
                wait=wait, digest=shop.digest_as_published(message),
            )
        )  # fmt: skip

    def _told(self, subject: str, error: LeveretError | None) -> Answer:
        answer = answer_of(error)
        record = self._record
        why = "" if error is None else str(error)
        record.write(Answered(at=record.now(), by=record.by, subject=subject, answer=answer, error=why))
        return answer


def answer_of(error: LeveretError | None) -> Answer:
    """What a publish that ended so comes to.

    Raises:
        LeveretError: no publish may end so.
    """
    match error:
        case None:
            return "accepted"
        case PublishTimeout():
            return "unknown"
        case Unroutable():
            return "unroutable"
        case PublishRefused():
            return "refused"
        case _:
            raise error


class Callers(_Load):
    """Ask for prices."""

    def __init__(self, app: Leveret, record: Record, told: Told) -> None:
        super().__init__(told.calls)
        self._app: Final = app
        self._record: Final = record
        self._chance: Final = random.Random(f"calls of {told.seed}")

    def begin(self) -> Iterator[int]:
        """Make the next call."""
        for number in count(1):
            self.start(self._call(f"{self._record.by}#{number}", fails=self._chance.random() < _FAILS))
            yield 1

    async def _call(self, name: str, *, fails: bool) -> None:
        record = self._record
        record.write(Called(at=record.now(), by=record.by, call=name, timeout=_CALL))
        outcome: CallOutcome = "answered"
        right = True
        try:
            answer = await self._app.call(shop.CHANNEL, {"call": name, "fails": fails}, timeout=_CALL)
            right = not fails and answer.get("call") == name
        except RpcRemoteError as error:
            outcome = "failed"
            right = fails and error.message.endswith(f" for {name}")
        except LeveretError as error:
            outcome = call_outcome_of(error)
        record.write(CallEnded(at=record.now(), by=record.by, call=name, outcome=outcome, right=right))


def call_outcome_of(error: LeveretError) -> CallOutcome:
    """What a call that raised this comes to.

    Raises:
        LeveretError: no call may end so.
    """
    match error:
        case RpcRemoteError():
            return "failed"
        case RpcTimeoutError():
            return "timeout"
        case RpcUnreachableError():
            return "unreachable"
        case RpcUnknownError():
            return "unknown"
        case TransportUnavailableError():
            return "not sent"
        case _:
            raise error
