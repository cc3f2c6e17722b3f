"""What the processes of a simulation do: publish, work, keep retries, keep dead letters, call, and replay."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final

from leveret.app import Leveret
from leveret.core.dead_letter import DeadLetter
from leveret.core.errors import (
    BrokerError,
    LeveretError,
    PublishError,
    PublishRefused,
    PublishTimeout,
    RpcRemoteError,
    RpcTimeoutError,
    RpcUnknownError,
    RpcUnreachableError,
    StoreError,
    TransportUnavailableError,
    Unroutable,
)
from leveret.core.properties import Properties
from leveret.proof.record import Answer, Answered, Asked, Called, CallEnded, CallOutcome, Replayed
from leveret.proof.shop import digest_as_published
from leveret.simulate.process import Process
from leveret.simulate.scene import Ask, Scene

#: Seconds that a caller waits for an answer.
PATIENCE = 2.0
#: Calls that a caller makes at once: alone, it knows more of what became of its request.
TOGETHER = (1, 1, 2, 3)
#: Share of the calls that their handler raises at.
FAILING_CALLS = 0.1
#: Seconds between tries to reach a broker or a store that is away.
AGAIN = 0.5


class Share:
    """What a producer is to publish, and what of it was accepted in all its lives."""

    def __init__(self, asks: Sequence[Ask]) -> None:
        self.asks: Final = asks
        self.accepted: Final[set[str]] = set()

    @property
    def done(self) -> bool:
        """Whether all is accepted."""
        return len(self.accepted) == len(self.asks)


async def _persistent(work: Callable[[], Awaitable[None]]) -> None:
    """Try again while broker or store are away, as whoever starts processes does."""
    while True:
        try:
            await work()
        except (BrokerError, StoreError, PublishError):
            await asyncio.sleep(AGAIN)
        else:
            return


def worker(
    *, retry_worker: bool, keeper: bool, works: bool
) -> Callable[[Process], Coroutine[Any, Any, None]]:
    """A process that works on messages, keeps retries, keeps dead letters, or several of these."""

    async def live(process: Process) -> None:
        async def run() -> None:
            async with process.app(works=works).running(retry_worker=retry_worker, keeper=keeper):
                await process.stopping.wait()

        await _persistent(run)

    return live


def producer(share: Share) -> Callable[[Process], Coroutine[Any, Any, None]]:
    """A process that publishes its share, each until it is accepted, under the same id."""

    async def live(process: Process) -> None:
        await _persistent(lambda: _publish(process, share))

    return live


async def _publish(process: Process, share: Share) -> None:
    async with process.app() as app, asyncio.TaskGroup() as publishing:
        for ask in share.asks:
            if ask.subject in share.accepted:
                continue
            if (left := ask.at - process.record.now()) > 0:
                await process.clock.sleep(left)
            if process.stopping.is_set():
                return
            publishing.create_task(_until_accepted(process, app, share, ask))


async def _until_accepted(process: Process, app: Leveret, share: Share, ask: Ask) -> None:
    record, subject = process.record, ask.subject
    while not process.stopping.is_set():
        record.write(
            Asked(
                at=record.now(), by=record.by, subject=subject, type=ask.message.type,
                message_id=ask.message.id or "", wait=ask.wait, digest=digest_as_published(ask.message),
            )
        )  # fmt: skip
        answer: Answer = "accepted"
        error = ""
        try:
            await app.publish(ask.message, delay=ask.wait or None)
        except PublishError as raised:
            answer = answer_of(raised)
            error = type(raised).__name__
        record.write(Answered(at=record.now(), by=record.by, subject=subject, answer=answer, error=error))
        if answer == "accepted":
            share.accepted.add(subject)
            return
        await process.clock.sleep(process.random.uniform(0.1, 1.0))


#: What an error of a publish means.
_ANSWERS: Final[tuple[tuple[type[Exception], Answer], ...]] = (
    (Unroutable, "unroutable"),
    (PublishRefused, "refused"),
    (PublishTimeout, "unknown"),
)


def answer_of(error: PublishError) -> Answer:
    """What the caller of a publish was told by that error."""
    return next(answer for kind, answer in _ANSWERS if isinstance(error, kind))


#: What an error of a call means.
_OUTCOMES: Final[tuple[tuple[type[Exception], CallOutcome], ...]] = (
    (RpcRemoteError, "failed"),
    (RpcTimeoutError, "timeout"),
    (RpcUnreachableError, "unreachable"),
    (RpcUnknownError, "unknown"),
    (TransportUnavailableError, "not sent"),
)


def caller(number: int, pace: float) -> Callable[[Process], Coroutine[Any, Any, None]]:
    """A process that asks for prices, *number* in each life, and now and then several at once: answers may cross."""

    async def live(process: Process) -> None:
        calls = iter(range(number))

        async def call_on() -> None:
            async with process.app() as app:
                while not process.stopping.is_set():
                    together = list(itertools.islice(calls, process.random.choice(TOGETHER)))
                    if not together:
                        return
                    async with asyncio.TaskGroup() as calling:
                        for call in together:
                            calling.create_task(_call(process, app, f"{process.by}:{call}"))
                    await process.clock.sleep(process.random.uniform(0, 2 * pace))

        await _persistent(call_on)

    return live


async def _call(process: Process, app: Leveret, call: str) -> None:
    record = process.record
    record.write(Called(at=record.now(), by=record.by, call=call, timeout=PATIENCE))
    fails = process.random.random() < FAILING_CALLS
    outcome: CallOutcome = "answered"
    right = True
    try:
        answer = await app.call(
            process.machine.scene.channel or "", {"call": call, "fails": fails}, timeout=PATIENCE
        )
        right = not fails and answer.get("call") == call
    except LeveretError as error:
        outcome = next(outcome for kind, outcome in _OUTCOMES if isinstance(error, kind))
        if isinstance(error, RpcRemoteError):
            right = fails and error.message.endswith(f" {call}")
    record.write(CallEnded(at=record.now(), by=record.by, call=call, outcome=outcome, right=right))


def replayer(orders: Callable[[], bool]) -> Callable[[Process], Coroutine[Any, Any, None]]:
    """A process that replays, now and then, what may be done this time; until *orders* says that this was the last."""

    async def live(process: Process) -> None:
        async def replay_on() -> None:
            async with process.app() as app:
                while not process.stopping.is_set():
                    last = orders()
                    await _replay(process, app)
                    if last:
                        return
                    await process.clock.sleep(process.random.uniform(2, 6))

        await _persistent(replay_on)

    return live


async def _replay(process: Process, app: Leveret) -> None:
    """Replay each dead letter that has not died again."""
    record = process.record
    ids = []
    for found in await app.dead_letters.list(limit=200):
        if found.first_letter or found.ending == "worker died" or found.rpc:
            continue
        letter = await app.dead_letters.get(found.id)
        subject = process.machine.scene.subject(letter.body or b"", Properties(letter.properties))
        if subject is not None:
            for worker in whose(letter, process.machine.scene):
                record.write(
                    Replayed(at=record.now(), by=record.by, worker=worker, subject=subject, letter=letter.id)
                )
            ids.append(letter.id)
    if ids:
        await app.dead_letters.replay(ids)


def whose(letter: DeadLetter, scene: Scene) -> tuple[str, ...]:
    """The workers that a letter is about: a result that reached nobody is about those who would have taken it."""
    return scene.takers(letter.type) if letter.ending == "unroutable result" else (letter.worker,)
