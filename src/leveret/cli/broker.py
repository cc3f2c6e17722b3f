"""What a broker says of itself and of a namespace's queues, for `doctor`, `status` and `dead list`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

from leveret.core.errors import LeveretError, PublishError
from leveret.core.message import Outgoing
from leveret.core.properties import Properties
from leveret.core.topology import Names, Queue, Topology

if TYPE_CHECKING:
    from leveret.ports import Delivery, Transport, World
    from leveret.runtime.config import RuntimeConfig

#: Seconds in which a broker that takes messages confirms one, and hands it over.
_PROBE: Final = 3.0
#: Seconds that a listing waits for a broker.
_BRIEFLY: Final = 2.0


class Probed(NamedTuple):
    """What a look at a connected broker found."""

    #: Seconds that a question and its answer take.
    away: float
    #: What is wrong with publishing and consuming, with the way out; empty: nothing.
    fault: str


class Lying(NamedTuple):
    """How the retry queue or the dead-letter queue of a namespace stands."""

    queue: str
    #: Messages in it that nobody has in hand; None: the queue is not there.
    ready: int | None
    consumers: int


async def lying(transport: Transport, namespace: str) -> tuple[Lying, Lying]:
    """The retry queue and the dead-letter queue."""
    names = Names(namespace)

    async def look(queue: str) -> Lying:
        state = await transport.queue_state(queue)
        return Lying(queue, None, 0) if state is None else Lying(queue, state.ready, state.consumers)

    return await look(names.retry_queue), await look(names.dead_letters)


async def unkept(config: RuntimeConfig, world: World, namespaces: Iterable[str]) -> str:
    """How many dead letters no keeper has stored yet, in words; empty where there are none, or no broker is named.

    A listing of the store must not wait for a broker: it is asked once, and briefly.
    """
    from leveret.runtime.wiring import make_transport

    if config.broker is None or config.broker.scheme == "memory":
        return ""
    transport = make_transport(config.broker, world)
    try:
        async with asyncio.timeout(_BRIEFLY):
            await transport.open()
            found = [(await lying(transport, namespace))[1] for namespace in namespaces]
    except (LeveretError, TimeoutError) as error:
        why = str(error) or f"no answer in {_BRIEFLY:g} s"
        return f"How many lie unkept on {transport.display} is not known: {why.splitlines()[0]}"
    finally:
        await transport.close()
    return " ".join(
        f"{each.ready} more in {each.queue}, not stored yet: leveret keeper." for each in found if each.ready
    )


async def blocked(transport: Transport) -> str:
    """Why the broker takes no publishes now; empty where it does.

    It is tried with messages that go to no queue: a broker tells nobody that it is short of memory or disk who does not
    publish. It may still take the first one of a connection, and reads none after that.
    """
    nowhere = Outgoing("", "leveret.nobody", b"", Properties.build(delivery_mode=1), False)
    return await _confirmed(transport, nowhere) or await _confirmed(transport, nowhere)


async def probe(transport: Transport, namespace: str, name: str) -> Probed:
    """Send a message through a queue of its own, which is gone afterwards.

    Args:
        transport: connected.
        namespace: the queue's name begins with it, as permissions may ask for; empty: `leveret`.
        name: an unused one.

    Raises:
        BrokerError: the queue cannot be declared or consumed.
    """
    queue = f"{namespace or 'leveret'}.doctor.{name}"
    await transport.declare(Topology(queues=(Queue(queue, None, temporary=True),)))
    came: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def take(delivery: Delivery) -> None:
        delivery.ack()
        if not came.done():
            came.set_result(delivery.body)

    began = time.perf_counter()
    await transport.queue_state(queue)
    away = time.perf_counter() - began
    subscription = await transport.consume(queue, take, prefetch=1)
    try:
        fault = await blocked(transport) or await _confirmed(
            transport, Outgoing("", queue, name.encode(), Properties.build(), True)
        )
        if not fault:
            await asyncio.wait({came}, timeout=_PROBE)
            if not came.done():
                fault = f"it took a message and did not hand it over in {_PROBE:g} s"
    finally:
        came.cancel()
        await subscription.cancel()
    return Probed(away, fault)


async def _confirmed(transport: Transport, message: Outgoing) -> str:
    """Why the broker did not confirm *message*; empty where it did."""
    answer = transport.send(message)
    await asyncio.wait({answer}, timeout=_PROBE)
    if not answer.done():
        answer.cancel()
        if transport.state == "blocked":
            return (
                "blocked by its memory or disk alarm: it takes no messages. What there is, and why: "
                "rabbitmq-diagnostics alarms"
            )
        return f"it does not confirm what is published (no answer in {_PROBE:g} s)"
    try:
        answer.result()
    except PublishError as error:
        return str(error)
    return ""
