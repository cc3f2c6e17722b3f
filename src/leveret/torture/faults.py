"""Faults: what each kind of a plan does to a scene, and how it heals."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, TypeVar

from leveret.proof.record import Healed, Struck
from leveret.torture.addresses import Stoppable
from leveret.torture.cluster import Shape
from leveret.torture.members import GRACE, Member, ask_all
from leveret.torture.plan import Planned
from leveret.torture.scene import Scene

T = TypeVar("T")

#: Leases that a slow store makes each call last.
SLOW: Final = 10
#: Messages whose handler kills its process, one for each `deadly message`.
DEADLY: Final = "deadly"

Fault = Callable[[Scene, Planned], AbstractAsyncContextManager[None]]


async def strike(scene: Scene, planned: Planned) -> None:
    """Strike, wait as long as planned, heal; the record says when, and whom."""
    fault = FAULTS[planned.kind.name]
    async with fault(scene, planned):
        await asyncio.sleep(planned.seconds)


@contextlib.asynccontextmanager
async def _struck(scene: Scene, planned: Planned, *, target: str | None = None) -> AsyncIterator[None]:
    """Within the block it lasts; *target* is the process that it hits, in this life."""
    record = scene.record
    record.write(
        Struck(
            at=record.now(), by=record.by, fault=planned.name, kind=planned.kind.name,
            target=planned.target if target is None else target, process=target is not None,
            copies=planned.kind.copies, clock=planned.how.get("by", 0.0),
            note=", ".join(f"{name} {value}" for name, value in planned.how.items()),
        )
    )  # fmt: skip
    try:
        yield
    finally:
        record.write(Healed(at=record.now(), by=record.by, fault=planned.name))


@contextlib.asynccontextmanager
async def _one_struck(
    scene: Scene, fault: str, kind: str, by: str, *, copies: bool = True
) -> AsyncIterator[None]:
    """Within the block that process is struck, of several that a fault hits one after the other."""
    record = scene.record
    record.write(
        Struck(at=record.now(), by=record.by, fault=fault, kind=kind, target=by, process=True, copies=copies)
    )
    try:
        yield
    finally:
        record.write(Healed(at=record.now(), by=record.by, fault=fault))


def _there(thing: T | None) -> T:
    """What a fault needs; a plan has no fault whose need its setting does not fill."""
    if thing is None:
        raise AssertionError("this fault needs something that the scene does not have")
    return thing


# ── The network ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _proxied(do: str, *, store: bool = False, **fixed: Any) -> Fault:
    """Something that the proxies do, healed by `heal`."""

    @contextlib.asynccontextmanager
    async def fault(scene: Scene, planned: Planned) -> AsyncIterator[None]:
        proxies = scene.store_proxy if store else scene.proxies
        names = {"latency": "seconds"}
        how: dict[str, Any] = {
            names.get(name, name): value for name, value in planned.how.items() if name != "node"
        }
        if "node" in planned.how:
            how["which"] = [planned.how["node"]]
        async with _struck(scene, planned):
            await proxies.ask(do, **how, **fixed)
            try:
                yield
            finally:
                await proxies.ask("heal")

    return fault


# ── The broker ────────────────────────────────────────────────────────────────────────────────────────────────────────


@contextlib.asynccontextmanager
async def _broker_restart(scene: Scene, planned: Planned) -> AsyncIterator[None]:
    async with _struck(scene, planned):
        node = scene.brokers.nodes[0]
        await asyncio.to_thread(node.stop)
        try:
            yield
        finally:
            await asyncio.to_thread(node.start)


@contextlib.asynccontextmanager
async def _node_killed(scene: Scene, planned: Planned) -> AsyncIterator[None]:
    async with _struck(scene, planned):
        node = scene.brokers.nodes[planned.how.get("node", 0)]
        await asyncio.to_thread(node.kill)
        try:
            yield
        finally:
            await asyncio.to_thread(node.start)


@contextlib.asynccontextmanager
async def _memory_alarm(scene: Scene, planned: Planned) -> AsyncIterator[None]:
    node = scene.brokers.nodes[0]
    async with _struck(scene, planned):
        await asyncio.to_thread(node.alarm, on=True)
        try:
            yield
        finally:
            await asyncio.to_thread(node.alarm, on=False)


def _evaluated(erlang: str) -> Fault:
    @contextlib.asynccontextmanager
    async def fault(scene: Scene, planned: Planned) -> AsyncIterator[None]:
        async with _struck(scene, planned):
            await asyncio.to_thread(scene.brokers.nodes[0].evaluate, erlang)
            yield

    return fault


#: What ends every channel's process; the broker closes their connections with 541.
_CHANNELS_CLOSED = "[exit(Channel, kill) || Channel <- rabbit_channel:list()], ok."
#: What ends the process of every classic queue. It is started again on what it had kept; its consumers are cancelled,
#: and what was on its way to it is nacked.
_QUEUES_CRASH = (
    "[exit(amqqueue:get_pid(Queue), kill) || "
    "Queue <- rabbit_amqqueue:list(), is_pid(amqqueue:get_pid(Queue))], ok."
)


def _partition(shape: Shape) -> Fault:
    @contextlib.asynccontextmanager
    async def fault(scene: Scene, planned: Planned) -> AsyncIterator[None]:
        cluster = _there(scene.brokers.cluster)
        async with _struck(scene, planned):
            await asyncio.to_thread(cluster.cut, shape, planned.how.get("node", 0))
            try:
                yield
            finally:
                await asyncio.to_thread(cluster.heal)
                await asyncio.to_thread(cluster.until_whole)

    return fault


# ── Processes ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _member(scene: Scene, planned: Planned) -> Member:
    return scene.members[planned.target]


def _ended_by(number: signal.Signals) -> Fault:
    @contextlib.asynccontextmanager
    async def fault(scene: Scene, planned: Planned) -> AsyncIterator[None]:
        member = _member(scene, planned)
        await member.up()
        async with _struck(scene, planned, target=member.by):
            if number == signal.SIGTERM:
                await _restarted(scene, planned, member)
            else:
                life = member.life
                member.signal(number)
                await member.back(life)
            yield

    return fault


async def _restarted(scene: Scene, planned: Planned, member: Member) -> None:
    """Ask a process to stop, and return once its next life works. Where its grace is not enough, that is a blow."""
    life, by = member.life, member.by
    member.signal(signal.SIGTERM)
    back = asyncio.ensure_future(member.back(life))
    # What it still has in hand when its grace is over, it drops, and the broker hands it over again.
    done, _ = await asyncio.wait([back], timeout=GRACE - 1)
    if not done:
        async with _one_struck(scene, f"{planned.name} {by} grace", "grace over", by):
            await back


@contextlib.asynccontextmanager
async def _paused(scene: Scene, planned: Planned) -> AsyncIterator[None]:
    member = _member(scene, planned)
    await member.up()
    async with _struck(scene, planned, target=member.by):
        member.signal(signal.SIGSTOP)
        try:
            yield
        finally:
            member.signal(signal.SIGCONT)


@contextlib.asynccontextmanager
async def _paused_holder(scene: Scene, planned: Planned) -> AsyncIterator[None]:
    """Pause whoever holds the retry lease until another one has taken it, and some more."""
    holders = await scene.store.leases(scene.names.namespace)
    held = holders.get(f"{scene.names.namespace}/retry")
    for member in scene.members.values():
        if held is not None and member.is_up and f"/{member.child.process.pid}/" in held.holder:
            async with _struck(scene, planned, target=member.by):
                member.signal(signal.SIGSTOP)
                try:
                    await asyncio.sleep(scene.lease)
                    yield
                finally:
                    member.signal(signal.SIGCONT)
            return
    # Nobody holds it at this moment.
    yield


@contextlib.asynccontextmanager
async def _killed_at(scene: Scene, planned: Planned) -> AsyncIterator[None]:
    """The process writes down its own end, where it comes to that point in time."""
    member = _member(scene, planned)
    await member.up()
    life = member.life
    member.heals_when_back(planned.name)
    await member.ask("strike", fault=planned.name, point=planned.how["point"], arrival=planned.how["arrival"])
    yield
    if member.life == life:
        await member.ask("strike", fault=planned.name, point=None, arrival=0)


@contextlib.asynccontextmanager
async def _deadly(scene: Scene, planned: Planned) -> AsyncIterator[None]:
    """Publish what ends every process that begins on it; each writes that down itself."""
    order = {"subject": f"{DEADLY}-{planned.name}", "fate": {"charge": [DEADLY, "done"]}}
    await _member(scene, planned).up()
    await _member(scene, planned).ask("publish", type="order.placed", order=order)
    yield


@contextlib.asynccontextmanager
async def _clock_jump(scene: Scene, planned: Planned) -> AsyncIterator[None]:
    member = _member(scene, planned)
    await member.up()
    async with _struck(scene, planned, target=member.by):
        life = member.life
        await member.ask("move clock", by=planned.how["by"])
        yield
        if member.life == life:
            await member.ask("move clock", by=-planned.how["by"])


@contextlib.asynccontextmanager
async def _rolling_restart(scene: Scene, planned: Planned) -> AsyncIterator[None]:
    async with _struck(scene, planned):
        for member in scene.members.values():
            await member.up()
            async with _one_struck(scene, f"{planned.name} {member.by}", "restart", member.by, copies=False):
                await _restarted(scene, planned, member)
        yield


# ── The store ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@contextlib.asynccontextmanager
async def _store_locked(scene: Scene, planned: Planned) -> AsyncIterator[None]:
    """Somebody else writes into the file, and takes their time."""
    async with _struck(scene, planned):
        locked = sqlite3.connect(_there(scene.sqlite), isolation_level=None, timeout=30)
        try:
            locked.execute("BEGIN IMMEDIATE")
            yield
            locked.execute("ROLLBACK")
        finally:
            locked.close()


def _tampered(**fixed: Any) -> Fault:
    @contextlib.asynccontextmanager
    async def fault(scene: Scene, planned: Planned) -> AsyncIterator[None]:
        members = list(scene.members.values())
        how = {"slow": SLOW * scene.lease} if fixed.get("slow") else {**planned.how, **fixed}
        async with _struck(scene, planned):
            await ask_all(members, "tamper", **how)
            try:
                yield
            finally:
                await ask_all(members, "tamper")

    return fault


def _store_ended(how: Callable[[Stoppable], None]) -> Fault:
    @contextlib.asynccontextmanager
    async def fault(scene: Scene, planned: Planned) -> AsyncIterator[None]:
        server = _there(_there(scene.store_server).server)
        async with _struck(scene, planned):
            await asyncio.to_thread(how, server)
            try:
                yield
            finally:
                await asyncio.to_thread(server.start)

    return fault


#: What each kind does; every kind of `plan.KINDS` is here.
FAULTS: Final[dict[str, Fault]] = {
    "cut": _proxied("cut"),
    "cut some": _proxied("cut"),
    "cut in mid-frame": _proxied("cut after"),
    "out of reach": _proxied("down"),
    "black hole": _proxied("black hole"),
    "black hole to the broker": _proxied("black hole", way="out"),
    "black hole to clients": _proxied("black hole", way="back"),
    "late answers": _proxied("hold back", way="back"),
    "half-open": _proxied("half open"),
    "latency": _proxied("delay"),
    "slow network": _proxied("slow"),
    "clients cut from a node": _proxied("black hole"),
    "broker restart": _broker_restart,
    "broker killed": _node_killed,
    "memory alarm": _memory_alarm,
    "memory alarm for a minute": _memory_alarm,
    "channels closed": _evaluated(_CHANNELS_CLOSED),
    "queues crash": _evaluated(_QUEUES_CRASH),
    "node killed": _node_killed,
    "one node apart": _partition("one apart"),
    "one node apart for long": _partition("one apart"),
    "leader apart": _partition("leader apart"),
    "leader apart for long": _partition("leader apart"),
    "all apart": _partition("all apart"),
    "all apart for long": _partition("all apart"),
    "one way apart": _partition("one way"),
    "one way apart for long": _partition("one way"),
    "killed": _ended_by(signal.SIGKILL),
    "killed at a hand-over": _killed_at,
    "paused": _paused,
    "paused and resumed as holder": _paused_holder,
    "stopped": _ended_by(signal.SIGTERM),
    "deadly message": _deadly,
    "clock jump": _clock_jump,
    "rolling restart": _rolling_restart,
    "store locked": _store_locked,
    "store restart": _store_ended(lambda server: server.stop()),
    "store killed": _store_ended(lambda server: server.kill()),
    "store cut off": _proxied("black hole", store=True),
    "slow store": _tampered(slow=True),
    "late store": _tampered(),
    "disk full": _tampered(full=True),
}
