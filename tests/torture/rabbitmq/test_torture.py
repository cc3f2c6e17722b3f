"""`leveret torture`, twenty seconds of it: nothing is lost, everything that was started is gone, and it can fail."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.rabbitmq_node import Node

import leveret
from leveret.proof.record import Healed, Struck, read
from leveret.torture import scene
from leveret.torture.scene import CannotStart
from leveret.torture.setting import Outcome, Setting, judged, play

#: A third of what the command publishes: other tests run beside this one.
RATE = 100.0


async def played(setting: Setting, say: Callable[[str], object] = lambda _: None) -> Outcome:
    return judged(setting, await play(setting, say=say, asked_to_stop=asyncio.Event()))


async def test_a_torture_with_a_fault_every_five_seconds_loses_nothing(rabbitmq: Node, tmp_path: Path):
    said: list[str] = []
    setting = Setting(
        minutes=1 / 3, seed=11, every=(5, 5), rate=RATE, broker=rabbitmq.url, namespace="torture-whole",
        faults=("cut in mid-frame", "killed at a hand-over", "paused and resumed as holder", "store locked"),
        folder=tmp_path,
    )  # fmt: skip

    outcome = await played(setting, said.append)

    verdict = outcome.verdict
    assert outcome.passed, [*map(str, verdict.faults), *outcome.troubles]
    assert (verdict.lost, verdict.waiting) == (0, 0)
    # Each order has two takers, and one of them returns something that has a third.
    assert verdict.accepted > 2 * RATE * 20
    assert verdict.dead
    # What the plan said is what was struck, and all of it is over.
    plan = [str(fault) for fault in setting.plan()]
    assert said[1 : 1 + len(plan)] == plan
    events = list(read(tmp_path / "record.jsonl"))
    struck = {event.fault for event in events if isinstance(event, Struck)}
    assert struck <= {event.fault for event in events if isinstance(event, Healed)}
    assert len(struck) >= 3
    assert f"seed {setting.seed}" in (tmp_path / "report.html").read_text()


async def test_a_leveret_that_acks_a_moment_before_it_stores_is_found_out(
    rabbitmq: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    broken = tmp_path / "broken"
    shutil.copytree(
        Path(leveret.__file__).parent, broken / "leveret", ignore=shutil.ignore_patterns("__pycache__")
    )
    intake = broken / "leveret" / "retry" / "intake.py"
    whole = intake.read_text()
    for before, after in (
        ("        namespace = self.parts.names.namespace\n        try:\n", "        delivery.ack()\n"),
        # Longer than the time between two blows: in step with them, each would fall just after a batch was stored.
        ("        return [\n            Due(", "        await self.parts.world.clock.sleep(2.0)\n"),
    ):
        assert whole.count(before) == 1
        whole = whole.replace(before, after + before)
    intake.write_text(whole)
    # The processes of the shop run this one; who strikes and judges them does not.
    monkeypatch.setenv("PYTHONPATH", str(broken))
    setting = Setting(
        minutes=0.25, seed=283, every=(1, 1), rate=RATE, soft=1.0, broker=rabbitmq.url, namespace="torture-broken",
        faults=("killed",), folder=tmp_path / "report",
    )  # fmt: skip
    # Again and again while there is load, whichever of them holds the lease.
    assert sum(fault.target.startswith("retry") and fault.at > 3 for fault in setting.plan()) >= 6

    outcome = await played(setting)

    assert outcome.verdict.lost > 0
    assert not outcome.passed
    assert {fault.rule for fault in outcome.verdict.faults} & {"accounted for", "conservation"}


async def command(rabbitmq: Node, folder: Path, name: str) -> asyncio.subprocess.Process:
    """`leveret torture`, which runs for five minutes."""
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "leveret.cli", "torture", "--minutes", "5", "--rate", "20", "--faults", "none",
        "--broker", rabbitmq.url, "--namespace", name, "--report", str(folder / "report"),
        stdout=PIPE, stderr=PIPE, start_new_session=True,
    )  # fmt: skip


async def until_it_says(torture: asyncio.subprocess.Process, words: str) -> None:
    assert torture.stderr is not None
    async with asyncio.timeout(60):
        while words.encode() not in await torture.stderr.readline():
            pass


async def until_it_has_started(torture: asyncio.subprocess.Process, number: int) -> list[int]:
    async with asyncio.timeout(60):
        while len(started := children(torture.pid)) < number:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    return started


async def until_they_are_gone(started: list[int]) -> None:
    until = time.monotonic() + 10
    while left := [pid for pid in started if Path(f"/proc/{pid}").exists()]:
        assert time.monotonic() < until, left
        await asyncio.sleep(0.05)


async def test_nothing_that_a_killed_torture_has_started_outlives_it(rabbitmq: Node, tmp_path: Path):
    torture = await command(rabbitmq, tmp_path, "torture-killed")
    await until_it_says(torture, "accepted")
    started = children(torture.pid)
    assert len(started) == 9
    # One that is paused cannot see that its parent is gone.
    os.kill(started[0], signal.SIGSTOP)

    torture.kill()
    await torture.wait()

    await until_they_are_gone(started)


async def test_ctrl_c_ends_the_load_and_judges_what_there_is(rabbitmq: Node, tmp_path: Path):
    torture = await command(rabbitmq, tmp_path, "torture-ended")
    await until_it_says(torture, "accepted")

    # A terminal sends it to all that were started.
    os.killpg(torture.pid, signal.SIGINT)
    out, _ = await asyncio.wait_for(torture.communicate(), 60)

    assert torture.returncode == 0
    assert out.decode().rstrip().endswith("lost 0")
    assert (tmp_path / "report" / "report.html").exists()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
async def test_a_second_signal_ends_all_that_was_started(
    rabbitmq: Node, tmp_path: Path, number: int, code: int
):
    torture = await command(rabbitmq, tmp_path, "torture-ended-twice")
    await until_it_says(torture, "accepted")
    started = children(torture.pid)

    torture.send_signal(number)
    await until_it_says(torture, "coming to rest")
    torture.send_signal(number)
    out, told = await asyncio.wait_for(torture.communicate(), 20)

    assert torture.returncode == code
    assert b"second signal" in told
    assert out == b""
    await until_they_are_gone(started)


def that_does(words: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A leveret whose torture has processes that do that instead of their work."""
    shutil.copytree(
        Path(leveret.__file__).parent, folder / "leveret", ignore=shutil.ignore_patterns("__pycache__")
    )
    process = folder / "leveret" / "torture" / "process.py"
    whole = process.read_text()
    assert whole.count("    child.run(_main)") == 1
    process.write_text(whole.replace("    child.run(_main)", words))
    monkeypatch.setenv("PYTHONPATH", str(folder))


