"""The faults of a simulation, by name: what each does, for how long, and what it may leave behind."""

from __future__ import annotations

import random
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, get_args

from leveret.core import handover
from leveret.simulate.blow import Blow
from leveret.simulate.broker import LATE, Befalls
from leveret.simulate.process import GRACE, LEASE, Process

if TYPE_CHECKING:
    from leveret.simulate.run import Run

Fault = Callable[["Run", random.Random, str], Awaitable[None]]

#: Seconds after which a connection that carries nothing is ended at the latest.
HEARTBEATS = 60.0
#: Seconds that a killed process is gone.
GONE = (0.2, 4.0)
#: Which arrival at a hand-over point is struck, and seconds that it is waited for.
ARRIVALS = (1, 1, 2, 3, 10)
PATIENCE = 15.0


# ── At publishes ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _befalls(befalls: Befalls) -> Fault:
    async def strike(run: Run, chance: random.Random, name: str) -> None:
        number = chance.choice((1, 1, 2, 5))
        # One for each publish: cut twice, a message may be there twice more. What was refused is there no more often.
        copies = befalls not in {"nack", "returned"}
        blows = [
            Blow(run.machine, f"{name}.{each}", befalls, "broker", copies=copies) for each in range(number)
        ]
        # Among a thousand messages are sixty requests: they have faults of their own, or would have none.
        any_publish, requests = run.broker.befalls, run.broker.befalls_requests
        queue = (
            any_publish if run.scene.channel is None else chance.choice((any_publish, any_publish, requests))
        )
        queue.extend([befalls] * number)
        await run.until(lambda: not queue, 5.0)
        queue.clear()
        if befalls == "confirm lost":
            # What TCP carries is lost with its connection only; a heartbeat that fails ends it.
            await run.sleep(chance.uniform(0.1, HEARTBEATS))
            run.broker.lose_those_who_wait()
        await run.sleep(2 * LATE if befalls == "confirm late" else 0.5)
        for blow in blows:
            blow.heal()

    return strike


# ── The broker ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def _blocked(run: Run, chance: random.Random, name: str) -> None:
    blow = Blow(run.machine, name, "blocked", "broker")
    run.broker.block()
    await run.sleep(chance.choice((2.0, 8.0, 15.0, 60.0)))
    run.broker.unblock()
    blow.heal()


async def _cut(run: Run, _chance: random.Random, name: str) -> None:
    blow = Blow(run.machine, name, "connections cut", "broker")
    run.broker.drop_connections()
    await run.sleep(0.5)
    blow.heal()


async def _acks_lost(run: Run, chance: random.Random, name: str) -> None:
    blow = Blow(run.machine, name, "acks lost", "broker")
    run.broker.lose_next_ack(chance.choice((1, 3, 10)))
    await run.until(lambda: not run.broker.acks_to_lose, 5.0)
    run.broker.acks_to_lose = 0
    run.broker.drop_connections()
    await run.sleep(0.5)
    blow.heal()


async def _broker_restarted(run: Run, chance: random.Random, name: str) -> None:
    blow = Blow(run.machine, name, "broker restarted", "broker")
    run.broker.stop()
    await run.sleep(chance.uniform(0.1, 10))
    run.broker.start()
    await run.sleep(0.5)
    blow.heal()


async def _consumer_cancelled(run: Run, chance: random.Random, name: str) -> None:
    queues = sorted(name for name in run.broker.snapshot() if name.startswith(f"{run.scene.namespace}."))
    if not queues:
        # Nobody has come so far as to declare one.
        return
    queue = chance.choice(queues)
    blow = Blow(run.machine, name, "consumers cancelled by the broker", "broker", note=queue)
    run.broker.cancel_consumers(queue)
    await run.sleep(0.5)
    blow.heal()


# ── The store ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def _store_down(run: Run, chance: random.Random, name: str) -> None:
    blow = Blow(run.machine, name, "store down", "store")
    run.store.down = True
    await run.sleep(chance.choice((0.2, 2.0, 2 * LEASE, 10 * LEASE)))
    run.store.down = False
    blow.heal()


async def _store_failed_over(run: Run, chance: random.Random, name: str) -> None:
    """As where a standby takes over: what was being written is done, and nobody is told; then nobody answers."""
    blow = Blow(run.machine, name, "store failed over", "store")
    run.store.lies = sys.maxsize
    await run.sleep(chance.uniform(0.01, 0.5))
    run.store.lies, run.store.down = 0, True
    await run.sleep(chance.uniform(0.5, 2 * LEASE))
    run.store.down = False
    blow.heal()


async def _store_full(run: Run, chance: random.Random, name: str) -> None:
    blow = Blow(run.machine, name, "disk full", "store")
    run.store.full = True
    await run.sleep(chance.uniform(1, 3 * LEASE))
    run.store.full = False
    blow.heal()


async def _store_slow(run: Run, chance: random.Random, name: str) -> None:
    blow = Blow(run.machine, name, "store slow", "store", note="each call takes 10 times the lease")
    run.store.slow = 10 * LEASE
    # So short that it meets a call or two, as one that waits for a lock; or long enough to meet all who ask.
    await run.sleep(chance.choice((0.3, chance.uniform(1, 2 * LEASE))))
    run.store.slow = 0.0
    await run.sleep(12 * LEASE)
    blow.heal()


