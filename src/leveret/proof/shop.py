"""The shop: the app that the simulator and the torture test put through their faults, and the orders it gets.

What an order's handlers will say is written in the order itself, by step: so any process, in any life, says the same,
and the judge knows what must become of each. Two workers take every order, so that a retry that reached the wrong one
would be seen; one of them returns a receipt, which a third one takes; a fourth takes a few in their order.
"""

from __future__ import annotations

import functools
import hashlib
import operator
import random
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, Final, TypedDict

import msgspec

from leveret.app import Leveret
from leveret.core import headers as h
from leveret.core.errors import HardFailure, SoftFailure
from leveret.core.message import Message
from leveret.core.payload import encode
from leveret.core.policy import RetryPolicy
from leveret.core.properties import Properties
from leveret.core.topology import QueueType
from leveret.pipeline.context import Context
from leveret.ports import Clock
from leveret.proof.record import Began, Ended, Outcome, Record, Served

#: Who takes a message of each type.
TAKERS: Final[Mapping[str, tuple[str, ...]]] = {
    "order.placed": ("charge", "audit"),
    "receipt.made": ("post",),
    "vault.entry": ("vault",),
}
#: Runs that a message may have, the first included.
MAX_ATTEMPTS: Final = 4
#: Starts after which what kills its process becomes a dead letter.
MAX_DELIVERIES: Final = 5
POLICY: Final = RetryPolicy(first_delay=0.2, factor=2, max_delay=2.0, max_attempts=MAX_ATTEMPTS)
#: The channel whose handler answers calls.
CHANNEL: Final = "price"
#: Of the messages that fail softly: how many fail until their tries are used up, and how many do not count.
_EXHAUSTED = 0.05
_UNCOUNTED = 0.1


class Order(TypedDict):
    """What a message of the shop says.

    `fate` holds for each worker what its handler says at the first step, at the second, and so on; the last word holds
    for all later ones. A worker that is not named is done at once. Words: `done` · `soft` (again as the policy says) ·
    `soft:0.5` (again in so many seconds) · `busy:1` (likewise, not counted) · `raise` · `hard` · `deadly` (ends the
    process).
    """

    subject: str
    fate: dict[str, list[str]]


def orders(
    seed: int,
    count: int,
    *,
    soft: float = 0.05,
    hard: float = 0.005,
    deadly: float = 0.0,
    vault: float = 0.02,
) -> Iterator[tuple[str, Order]]:
    """So many messages with their types: the same for the same arguments.

    Args:
        soft: share of the workers' messages that fail softly at first, 0 to 1.
        hard: share that fail hard at first, and are done once replayed.
        deadly: share that end every process they begin in.
        vault: share that go to the worker that takes one after the other.
    """
    chance = random.Random(f"orders of {seed}")
    for number in range(count):
        type = "vault.entry" if chance.random() < vault else "order.placed"
        fate = {
            worker: words
            for worker in (*TAKERS[type], *(("post",) if type == "order.placed" else ()))
            if (words := _fate(chance, soft, hard, deadly)) is not None
        }
        yield type, {"subject": f"o{seed}-{number:06d}", "fate": fate}


def _fate(chance: random.Random, soft: float, hard: float, deadly: float) -> list[str] | None:
    drawn = chance.random()
    if drawn < deadly:
        return ["deadly"]
    drawn -= deadly
    if drawn < hard:
        return ["hard", "done"]
    drawn -= hard
    if drawn >= soft:
        return None
    kind = chance.random()
    if kind < _EXHAUSTED:
        return [*["soft:0.2"] * MAX_ATTEMPTS, "done"]
    if kind < _EXHAUSTED + _UNCOUNTED:
        return ["busy:1", "done"]
    word = chance.choice(("soft", "raise", "soft:0.3", "soft:1.5"))
    return [*[word] * chance.choice((1, 1, 1, 2)), "done"]


def word_at(order: Order, worker: str, step: int) -> str:
    """What a worker's handler says to an order that has failed there so often."""
    words = order["fate"].get(worker) or ["done"]
    return words[min(step, len(words) - 1)]


