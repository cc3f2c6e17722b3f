"""Processes of release 0.2.0 beside those of today, on one broker and one store: an upgrade, as it happens at night."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.rabbitmq.conftest import Shop
from tests.e2e.shell import PATIENCE, Process

VERSION = "0.2.0"
_ROOT = Path(__file__).parents[3]
_FOLDER = Path(os.environ.get("LEVERET_TEST_RELEASE_ROOT") or f"/var/tmp/leveret-{VERSION}")
#: The shortest that keeps a busy machine's renewals in time.
LEASE = "3"

#: Written in words that both releases know. What its handlers say is in the message, by attempt; a result goes on.
APP = """
import asyncio
import json
import os

from leveret import Context, HardFailure, Leveret, Message, RetryPolicy, SoftFailure

app = Leveret(retry=RetryPolicy(first_delay=0.3, jitter=0, max_attempts=3))
diary = os.open("diary.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def note(order, ctx):
    line = {"n": order["n"], "worker": ctx.worker, "attempt": ctx.attempt, "id": ctx.message_id, "pid": os.getpid(),
            "trace": ctx.headers.get("trace")}
    os.write(diary, json.dumps(line).encode() + b"\\n")


@app.worker("order.placed")
async def charge(order: dict, ctx: Context) -> Message:
    note(order, ctx)
    await asyncio.sleep(0.02)
    says = order["says"]
    match says[min(ctx.attempt, len(says)) - 1]:
        case "soft":
            raise SoftFailure("the card service answered 503")
        case "busy":
            raise SoftFailure("the card service is busy", retry_after=1.0)
        case "hard":
            raise HardFailure("cannot charge 0 cents")
    return Message("receipt.made", {"n": order["n"], "says": ["done"]})


@app.worker("order.placed")
async def audit(order: dict, ctx: Context) -> None:
    note(order, ctx)


@app.worker("receipt.made")
async def post(order: dict, ctx: Context) -> None:
    note(order, ctx)
"""
#: By number of an order: what `charge` says of it at each attempt.
SAYS = (["done"], ["soft", "done"], ["busy", "soft", "done"], ["hard"], ["soft", "soft", "soft"])
DIES = {3: "HardFailure: cannot charge 0 cents", 4: "retries exhausted: the card service answered 503"}


@pytest.fixture(scope="session")
def older() -> str:
    """The interpreter of the older release. In CI it is installed where it is missing, which takes some seconds."""
    if not (_FOLDER / ".complete").exists():
        if not os.environ.get("CI"):
            pytest.skip(
                f"needs release {VERSION} in an environment of its own: scripts/release {VERSION} {_FOLDER}"
            )
        shallow = subprocess.run(
            ["git", "rev-parse", "--is-shallow-repository"],
            cwd=_ROOT, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if shallow.stdout.strip() != "false":
            pytest.skip(
                f"needs the repository's history with release {VERSION} in it, and this is a part of it"
            )
        subprocess.run([_ROOT / "scripts" / "release", VERSION, _FOLDER], check=True, timeout=300)
    interpreter = str(_FOLDER / ".venv" / "bin" / "python")
    told = subprocess.run(
        [interpreter, "-m", "leveret.cli", "--version"], capture_output=True, text=True, check=True
    )
    assert VERSION in told.stdout
    return interpreter


class Upgrade:
    """The shop's processes in both releases, and what their handlers wrote down."""

    def __init__(self, shop: Shop, older: str) -> None:
        self.shop = shop
        self._pythons = {"old": older, "new": sys.executable}
        (shop.folder / "shop.py").write_text(APP)
        (shop.folder / "diary.jsonl").touch()
        shop.environ["LEVERET_LEASE__TTL"] = LEASE

    def start(self, release: str, *arguments: str) -> Process:
        process = self.shop.start(*arguments, interpreter=self._pythons[release])
        process.wait_for("Ready")
        return process

    def publish(self, release: str, numbers: range) -> None:
        lines = "".join(json.dumps({"n": n, "says": SAYS[n % len(SAYS)]}) + "\n" for n in numbers)
        call = ("publish", "order.placed", "-", "--header", f"trace={release}")
        ended = self.shop(*call, stdin=lines, interpreter=self._pythons[release])
        assert ended.code == 0, ended.err

    def diary(self) -> list[dict[str, Any]]:
        # The last line may be half-way: it is read the next time.
        lines = (self.shop.folder / "diary.jsonl").read_text().split("\n")[:-1]
        return [json.loads(line) for line in lines]

    def until_all_are_through(self, numbers: range) -> None:
        """Return when each handler has been run as often as the orders say, and the dead letters are kept."""
        wanted = expected(numbers)
        until = time.monotonic() + PATIENCE
        while wanted - self.runs():
            assert time.monotonic() < until, f"still missing: {wanted - self.runs()}"
            time.sleep(0.1)
        while len(self.dead()) < sum(n % len(SAYS) in DIES for n in numbers):
            assert time.monotonic() < until, f"dead letters are missing: {self.dead()}"
            time.sleep(0.1)

    def runs(self) -> Counter[tuple[int, str, int]]:
        return Counter((line["n"], line["worker"], line["attempt"]) for line in self.diary())

    def dead(self) -> list[tuple[int, str]]:
        numbers = {line["id"]: line["n"] for line in self.diary()}
        ended = self.shop("dead", "list", "--limit", "1000", "--json")
        return sorted((numbers[letter["message_id"]], letter["reason"]) for letter in ended.records)

    def letters_are_as_planned(self, numbers: range) -> None:
        assert self.dead() == [(n, DIES[n % len(SAYS)]) for n in numbers if n % len(SAYS) in DIES]


def expected(numbers: range) -> Counter[tuple[int, str, int]]:
    runs: Counter[tuple[int, str, int]] = Counter()
    for n in numbers:
        says = SAYS[n % len(SAYS)]
        runs.update((n, "charge", attempt + 1) for attempt in range(len(says)))
        runs[n, "audit", 1] += 1
        if says[-1] == "done":
            runs[n, "post", 1] += 1
    return runs


@pytest.mark.parametrize("workers", ["old", "new"])
def test_workers_of_one_release_and_the_retry_worker_and_keeper_of_the_other_understand_each_other(
    workers: str, shop: Shop, older: str
):
    upgrade = Upgrade(shop, older)
    others = "new" if workers == "old" else "old"
    running = [
        upgrade.start(workers, "run", "--no-retry-worker", "--no-keeper"),
        upgrade.start(others, "retry-worker"),
        upgrade.start(others, "keeper"),
    ]
    numbers = range(30)
    upgrade.publish(others, numbers)
    upgrade.until_all_are_through(numbers)
    for process in running:
        assert process.stop() == 0
    assert upgrade.runs() == expected(numbers)
    upgrade.letters_are_as_planned(numbers)
    traces = {line["trace"] for line in upgrade.diary() if line["worker"] == "charge"}
    assert traces == {others}


def test_an_upgrade_process_by_process_and_the_way_back_lose_nothing_and_repeat_nothing(
    shop: Shop, older: str
):
    upgrade = Upgrade(shop, older)
    first = upgrade.start("old", "run")
    upgrade.publish("old", range(20))
    # Both run on one store; the first holds the leases, and what waits with it is the other's once it has stopped.
    second = upgrade.start("new", "run")
    upgrade.publish("new", range(20, 40))
    assert first.stop() == 0
    upgrade.publish("old", range(40, 60))
    # And back again, as one does when the new release disappoints.
    third = upgrade.start("old", "run")
    upgrade.publish("new", range(60, 80))
    assert second.stop() == 0
    upgrade.publish("new", range(80, 100))
    upgrade.until_all_are_through(range(100))
    assert third.stop() == 0
    assert upgrade.runs() == expected(range(100))
    upgrade.letters_are_as_planned(range(100))
    assert len({line["pid"] for line in upgrade.diary()}) == 3


def test_what_a_killed_process_of_the_older_release_had_in_hand_is_finished_by_the_newer_one(
    shop: Shop, older: str
):
    upgrade = Upgrade(shop, older)
    first = upgrade.start("old", "run")
    upgrade.publish("old", range(40))
    first.kill()
    second = upgrade.start("new", "run")
    upgrade.until_all_are_through(range(40))
    assert second.stop() == 0
    surplus = upgrade.runs() - expected(range(40))
    # One more run of each step at most that was in hand at the kill.
    assert set(surplus.values()) <= {1}, surplus
    assert {n for n, _ in upgrade.dead()} == {n for n in range(40) if n % len(SAYS) in DIES}
