"""What a process says of itself."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
from tests.unit.torture.endings import until_it_ends

import leveret
from leveret.torture.child import figures
from leveret.torture.process import Told

#: Starts a process that finds no broker, says its number, and is killed while that is still starting.
STARTS_ONE = """
import asyncio, os, signal, sys
from pathlib import Path
import msgspec
from leveret.torture.child import Child
from leveret.torture.process import Told

async def main():
    child = Child("leveret.torture.process", msgspec.json.decode(sys.argv[1], type=Told), log=Path(sys.argv[2]))
    await child.start()
    print(child.process.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


def told(folder: Path) -> str:
    """What makes it look for a broker for ever."""
    return msgspec.json.encode(
        Told(
            by="workers-1 1", roles=["workers"], record=str(folder / "record.jsonl"), broker="amqp://127.0.0.1:1",
            store=f"sqlite:///{folder}/leveret.db", namespace="shop", seed=1,
        )
    ).decode()  # fmt: skip


def test_a_child_ends_whose_parent_is_killed_while_it_starts(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(Path(leveret.__file__).parents[1])}
    command = [sys.executable, "-c", STARTS_ONE, told(tmp_path), tmp_path / "log"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())

    until_it_ends(pid)


def test_a_child_that_waits_for_its_broker_ends_with_its_input(tmp_path):
    command = [sys.executable, "-m", "leveret.torture.process", told(tmp_path), str(os.getpid())]
    environment = {**os.environ, "PYTHONPATH": str(Path(leveret.__file__).parents[1])}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as child:
        assert child.stdin is not None
        assert child.stderr is not None
        while "cannot be opened yet" not in child.stderr.readline():
            assert child.poll() is None
        child.stdin.close()
        try:
            assert child.wait(30) == 0
        finally:
            child.kill()


async def test_timers_that_were_cancelled_are_not_counted():
    before = figures()["timers"]
    timers = [asyncio.get_running_loop().call_later(3600, int) for _ in range(50)]
    counted = figures()["timers"]
    for timer in timers:
        timer.cancel()

    assert counted == before + 50
    assert figures()["timers"] == before


async def test_tasks_and_timers_of_loops_in_other_threads_are_counted():
    before = figures()
    begun, over = threading.Event(), threading.Event()

    async def work() -> None:
        timer = asyncio.get_running_loop().call_later(3600, int)
        begun.set()
        await asyncio.to_thread(over.wait)
        timer.cancel()

    thread = threading.Thread(target=asyncio.run, args=(work(),))
    thread.start()
    await asyncio.to_thread(begun.wait)
    during = figures()
    over.set()
    await asyncio.to_thread(thread.join)

    assert during["tasks"] == before["tasks"] + 1
    assert during["timers"] == before["timers"] + 1
    assert figures()["tasks"] == before["tasks"]


async def test_what_only_waits_for_the_collector_is_not_counted_in_a_soak():
    gc.collect()
    gc.disable()
    try:
        before = figures(collects=True)["objects"]
        for _ in range(1000):
            cycle: list[object] = []
            cycle.append(cycle)
        counted, collected = figures()["objects"], figures(collects=True)["objects"]
    finally:
        gc.enable()

    assert counted >= before + 1000
    assert collected < before + 500


async def test_threads_of_a_loops_own_pool_are_not_counted():
    before = figures()["threads"]
    over = threading.Event()
    pooled = [asyncio.create_task(asyncio.to_thread(over.wait)) for _ in range(3)]
    thread = threading.Thread(target=over.wait)
    thread.start()
    await asyncio.sleep(0)
    during = figures()["threads"]
    over.set()
    await asyncio.gather(*pooled, asyncio.to_thread(thread.join))

    assert during == before + 1


def test_a_child_whose_record_takes_nothing_ends_though_somebody_catches_its_errors(tmp_path):
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "from leveret.proof.record import Backlog\n"
        "from leveret.torture.child import ChildRecord\n"
        "try:\n"
        "    ChildRecord(Path('/dev/full'), 'w').write(Backlog(at=1.0, by='w', queue='q', messages=1))\n"
        "except Exception:\n"
        "    print('it goes on')\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(leveret.__file__).parents[1])}
    ended = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False
    )

    assert (ended.returncode, ended.stdout) == (1, "")
    assert "No space left on device" in ended.stderr