def declare(
    app: Leveret,
    record: Record,
    clock: Clock,
    *,
    takes: Callable[[], float] = lambda: 0.0,
    dies: Callable[[], Awaitable[None]],
    queue_type: QueueType | None = None,
) -> None:
    """Give an app the shop's workers and its channel.

    Args:
        record: where the handlers write what happens to them.
        takes: seconds that a handler takes, asked for each run.
        dies: ends the process without clean-up; for what is deadly.
        queue_type: of all queues; default: the app's.
    """
    runs = 0

    async def handle(order: Order, ctx: Context, results: tuple[tuple[str, str], ...] = ()) -> None:
        nonlocal runs
        runs += 1
        step = _number(ctx, h.FAILURE)
        run = f"{record.by}#{runs}"
        record.write(
            Began(
                at=record.now(), by=record.by, run=run, worker=ctx.worker, subject=order["subject"],
                message_id=ctx.message_id, attempt=ctx.attempt, step=step, retry_id=ctx.retry_id,
                digest=digest_of(ctx.body, ctx.properties), replayed=_number(ctx, h.REPLAYS),
            )
        )  # fmt: skip
        word, _, seconds = word_at(order, ctx.worker, step).partition(":")
        if word == "deadly":
            await dies()
        if (duration := takes()) > 0:
            await clock.sleep(duration)
        outcome: Outcome = "done" if word == "done" else "hard" if word == "hard" else "soft"
        again_in = float(seconds) if seconds else None
        record.write(
            Ended(
                at=record.now(), by=record.by, run=run, outcome=outcome, again_in=again_in,
                counted=word != "busy", results=results if outcome == "done" else (),
            )
        )  # fmt: skip
        match word:
            case "soft":
                raise SoftFailure("the shop says: not yet", retry_after=again_in)
            case "busy":
                raise SoftFailure("the shop says: busy", retry_after=again_in, counted=False)
            case "hard":
                raise HardFailure("the shop says: never")
            case "raise":
                raise KeyError("something that nobody foresaw")

    @app.worker(
        "order.placed", prefetch=20, concurrency=10, max_deliveries=MAX_DELIVERIES, queue_type=queue_type
    )
    async def charge(order: Order, ctx: Context) -> Message:
        subject = order["subject"]
        await handle(order, ctx, (("receipt.made", subject),))
        return Message("receipt.made", {"subject": subject, "fate": order["fate"]})

    @app.worker(
        "order.placed", prefetch=20, concurrency=10, max_deliveries=MAX_DELIVERIES, queue_type=queue_type
    )
    async def audit(order: Order, ctx: Context) -> None:
        await handle(order, ctx)

    @app.worker(
        "receipt.made", prefetch=20, concurrency=10, max_deliveries=MAX_DELIVERIES, queue_type=queue_type
    )
    async def post(order: Order, ctx: Context) -> None:
        await handle(order, ctx)

    @app.worker(
        "vault.entry", prefetch=1, concurrency=1, max_deliveries=MAX_DELIVERIES, queue_type=queue_type
    )
    async def vault(order: Order, ctx: Context) -> None:
        await handle(order, ctx)

    @app.rpc(CHANNEL, queue_type=queue_type)
    async def price(request: dict[str, Any]) -> dict[str, Any]:
        record.write(Served(at=record.now(), by=record.by, call=request["call"]))
        if (duration := takes()) > 0:
            await clock.sleep(duration)
        if request.get("fails"):
            raise HardFailure(f"the shop has no price for {request['call']}")
        return {"call": request["call"], "cents": 500}


class _Named(msgspec.Struct):
    """What the record reads of a body."""

    subject: str


_NAMED: Final = msgspec.json.Decoder(_Named)


def subject_of(body: bytes) -> str | None:
    """The subject that a body names; None where it is none of the shop's."""
    try:
        return _NAMED.decode(body).subject
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def digest_as_published(message: Message) -> str:
    """The digest of each copy of a message that comes as it was published."""
    body = encode({} if message.payload is None else message.payload, type=message.type)
    properties = Properties.build(
        content_type=message.content_type,
        headers=message.headers or None,
        delivery_mode=2 if message.persistent else 1,
        priority=message.priority,
        correlation_id=message.correlation_id,
        reply_to=message.reply_to,
        message_id=message.id,
        type=message.type,
    )
    return digest_of(body, properties)


@functools.lru_cache(maxsize=4096)
def digest_of(body: bytes, properties: Properties) -> str:
    """What makes two copies the same to a reader: body and properties, without what was written on the way."""
    found = h.for_handlers(properties.headers).items()
    headers = sorted((name, repr(value)) for name, value in found if not h.is_broker_owned(name))
    told = repr((headers, _TOLD(properties)))
    return hashlib.blake2b(told.encode(), key=hashlib.blake2b(body).digest(), digest_size=8).hexdigest()


#: What AMQP 0-9-1 lets a publisher say of a message, but for the expiration, which no copy bears.
_TOLD: Final = operator.attrgetter(
    "content_type", "content_encoding", "delivery_mode", "priority", "correlation_id", "reply_to", "message_id",
    "timestamp", "type", "user_id", "app_id",
)  # fmt: skip


def _number(ctx: Context, header: str) -> int:
    value = ctx.properties.header(header)
    return value if isinstance(value, int) else 0