async def _store_lies(run: Run, chance: random.Random, name: str) -> None:
    # A standby cannot know that the holder has given out what it was not told to be stored; a holder alone does.
    copies = run.store.shared
    blow = Blow(run.machine, name, "store does it and reports a timeout", "store", copies=copies)
    run.store.lies += chance.choice((1, 2, 10))
    await run.until(lambda: not run.store.lies, 5.0)
    run.store.lies = 0
    await run.sleep(1.0)
    blow.heal()


# ── Processes ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def _killed(run: Run, chance: random.Random, name: str) -> None:
    victims = run.living()
    if victims:
        await _kill(run, chance, name, chance.choice(victims), "killed")


async def _kill(run: Run, chance: random.Random, name: str, victim: Process, why: str) -> None:
    blow = Blow(run.machine, name, "kill", victim, note=why)
    victim.kill()
    await run.back(victim, chance.uniform(*GONE))
    blow.heal()


def _killed_at(point: str) -> Fault:
    async def strike(run: Run, chance: random.Random, name: str) -> None:
        arrival = chance.choice(ARRIVALS)
        victim = await run.arrives(point, arrival, PATIENCE)
        if victim is not None:
            await _kill(run, chance, name, victim, f"at {point}, {arrival}.")

    return strike


async def _holder_killed(run: Run, chance: random.Random, name: str) -> None:
    holder = run.holder()
    if holder is not None:
        await _kill(run, chance, name, holder, "held the retry lease; the others are candidates at once")


async def _stopped(run: Run, chance: random.Random, name: str) -> None:
    victims = run.living()
    if victims:
        await _stop(run, chance.uniform(0.5, 3 * LEASE), name, chance.choice(victims))


async def _holder_stopped(run: Run, chance: random.Random, name: str) -> None:
    holder = run.holder()
    if holder is not None:
        await _stop(run, chance.uniform(LEASE, 4 * LEASE), name, holder)


def _stopped_at(point: str) -> Fault:
    """With something in hand, half-way: what a process believes of its lease is old when it goes on."""

    async def strike(run: Run, chance: random.Random, name: str) -> None:
        victim = await run.arrives(point, chance.choice(ARRIVALS), PATIENCE)
        if victim is not None:
            await _stop(run, chance.uniform(LEASE, 4 * LEASE), name, victim)

    return strike


async def _stop(run: Run, seconds: float, name: str, victim: Process) -> None:
    if victim.body.stopped:
        return
    blow = Blow(run.machine, name, "stopped", victim, note=f"for {seconds:.1f} s")
    body = victim.body
    body.stopped = True
    await run.sleep(seconds)
    run.loop.go_on(body)
    await run.sleep(0.5)
    blow.heal()


async def _clock_jumped(run: Run, chance: random.Random, name: str) -> None:
    victims = run.living()
    if not victims:
        return
    victim, seconds = chance.choice(victims), chance.choice((-3600.0, -300.0, -5.0, 5.0, 300.0, 3600.0))
    blow = Blow(
        run.machine, name, "clock jumped", victim, copies=False, clock=seconds, note=f"by {seconds:+g} s"
    )
    victim.clock.jump(seconds)
    await run.sleep(0.1)
    blow.heal()


async def _rolling_restart(run: Run, chance: random.Random, name: str) -> None:
    for number, process in enumerate(run.processes):
        task = process.task
        if not process.alive or process.body.stopped or task is None or task.done():
            continue
        blow = Blow(run.machine, f"{name}.{number}", "restart", process, copies=False)
        process.stopping.set()
        if not await run.until(task.done, GRACE - 0.1):
            # What its handlers are at is cut off, and goes back to the broker.
            late = Blow(run.machine, f"{name}.{number}g", "grace over", process)
            await run.until(task.done, 20.0)
            late.heal()
        if process.alive and not task.done():
            # As whoever runs it does: what does not stop in time is killed.
            await _kill(run, chance, f"{name}.{number}k", process, "did not stop in time")
        elif process.alive:
            await run.back(process, chance.uniform(0.1, 1.0))
        blow.heal()


FAULTS: Final[Mapping[str, Fault]] = {
    **{befalls: _befalls(befalls) for befalls in get_args(Befalls)},
    "blocked": _blocked,
    "cut": _cut,
    "acks lost": _acks_lost,
    "broker restarted": _broker_restarted,
    "consumer cancelled": _consumer_cancelled,
    "store down": _store_down,
    "store failed over": _store_failed_over,
    "disk full": _store_full,
    "store slow": _store_slow,
    "store lies": _store_lies,
    "killed": _killed,
    **{f"killed at {point}": _killed_at(point) for point in handover.ALL},
    "holder killed": _holder_killed,
    "stopped": _stopped,
    **{f"stopped at {point}": _stopped_at(point) for point in handover.ALL},
    "holder stopped": _holder_stopped,
    "clock jumped": _clock_jumped,
    "rolling restart": _rolling_restart,
}


def names_of(faults: str | Sequence[str]) -> tuple[str, ...]:
    """The names of faults that "all", "none", a text with commas between, or a list means.

    Raises:
        ValueError: there is no such fault.
    """
    if faults == "all":
        return tuple(FAULTS)
    if faults == "none":
        return ()
    names = tuple(name.strip() for name in (faults.split(",") if isinstance(faults, str) else faults))
    unknown = [name for name in names if name not in FAULTS]
    if unknown:
        raise ValueError(
            f"there is no fault {', '.join(map(repr, unknown))}. There are: all, none, {', '.join(FAULTS)}"
        )
    return names