async def test_a_torture_whose_processes_cannot_start_ends_and_says_why(
    rabbitmq: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    that_does("    sys.exit('there is no such thing here')", tmp_path / "broken", monkeypatch)

    torture = await command(rabbitmq, tmp_path, "torture-broken-start")
    _, told = await asyncio.wait_for(torture.communicate(), 90)

    assert torture.returncode == 1
    assert "workers-1 1 ended with 1; its last words, in " in told.decode()
    assert "workers-1.log: there is no such thing here" in told.decode()
    assert "is not started again: 3 lives in a row have ended as none should" in told.decode()


async def test_a_torture_whose_processes_never_get_ready_ends_in_its_time_and_says_which(
    rabbitmq: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    that_does("    import time; time.sleep(600)", tmp_path / "broken", monkeypatch)
    monkeypatch.setattr(scene, "START", 3.0)
    setting = Setting(
        minutes=5, seed=1, broker=rabbitmq.url, namespace="torture-hangs", folder=tmp_path / "report"
    )

    servers = children(os.getpid())

    with pytest.raises(CannotStart, match=r"retry-1 1 is not ready after 3 s; its last words, in .*: none"):
        await played(setting)

    assert children(os.getpid()) == servers


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
async def test_a_signal_ends_a_torture_that_is_still_starting(
    rabbitmq: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, code: int
):
    that_does("    import time; time.sleep(600)", tmp_path / "broken", monkeypatch)
    torture = await command(rabbitmq, tmp_path, "torture-starts")
    # The proxies, and all but those that make work.
    started = await until_it_has_started(torture, 7)

    torture.send_signal(number)
    _, told = await asyncio.wait_for(torture.communicate(), 20)

    assert torture.returncode == code
    assert b"asked to stop while it was starting" in told
    await until_they_are_gone(started)


async def test_a_signal_ends_a_torture_whose_broker_is_still_starting(tmp_path: Path):
    torture = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "leveret.cli", "torture", "--faults", "none", "--report", str(tmp_path / "report"),
        stdout=PIPE, stderr=PIPE,
    )  # fmt: skip
    started = await until_it_has_started(torture, 2)

    torture.send_signal(signal.SIGINT)
    _, told = await asyncio.wait_for(torture.communicate(), 20)

    assert torture.returncode == 130
    assert b"asked to stop while it was starting" in told
    await until_they_are_gone(started)


def children(pid: int) -> list[int]:
    """The processes that a process has started, in any of its threads."""
    told = " ".join(path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children"))
    return [int(child) for child in told.split()]
