"""What 100 000 waiting messages cost: memory, a start, a round, and punctuality. Each in a process of its own."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import psutil
from benchmarks.figure import Figure, folder
from benchmarks.retry_load import QUEUE, failing_app, fill, memory_broker

from leveret.core.message import Outgoing
from leveret.transports.memory_broker import MemoryBroker

MANY: Final = 100_000
FEW: Final = 1_000
#: So many come due each second while a process is watched, for so many seconds.
A_SECOND: Final = 100
SECONDS: Final = 20
#: Seconds from the last written row to the first due time: the process is up by then.
HEAD_START: Final = 5.0
MIB: Final = 1024 * 1024


def measure() -> list[Figure]:
    """Four processes: nothing waits, 100 000 come due one after another, and few or many wait for tomorrow."""
    empty = _watched([], SECONDS)
    busy = _watched(one_after_another(MANY), SECONDS)
    tomorrow = 86_400.0
    few = _watched([*one_after_another(A_SECOND * SECONDS // 2), *[tomorrow] * FEW], SECONDS // 2)
    many = _watched([*one_after_another(A_SECOND * SECONDS // 2), *[tomorrow] * MANY], SECONDS // 2)
    return [
        Figure(name="waiting_100k_growth", value=(busy["rss"] - empty["rss"]) / MIB, unit=" MiB"),
        Figure(
            name="waiting_100k_round",
            value=many["cpu"],
            unit=" ms",
            peer="with 1 000 waiting",
            peer_value=few["cpu"],
        ),
        Figure(
            name="waiting_100k_start",
            value=busy["start"],
            unit=" s",
            peer="with none waiting",
            peer_value=empty["start"],
        ),
        Figure(name="waiting_100k_late_p99", value=busy["p99"] * 1000, unit=" ms"),
    ]


def one_after_another(number: int) -> list[float]:
    """So many waits, A_SECOND of them in a second."""
    return [position / A_SECOND for position in range(number)]


def _watched(waits: Sequence[float], seconds: int) -> dict[str, float]:
    """Write rows that are due so many seconds after the start, and watch a fresh process work on them."""
    with folder() as here:
        # One that is overdue shows when the process has begun to work.
        first_due = asyncio.run(fill(here, [-HEAD_START, *waits], head_start=HEAD_START))
        command = [sys.executable, "-m", "benchmarks.waiting_100k", str(here), str(first_due), str(seconds)]
        answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=Path(__file__).parent.parent)
    found: dict[str, float] = json.loads(answer.stdout)
    return found


async def watch(here: Path, first_due: float, seconds: float, store: str | None = None) -> dict[str, float]:
    """Run the retry worker; what it published tells by its body when it was due. *store*: None is SQLite, in *here*."""
    late: list[float] = []
    url = memory_broker()
    app = failing_app(here, url, store)
    broker = MemoryBroker.named(url.removeprefix("memory://"))
    working = asyncio.Event()

    def note(message: Outgoing, queues: Iterable[str]) -> None:
        if QUEUE in queues:
            wait = json.loads(message.body)["wait"]
            if wait < 0:
                working.set()
            else:
                late.append(time.time() - first_due - wait)

    broker.on_publish.append(note)
    async with app:
        started = time.perf_counter()
        async with app.running(workers=[], keeper=False):
            await working.wait()
            start = time.perf_counter() - started
            await asyncio.sleep(max(0.0, first_due - time.time()))
            cpu = time.process_time()
            for _ in range(int(seconds)):
                await asyncio.sleep(1)
                # Nobody takes the messages; they would count as what the waiting ones need.
                broker.purge(QUEUE)
            cpu = time.process_time() - cpu
            rss = psutil.Process().memory_info().rss
    late.sort()
    return {
        "rss": rss,
        "start": start,
        # Milliseconds of processor time for each that was published.
        "cpu": cpu / len(late) * 1000 if late else 0.0,
        "p99": late[int(len(late) * 0.99)] if late else 0.0,
    }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(watch(Path(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])))))
