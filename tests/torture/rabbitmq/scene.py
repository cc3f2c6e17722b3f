"""The scene of the kills: processes of a shop, the node's proxy, and what the parent reads in their diary."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

from tests.rabbitmq_node import Node
from tests.rabbitmq_scene import hurried_world, url_of
from tests.torture.ledger import Ledger, Start, planned
from tests.torture.rabbitmq.shop_process import POLICY

from leveret.core.errors import BrokerError, StoreUnavailable
from leveret.core.retry_entry import Filter
from leveret.core.topology import Names
from leveret.core.urls import parse_store
from leveret.dead_letters.browse import DeadLetters
from leveret.runtime.wiring import make_store
from leveret.runtime.world import system_world
from leveret.torture.proxy import CutProxy
from leveret.transports.rabbitmq.transport import RabbitTransport

HERE = Path(__file__).parent
ROOT = HERE.parent.parent.parent
#: Seconds in which an ack or the removal of a row may not yet have reached the disk or the socket at a strike: a
#: process writes them in its next turn, a broker that is killed had not yet written them down.
PROCESS_MARGIN = 0.5
BROKER_MARGIN = 2.0
#: Seconds that a scene may take; it takes 5 (and 6 for each restart of the broker) where nobody else is at work.
PATIENCE = 60.0
#: Seconds in which a process may still read what a killed broker had sent; none is up again so soon.
LATE = 1.0
STATES = ("dead", "claimed", "replayed", "discarded")
WORKERS, RETRY, KEEPER = ALL_ROLES = ("workers", "retry worker", "keeper")
#: More than are planned.
ALL_PLANNED = 1000
QUEUES = ("charge", "book", "vault", "post")

Line = dict[str, Any]


class Shop:
    """A process of the shop, started again under another name each time it is killed."""

    def __init__(self, name: str, roles: Collection[str]) -> None:
        self.name = name
        self.roles = list(roles)
        self.lives = 0
        self.process: Process | None = None

    @property
    def running(self) -> Process:
        assert self.process is not None
        return self.process

    @property
    def alias(self) -> str:
        """Its name in this life."""
        return f"{self.name} {self.lives}"

    async def tell(self, strikes: Mapping[str, int]) -> None:
        """Say where it is to wait; nothing: go on."""
        stdin = self.running.stdin
        assert stdin is not None
        stdin.write(json.dumps(dict(strikes)).encode() + b"\n")
        await stdin.drain()

    async def waits_at(self) -> str:
        """The point it has come to, and waits at."""
        stdout = self.running.stdout
        assert stdout is not None
        line = await asyncio.wait_for(stdout.readline(), PATIENCE)
        assert line, f"{self.name} ended instead of waiting"
        return line.decode().strip()


class Scene:
    """A broker, a store and a diary that outlive every process."""

    def __init__(
        self, node: Node, proxy: CutProxy, folder: Path, *, max_deliveries: int = 30, store: str = ""
    ) -> None:
        self.store_url = store or f"sqlite:///{folder}/leveret.db"
        self.node = node
        self.proxy = proxy
        self.folder = folder
        self.names = Names(f"shop-{uuid4().hex[:8]}")
        self.shops: list[Shop] = []
        self._max_deliveries = max_deliveries
        #: Whether processes publish what is planned.
        self._publishes = False
        self._read = 0
        self._lines: list[Line] = []
        #: When something was struck, which processes had messages in hand, and how far back an ack may not count.
        self._struck: list[tuple[float, str, float]] = []
        self.transport = RabbitTransport(url_of(node.port), world=hurried_world())
        self.store = make_store(parse_store(self.store_url, "the test"), system_world())
        self.dead_letters = DeadLetters(self.store, system_world(), self.names.namespace, nudge=lambda: None)
        (folder / "diary.jsonl").touch()

    async def open(self) -> None:
        await self.transport.open()
        await self.store.open()

    async def close(self) -> None:
        """End all that was started, and leave nothing on the broker."""
        for shop in self.shops:
            if shop.process is not None and shop.process.returncode is None:
                shop.process.kill()
                await shop.process.communicate()
        await self.transport.close()
        await self.store.close()

    # ── Processes ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def start(
        self, shop: Shop, strikes: Mapping[str, int] | None = None, *, dies: bool = True, publishes: int = 0
    ) -> None:
        """Begin the next life of a process; it publishes so many at most of what is planned and not accepted yet."""
        if shop not in self.shops:
            self.shops.append(shop)
        shop.lives += 1
        self._publishes |= publishes > 0
        told = {
            "name": shop.alias, "folder": str(self.folder), "port": self.proxy.port, "namespace": self.names.namespace,
            "store": self.store_url, "roles": shop.roles, "strikes": dict(strikes or {}), "dies": dies,
            "publishes": publishes, "max_deliveries": self._max_deliveries,
        }  # fmt: skip
        with (self.folder / f"{shop.alias}.log").open("wb") as log:
            shop.process = await asyncio.create_subprocess_exec(
                sys.executable, str(HERE / "shop_process.py"), json.dumps(told),
                stdin=PIPE, stdout=PIPE, stderr=log, cwd=self.folder, env={**os.environ, "PYTHONPATH": str(ROOT)},
            )  # fmt: skip

    async def opened(self, shop: Shop) -> None:
        """Return when it has begun to work in this life."""
        async with asyncio.timeout(PATIENCE):
            while not any(line["by"] == shop.alias for line in self.lines()):
                await self.turn()

    async def killed(self, shop: Shop) -> None:
        """Return when it has killed itself, or was killed; what it had in hand is noted."""
        try:
            await asyncio.wait_for(shop.running.communicate(), PATIENCE)
        except TimeoutError:
            raise AssertionError(f"{self._told_by(shop)}\n{await self._left()}") from None
        assert shop.running.returncode == -signal.SIGKILL, self._told_by(shop)
        last = max(line["at"] for line in self.lines() if line["by"] == shop.alias)
        self._struck.append((last, shop.alias, PROCESS_MARGIN))

    async def stop(self) -> None:
        """Ask all to stop, as an operator does."""
        for shop in self.shops:
            shop.running.send_signal(signal.SIGTERM)
        for shop in self.shops:
            await asyncio.wait_for(shop.running.communicate(), PATIENCE)
            assert shop.running.returncode == 0, self._told_by(shop)

    def _told_by(self, shop: Shop) -> str:
        log = (self.folder / f"{shop.alias}.log").read_text()
        return f"{shop.alias} ended with {shop.running.returncode}: {log[-3000:]}"

    def broker_killed(self) -> None:
        """All of them lose what they have in hand."""
        self.node.kill()
        now = time.monotonic()
        self._struck += [(now, shop.alias, BROKER_MARGIN) for shop in self.shops]

    async def turn(self) -> None:
        """Let the processes go on for a moment."""
        await asyncio.sleep(0.02)

    # ── The diary ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def lines(self) -> list[Line]:
        """All that was written until now."""
        with (self.folder / "diary.jsonl").open("rb") as diary:
            diary.seek(self._read)
            for line in diary:
                if not line.endswith(b"\n"):
                    # It is being written at this moment.
                    break
                self._read += len(line)
                self._lines.append(json.loads(line))
        return self._lines

    def number_of(self, event: str) -> int:
        """How often that has happened."""
        return sum(line["event"] == event for line in self.lines())

    def _copies(self) -> Iterator[tuple[Line, float]]:
        """Each copy that was taken or sent, and when it was settled or answered."""
        ended: dict[tuple[str, int], float] = {}
        begun: list[Line] = []
        for line in self.lines():
            if line["event"] in {"settled", "answered"}:
                ended[line["by"], line["copy"]] = line["at"]
            elif line["event"] in {"taken", "sent"}:
                begun.append(line)
        for line in begun:
            yield line, ended.get((line["by"], line["copy"]), float("inf"))

    def in_hand(self) -> int:
        """How many copies are in the hands of processes that live."""
        alive = {shop.alias for shop in self.shops if shop.process and shop.process.returncode is None}
        last = {by: at for at, by, _ in sorted(self._struck)}
        return sum(
            ended == float("inf") and line["by"] in alive and line["at"] > last.get(line["by"], -LATE) + LATE
            for line, ended in self._copies()
        )

    def ledger(self) -> Ledger:
        """What the diary comes to."""
        ledger = Ledger(planned=list(planned()))
        publishes: dict[str, list[str]] = defaultdict(list)
        for line in self.lines():
            body = bytes.fromhex(line["body"])
            if line["event"] == "done":
                ledger.done[body] += 1
            elif line["event"] == "start":
                ledger.starts.append(
                    Start(line["worker"], body, line["message_id"], line["retry_id"], line["attempt"],
                          (line["step"],), (line["told"],))
                )  # fmt: skip
            elif line["event"] in {"publishing", "refused", "accepted"}:
                publishes[line["body"]].append(line["event"])
        for plan in ledger.planned:
            events = publishes[plan.body.hex()]
            if "accepted" in events:
                plan.state = "accepted"
            # Published again under the same id, as the error asks for: both copies may be there.
            ledger.interrupt([plan.body] * (events.count("publishing") - events.count("refused") - 1))
        for at, by, margin in self._struck:
            ledger.interrupt(
                bytes.fromhex(line["body"])
                for line, ended in self._copies()
                if line["by"] == by and line["at"] <= at and ended > at - margin
            )
        return ledger

    # ── To its end ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def quiet(self) -> None:
        """Return once every queue is empty, nothing is in hand and nothing waits."""
        seen = 0
        last: object = None
        try:
            async with asyncio.timeout(PATIENCE):
                while seen < 2:
                    await asyncio.sleep(0.1)
                    last = await self._left()
                    seen = 0 if last else seen + 1
        except TimeoutError:
            for shop in self.shops:
                if shop.process and shop.process.returncode is None:
                    shop.process.send_signal(signal.SIGUSR1)
            await asyncio.sleep(0.5)
            logs = "\n".join(
                f"{path.name}: {path.read_text()[-20000:]}" for path in self.folder.glob("*.log")
            )
            raise AssertionError(f"not done yet: {last}\n{logs}") from None

    async def _left(self) -> object:
        """What there is still to do; false where that is nothing."""
        try:
            queues = {}
            for queue in (
                self.names.retry_queue, self.names.dead_letters,
                *map(self.names.queue, QUEUES), *map(self.names.suspects, QUEUES),
            ):  # fmt: skip
                state = await self.transport.queue_state(queue)
                if state is None or state.ready:
                    queues[queue] = state
            waiting = await self.store.count_entries(Filter(namespace=self.names.namespace))
        except (BrokerError, StoreUnavailable) as error:
            return str(error)
        accepted = {line["body"] for line in self.lines() if line["event"] == "accepted"}
        unaccepted = len(list(planned())) - len(accepted) if self._publishes else 0
        left = {"queues": queues, "waiting": waiting, "in hand": self.in_hand(), "unaccepted": unaccepted}
        return left if any(left.values()) else None

    async def mend_and_replay(self) -> None:
        """What made messages fail hard is mended, and they are replayed."""
        (self.folder / "mended").touch()
        async with asyncio.timeout(PATIENCE):
            while await self.dead_letters.count(reason="hopeless", states=("dead", "claimed")):
                await self.dead_letters.replay(reason="hopeless", rate=4)

    async def finish(self) -> None:
        """Let all be done, and account for every message."""
        await self.quiet()
        await self.mend_and_replay()
        await self.quiet()
        await self.stop()
        self.ledger().close(await self.letters(), max_attempts=POLICY.max_attempts)

    async def letters(self) -> list[Any]:
        """All letters in the store, whole."""
        found = await self.dead_letters.list(limit=1000, states=STATES)
        return [await self.store.letter(self.names.namespace, letter.id) for letter in found]
