"""examples/daemon as its README tells it: processes of which one is killed, on a broker that restarts."""

from __future__ import annotations

import json
import re
import signal
import sqlite3
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.shell import PATIENCE, Process, Shell

EXAMPLE = Path(__file__).parents[3] / "examples" / "daemon"
INSTANCES = ("default", "live-1")
#: Prices, and intents for each instance: 20 a second, so that an instance and the broker die in the midst of them.
NUMBER = 60


class Desk(Shell):
    """A shell of the one who reads the README."""

    def script(self, name: str, *arguments: str) -> Process:
        """Start a script of the example."""
        process = Process([sys.executable, str(EXAMPLE / name), *arguments], self.folder, self.environ)
        self._processes.append(process)
        return process


@pytest.fixture
def shell(tmp_path, rabbitmq):
    shell = Desk(tmp_path)
    shell.environ |= {"LEVERET_BROKER": rabbitmq.url, "LEVERET_NAMESPACE": "trex", "no_proxy": "127.0.0.1"}
    yield shell
    shell.clean_up()


def test_a_daemon_loses_no_price_and_obeys_each_intent_once_in_order_though_it_and_its_broker_are_killed(
    shell, rabbitmq
):
    webhook = shell.script("webhook.py", "0")
    shell.environ["LEVERET_NOTIFY__URLS"] = webhook.wait_for(r"listening on (\S+)")[1]
    notify = shell.start("notify")
    daemons = {key: shell.script("daemon.py", key) for key in INSTANCES}
    for key, daemon in daemons.items():
        daemon.wait_for(f"{key}: ready")
    notify.wait_for("Ready")

    desk = shell.script("desk.py", "trade", str(NUMBER))
    desk.wait_for("live-1: intent 3:")
    killed = daemons["live-1"]
    killed.signal(signal.SIGKILL)
    rabbitmq.kill()
    desk.wait_for(r"price \d+ again")
    webhook.wait_for("CRITICAL trex: publish_unavailable_after_reconnect holds")
    rabbitmq.start()
    daemons["live-1"] = shell.script("daemon.py", "live-1")
    assert desk.ended() == 0, desk.told

    pausing = shell.script("desk.py", "pause")
    assert pausing.ended() == 0, pausing.told
    for key in INSTANCES:
        webhook.wait_for(f"WARNING trex: paused holds · {key} is paused")
    late = shell.script("desk.py", "trade", "1")
    assert late.ended() == 0, late.told
    # An intent that was obeyed, and is asked for again: by a desk that never heard, or by the broker after a cut.
    (first,) = query(
        shell.folder / "orders-live-1.db", "SELECT id, symbol, lots FROM orders WHERE number = 1"
    )
    again = json.dumps(dict(zip(("id", "symbol", "lots"), first, strict=True)))
    assert shell("rpc", "call", "trex.live-1.intent.req", again, "--json").records[0]["answer"] == {
        "order": 1
    }
    in_order = list(range(1, NUMBER + 1))
    until_handled(in_order, killed, *daemons.values())
    for process in (*daemons.values(), notify):
        assert process.stop() == 0, process.told

    assert f"{NUMBER} prices confirmed" in desk.told
    for key, daemon in daemons.items():
        assert numbers(rf"^{key}: intent (\d+): {{'order': \1}}$", desk.told) == in_order
        assert placed(shell.folder / f"orders-{key}.db") == in_order
        assert daemon.told.count(f"{key}: is paused") == 1
        assert f"{key}: intent 1: {{'refused': 'trading is paused'}}" in late.told


def numbers(pattern: str, told: str) -> list[int]:
    return [int(number) for number in re.findall(pattern, told, re.MULTILINE)]


def until_handled(prices: list[int], *daemons: Process) -> None:
    """Wait until both strategies have handled each price, in whichever process: they share their queues."""
    until = time.monotonic() + PATIENCE
    for strategy in ("momentum", "reversion"):
        while True:
            told = "".join(daemon.told for daemon in daemons)
            missing = set(prices).difference(numbers(rf": {strategy}: price (\d+) of", told))
            if not missing:
                break
            assert time.monotonic() < until, f"{strategy} never had {missing}:\n{told}"
            time.sleep(0.02)


def placed(orders: Path) -> list[int]:
    """The intents that were obeyed, in their order, as an instance's database has them."""
    return [
        int(name.rpartition("-")[2]) for (name,) in query(orders, "SELECT id FROM orders ORDER BY number")
    ]


def query(orders: Path, sql: str) -> list[tuple[Any, ...]]:
    database = sqlite3.connect(orders)
    try:
        return database.execute(sql).fetchall()
    finally:
        database.close()
