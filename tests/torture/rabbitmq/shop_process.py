"""One process of a shop on RabbitMQ and any store: workers, retry worker or keeper, as it is told.

`shop_process.py '{"name": …, "folder": …, "port": …, "namespace": …, "store": …, "roles": [...], …}'`

It writes all that happens to `diary.jsonl` in its folder. At a strike it kills itself, or tells its parent and waits.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.rabbitmq_scene import hurried_world, url_of
from tests.torture.ledger import Ledger, Planned, decide, planned

from leveret import Context, Leveret, Message, PublishRefused, PublishTimeout, RetryPolicy
from leveret.core import headers as h
from leveret.core.message import Outgoing, unwrap
from leveret.core.properties import Properties
from leveret.core.topology import QueueType
from leveret.core.urls import parse_store
from leveret.ports import Delivery, Subscription
from leveret.runtime.opening import Stand
from leveret.runtime.wiring import make_store
from leveret.runtime.world import system_world
from leveret.transports.rabbitmq.transport import RabbitTransport

POLICY = RetryPolicy(first_delay=0.4, factor=2, jitter=0, max_attempts=3)
#: Seconds that a handler takes, so that some messages are always in hand.
HANDLER = 0.1


class Diary:
    """Lines in a file that all processes append to: what is written before a kill is there after it."""

    def __init__(self, folder: Path, name: str) -> None:
        self._file = os.open(folder / "diary.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._name = name

    def write(self, event: str, body: bytes = b"", **more: Any) -> None:
        line = {"at": time.monotonic(), "by": self._name, "event": event, "body": body.hex(), **more}
        os.write(self._file, json.dumps(line).encode() + b"\n")


class NotedDelivery:
    """A delivery; the diary says when it came and when it was settled."""

    def __init__(self, delivery: Delivery, number: int, diary: Diary) -> None:
        self._delivery = delivery
        self._number = number
        self._diary = diary
        self.original = unwrap(delivery.body, delivery.properties)[0]
        diary.write("taken", self.original, copy=number, queue=delivery.queue, flagged=delivery.redelivered)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._delivery, name)

    def ack(self) -> bool:
        return self._noted(self._delivery.ack())

    def requeue(self) -> bool:
        return self._noted(self._delivery.requeue())

    def _noted(self, settled: bool) -> bool:
        if settled:
            self._diary.write("settled", self.original, copy=self._number)
        return settled


class NotedTransport(RabbitTransport):
    """Writes into the diary what it takes and sends. It reconnects in a hurry."""

    def __init__(self, port: int, diary: Diary) -> None:
        # Tags are unique to a process by its randomness.
        super().__init__(url_of(port), world=hurried_world(random.SystemRandom().getrandbits(64)))
        self._diary = diary
        self._copies = 0

    def _note(self, delivery: Delivery) -> NotedDelivery:
        self._copies += 1
        return NotedDelivery(delivery, self._copies, self._diary)

    async def consume(
        self, queue: str, on_delivery: Callable[[Any], object], *, prefetch: int, exclusive: bool = False
    ) -> Any:
        subscription: Subscription = await super().consume(
            queue, lambda delivery: on_delivery(self._note(delivery)), prefetch=prefetch, exclusive=exclusive
        )
        return subscription

    async def get(self, queue: str) -> Any:
        delivery = await super().get(queue)
        return None if delivery is None else self._note(delivery)

    def send(self, message: Outgoing) -> asyncio.Future[None]:
        self._copies += 1
        original, number = unwrap(message.body, message.properties)[0], self._copies
        answer = super().send(message)
        if message.mandatory:
            self._diary.write("sent", original, copy=number)
            answer.add_done_callback(lambda _: self._diary.write("answered", original, copy=number))
        return answer


class Shop:
    """The app of one process."""

    def __init__(self, told: dict[str, Any]) -> None:
        self.told = told
        self.folder = Path(told["folder"])
        self.diary = Diary(self.folder, told["name"])
        self.strikes: dict[str, int] = told["strikes"]
        self.arrivals: Counter[str] = Counter()
        self.released = asyncio.Event()
        world = replace(system_world(), reached=self._reached)
        self.app = Leveret(told["namespace"], broker=str(url_of(told["port"])), retry=POLICY)
        self.app._stand = Stand(
            world=world,
            transport=lambda: NotedTransport(told["port"], self.diary),
            store=lambda: make_store(parse_store(told["store"], "the test"), world),
            knobs=lambda knobs: replace(knobs, lease_ttl=1.0, acts_every=0.1, suspects_every=0.1),
        )

    async def _reached(self, point: str, message_id: str | None) -> None:
        self.arrivals[point] += 1
        if self.strikes.get(point) != self.arrivals[point]:
            return
        self.diary.write("struck", point=point)
        if self.told["dies"]:
            os.kill(os.getpid(), signal.SIGKILL)
        sys.stdout.write(f"{point}\n")
        sys.stdout.flush()
        await self.released.wait()

    async def _obey(self) -> None:
        """What the parent says: where to wait next, and when to go on."""
        lines = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(lines), sys.stdin
        )
        async for line in lines:
            strikes = json.loads(line)
            if strikes:
                self.released.clear()
                self.arrivals.clear()
                self.strikes = strikes
            else:
                self.strikes = {}
                self.released.set()

    # ── Handlers ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def handle(self, order: dict[str, Any], ctx: Context) -> Message | None:
        mended = self._start(ctx)
        if order["kind"] == "deadly":
            os.kill(os.getpid(), signal.SIGKILL)
        await asyncio.sleep(HANDLER)
        result = decide(order["kind"], ctx, mended=mended)
        self.diary.write("done", ctx.body)
        return result

    async def post(self, receipt: dict[str, Any], ctx: Context) -> None:
        self._start(ctx)
        await asyncio.sleep(HANDLER)
        self.diary.write("done", ctx.body)

    def _start(self, ctx: Context) -> bool:
        mended = (self.folder / "mended").exists()
        ledger = Ledger(mended=mended)
        ledger.start(ctx)
        start = ledger.starts[0]
        self.diary.write(
            "start", ctx.body, worker=start.worker, message_id=start.message_id, retry_id=start.retry_id,
            attempt=start.attempt, step=repr(start.step), told=hashlib.sha256(repr(start.told).encode()).hexdigest(),
        )  # fmt: skip
        return mended

    def declare(self) -> None:
        app, died = self.app, int(self.told["max_deliveries"])
        quorum: QueueType = "quorum"

        @app.worker("order.*", prefetch=16, concurrency=12, max_deliveries=died)
        async def charge(order: dict[str, Any], ctx: Context) -> Message | None:
            return await self.handle(order, ctx)

        @app.worker("book.*", prefetch=1, max_deliveries=died)
        async def book(order: dict[str, Any], ctx: Context) -> Message | None:
            return await self.handle(order, ctx)

        @app.worker("vault.*", prefetch=1, max_deliveries=died, queue_type=quorum)
        async def vault(order: dict[str, Any], ctx: Context) -> Message | None:
            return await self.handle(order, ctx)

        @app.worker("receipt.*", concurrency=3, max_deliveries=died)
        async def post(receipt: dict[str, Any], ctx: Context) -> None:
            await self.post(receipt, ctx)

    # ── Publishing ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def publish(self) -> None:
        """Publish what no process before this one has been told to be accepted."""
        accepted = set()
        for line in (self.folder / "diary.jsonl").read_text().splitlines():
            if '"accepted"' in line:
                accepted.add(json.loads(line)["body"])
        left = [plan for plan in planned() if plan.body.hex() not in accepted][: self.told["publishes"]]
        while left:
            left = [plan for plan in left if not await self._accepted(plan)]

    async def _accepted(self, plan: Planned) -> bool:
        self.diary.write("publishing", plan.body)
        try:
            await self._publish(plan)
        except PublishTimeout:
            self.diary.write("unknown", plan.body)
            return False
        except PublishRefused:
            self.diary.write("refused", plan.body)
            return False
        self.diary.write("accepted", plan.body)
        return True

    async def _publish(self, plan: Planned) -> None:
        parts = self.app._opened("the scene").parts
        if plan.kind == "malformed":
            properties = Properties.build(
                message_id=plan.message.id, headers={h.ENVELOPE: h.SOFT_FAILURE, h.RETRY_AFTER: "soon"},
                delivery_mode=2,
            )  # fmt: skip
            await parts.transport.ready()
            await parts.transport.send(Outgoing("", parts.names.retry_queue, plan.body, properties))
        elif plan.kind == "no id":
            properties = Properties.build(
                type=plan.message.type, headers=plan.message.headers, delivery_mode=2
            )
            await parts.transport.ready()
            await parts.transport.send(Outgoing(parts.names.events, plan.message.type, plan.body, properties))
        elif plan.kind == "later":
            await self.app.publish(plan.message, delay=1.5)
        else:
            await self.app.publish(plan.message)

    def _show(self) -> None:
        """Where each task stands, into the log: for whoever waits in vain."""
        for task in asyncio.all_tasks():
            task.print_stack(limit=6, file=sys.stderr)

    # ── A life ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def live(self) -> None:
        roles = self.told["roles"]
        if "workers" in roles:
            self.declare()
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, self._show)
        obeying = asyncio.create_task(self._obey())
        publishing: asyncio.Task[None] | None = None
        async with self.app:
            self.diary.write("open")
            if self.told["publishes"]:
                publishing = asyncio.create_task(self.publish())
            await self.app.run(retry_worker="retry worker" in roles, keeper="keeper" in roles)
            if publishing is not None:
                await publishing
        obeying.cancel()


if __name__ == "__main__":
    asyncio.run(Shop(json.loads(sys.argv[1])).live())
