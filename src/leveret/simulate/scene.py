"""What is simulated: an app with its workers, who takes what, and what the record calls a message."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from leveret.app import Leveret
from leveret.core.message import Message
from leveret.core.topology import QueueType
from leveret.proof import shop
from leveret.proof.noting import Subject

if TYPE_CHECKING:
    from leveret.simulate.process import Process


#: Shares of the shop's messages: what fails softly and hard at first, ends its process (in every other run), and is to
#: wait before it goes.
SOFT, HARD, DEADLY, DELAYED = 0.08, 0.01, 0.001, 0.02
#: Seconds at which the first message is published, and over which all are.
BEGIN = 1.0
SPAN = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A publish of a plan.

    Attributes:
        subject: what the record calls the message.
        message: as it is published, with its id.
        at: seconds from the start at which it is published for the first time.
        wait: seconds that the message is to wait before it goes.
    """

    subject: str
    message: Message
    at: float
    wait: float = 0.0


def moment(position: int, number: int) -> float:
    """When the message at a position of so many is published: they are spread evenly."""
    return round(BEGIN + SPAN * position / number, 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """An app to be simulated.

    Attributes:
        namespace: of the app.
        channel: asked by callers; None: nobody calls.
        takers: the workers that take a type, asked once for each type that was seen.
        max_attempts: runs that a message may have, by worker.
        max_deliveries: starts after which what ends its process is dead, the fewest of any worker.
        unread: whether there may be messages that their worker's handler cannot read.
        subject: what the record calls a message, by its original body and its properties; None: it is not followed.
        app: the app in a process, with its workers or without, not open.
    """

    namespace: str
    channel: str | None
    takers: Callable[[str], tuple[str, ...]]
    max_attempts: Mapping[str, int]
    max_deliveries: int
    unread: bool
    subject: Subject
    app: Callable[[Process, bool, QueueType | None], Leveret]

    @property
    def workers(self) -> Sequence[str]:
        """The names of the workers."""
        return tuple(self.max_attempts)


def _shop_app(process: Process, works: bool, queue_type: QueueType | None) -> Leveret:
    app = Leveret("shop", broker="memory://", retry=shop.POLICY)
    if works:
        shop.declare(
            app, process.record, process.clock, dies=process.die, queue_type=queue_type,
            takes=lambda: process.random.choice((0.0, 0.0, 0.01, 0.05, 0.3)),
        )  # fmt: skip
    return app


#: The shop of `leveret.proof.shop`.
SHOP = Scene(
    namespace="shop",
    channel=shop.CHANNEL,
    takers=lambda type: shop.TAKERS.get(type, ()),
    max_attempts={worker: shop.MAX_ATTEMPTS for workers in shop.TAKERS.values() for worker in workers},
    max_deliveries=shop.MAX_DELIVERIES,
    unread=False,
    subject=lambda body, _: shop.subject_of(body),
    app=_shop_app,
)


def shop_asks(seed: int, messages: int) -> tuple[Ask, ...]:
    """What is published to the shop under a seed."""
    chance = random.Random(f"asks of {seed}")
    deadly = chance.choice((0.0, DEADLY))
    return tuple(
        Ask(
            subject=order["subject"],
            message=Message(type, order, id=f"id-of-{order['subject']}"),
            at=moment(position, messages),
            wait=round(chance.uniform(0.5, 4), 3) if chance.random() < DELAYED else 0.0,
        )
        for position, (type, order) in enumerate(
            shop.orders(seed, messages, soft=SOFT, hard=HARD, deadly=deadly)
        )
    )
