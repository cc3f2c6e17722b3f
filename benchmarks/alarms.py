"""What an alarm costs whoever raises it while the broker is down, and what a burst of 100 000 leaves behind."""

from __future__ import annotations

import json
import logging
import socket
import subprocess
import sys
import time
from array import array
from typing import Any, Final

import psutil
from benchmarks.figure import Figure

from leveret.core.urls import parse_broker
from leveret.runtime.wiring import make_alarms
from leveret.runtime.world import system_world

#: Alarms of a burst, and the conditions that they are about.
ALARMS: Final = 100_000
CONDITIONS: Final = 50
ROUNDS: Final = 3


def measure() -> list[Figure]:
    """The best of three fresh processes, since everything that disturbs makes it slower."""
    rounds = [_in_a_process() for _ in range(ROUNDS)]
    return [
        Figure(
            name="alarm_emit",
            value=min(each["emit_p99"] for each in rounds),
            unit=" µs",
            peer="logging, to a NullHandler",
            peer_value=min(each["log_p99"] for each in rounds),
        ),
        Figure(name="alarm_burst_growth", value=min(each["grown"] for each in rounds), unit=" MiB"),
        # Told when it is met, and with the count of all at its end.
        Figure(
            name="alarm_burst_told",
            value=max(each["told"] for each in rounds) / CONDITIONS,
            unit=" a condition",
        ),
        Figure(
            name="alarm_burst_uncounted",
            value=max(ALARMS - each["counted"] for each in rounds),
            unit=" alarms",
        ),
    ]


def _in_a_process() -> dict[str, Any]:
    said = subprocess.run(
        [sys.executable, "-m", "benchmarks.alarms"], check=True, capture_output=True, text=True, timeout=120
    ).stdout
    return dict(json.loads(said))


class Told(logging.Handler):
    """Counts what is told."""

    def __init__(self) -> None:
        super().__init__()
        self.alarms = 0
        self.counted = 0

    def emit(self, record: logging.LogRecord) -> None:
        action = getattr(record, "action", "")
        self.alarms += action == "alarm"
        if action == "resolved":
            # "resolved feed: … (2000 times since it began)"
            self.counted += int(record.getMessage().rpartition("(")[2].split()[0])


def _burst() -> dict[str, Any]:
    told = Told()
    logger = logging.getLogger("leveret.alarms")
    logger.addHandler(told)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        port = nobody.getsockname()[1]
        emitter = make_alarms(
            system_world(), "bench", broker=parse_broker(f"amqp://127.0.0.1:{port}", "benchmark")
        )
        emitter.emit("begin", "so that what is loaded once is loaded")
        time.sleep(1)
        # Its memory is there before the burst begins, and written to.
        took = array("d", bytes(8 * ALARMS))
        process = psutil.Process()
        before = process.memory_info().rss
        for number in range(ALARMS):
            began = time.perf_counter()
            emitter.emit("feed_stale", "no prices", {"number": number}, about=str(number % CONDITIONS))
            took[number] = time.perf_counter() - began
        for number in range(CONDITIONS):
            emitter.resolved("feed_stale", str(number))
        emitter.close()
        grown = process.memory_info().rss - before
    quiet = logging.getLogger("nobody.listens")
    quiet.addHandler(logging.NullHandler())
    quiet.propagate = False
    logged = array("d", bytes(8 * ALARMS))
    for number in range(ALARMS):
        began = time.perf_counter()
        quiet.critical("no prices: %s", number)
        logged[number] = time.perf_counter() - began
    return {
        "emit_p99": _p99(took) * 1e6,
        "log_p99": _p99(logged) * 1e6,
        "grown": max(0, grown) / 2**20,
        "told": told.alarms - 1,
        "counted": told.counted,
    }


def _p99(seconds: array[float]) -> float:
    return sorted(seconds)[len(seconds) * 99 // 100]


if __name__ == "__main__":
    print(json.dumps(_burst()))
