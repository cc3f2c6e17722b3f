"""`leveret run` as a process: its banner, its signals, and what it leaves."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.e2e.shell import Shell

#: Workers that are slow, quick, or fail; what they work on is published by the app itself.
SHOP = """
import asyncio, contextlib, os
from leveret import Context, HardFailure, Leveret, RetryPolicy, SoftFailure

@contextlib.asynccontextmanager
async def lifespan(app):
    for word in os.environ.get("WORK", "").split():
        await app.publish("job", {"do": word})
    yield

app = Leveret("shop", broker="memory://", lifespan=lifespan)

@app.worker("job", retry=RetryPolicy(first_delay=600, max_delay=600, jitter=0, max_attempts=3))
async def charge(job: dict, ctx: Context) -> None:
    print("began", job["do"], "attempt", ctx.attempt, flush=True)
    if job["do"] == "sleep":
        await asyncio.sleep(1)
        print("slept", flush=True)
    if job["do"] == "soft" and ctx.attempt == 1:
        raise SoftFailure("the card service answered 503")
    if job["do"] == "hard":
        raise HardFailure("cannot charge 0 cents")

@app.worker("report")
async def report() -> None: ...
"""


@pytest.fixture
def shell(tmp_path):
    (tmp_path / "shop.py").write_text(SHOP)
    shell = Shell(tmp_path)
    yield shell
    shell.clean_up()


def test_the_readme_example_runs_and_order_0_lies_dead_with_its_reason(shell):
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    (code,) = [
        each for each in re.findall(r"```python\n(.*?)```", readme, re.DOTALL) if "async def main" in each
    ]
    (shell.folder / "example.py").write_text(code)
    ended = subprocess.run(
        [sys.executable, "example.py"],
        cwd=shell.folder,
        env=shell.environ,
        capture_output=True,
        text=True,
        check=True,
    )
    assert {line.split()[1] for line in ended.stdout.splitlines()} <= {str(number) for number in range(1, 10)}
    listed = shell("dead", "list")
    assert listed.code == 0
    assert re.search(r"charge +\S{6} +order\.placed +1 +– +HardFailure: cannot charge 0 cents", listed.out)


def test_run_says_what_it_runs_and_stops_cleanly_on_sigterm(shell):
    shell.environ["WORK"] = "sleep"
    running = shell.start(
        "run", "shop:app", "--set", "workers.charge.prefetch=50", "--store", "sqlite:///other.db"
    )
    running.wait_for("Ready; Ctrl")
    running.wait_for("began sleep")
    code = running.stop()
    assert code == 0
    told = running.told
    assert re.search(
        r" shop   memory:// \(code\)   sqlite:////\S+/other\.db \(--store\): 0 waiting, 0 dead\n", told
    )
    assert re.search(r" charge +shop\.charge +job +50 +50 +none +3: 600 s, 600 s\n", told)
    assert "set: workers.charge.prefetch = 50 (--set workers.charge.prefetch)" in told
    assert (
        "retry worker (holds the lease, term 1), keeper of the dead letters (holds the lease, term 1)" in told
    )
    assert "stopping: 1 running has up to 30 s; Ctrl+C again stops at once" in told
    assert "slept" in told
    assert "stopped: 1 finished, 0 returned to their queue" in told
    assert (shell.folder / "other.db").exists()
    assert not (shell.folder / "leveret.db").exists()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_second_signal_stops_at_once(shell, number, code):
    shell.environ["WORK"] = "sleep sleep"
    running = shell.start("run", "shop:app")
    running.wait_for("Ready")
    running.wait_for("began sleep")
    running.signal(number)
    running.wait_for("stopping: ")
    assert running.insist(number) == code
    assert "second signal" in running.told


def test_only_the_workers_that_are_named_run(shell):
    shell.environ["WORK"] = "quick"
    running = shell.start("run", "shop:app", "--worker", "report", "--no-retry-worker", "--no-keeper")
    running.wait_for("also here: neither retry worker nor keeper")
    assert running.stop() == 0
    assert "shop.report" in running.told
    assert "shop.charge" not in running.told
    assert "began" not in running.told


def test_until_idle_ends_by_itself_and_a_log_of_json_is_json(shell):
    shell.environ["WORK"] = "quick hard"
    ended = shell("run", "shop:app", "--until-idle", "--json")
    assert ended.code == 0
    *_, ready = [line for line in ended.out.splitlines() if '"event": "ready"' in line]
    assert '"origin": "code"' in ready
    (dead,) = [line for line in ended.err.splitlines() if '"action": "dead"' in line]
    assert '"worker": "charge"' in dead


def test_the_app_may_be_named_in_the_settings_file(shell):
    (shell.folder / "leveret.toml").write_text('app = "shop:app"\nstore = "sqlite:///of-the-file.db"\n')
    ended = shell("run", "--until-idle", "--quiet")
    assert (ended.code, ended.err) == (0, "")
    assert (shell.folder / "of-the-file.db").exists()


def test_reload_starts_anew_when_a_file_changes(shell):
    running = shell.start("run", "shop:app", "--reload")
    running.wait_for("Ready")
    (shell.folder / "shop.py").write_text(SHOP.replace('"report"', '"report.asked"'))
    running.wait_for(r"shop\.py changed, starting anew")
    running.wait_for(r"shop\.report +report\.asked")
    assert running.stop() == 0


def test_an_error_in_the_users_module_is_shown_whole_and_begins_in_that_module(shell):
    (shell.folder / "shop.py").write_text("def f():\n    return 1 / 0\n\nf()\n")
    ended = shell("run", "shop:app")
    assert ended.code == 2
    assert ended.err.splitlines()[1] == f'  File "{shell.folder}/shop.py", line 4, in <module>'
    assert ended.err.endswith("ZeroDivisionError: division by zero\n")


def test_an_error_of_the_users_lifespan_is_the_users_and_no_fault_of_leveret(shell):
    failing = "    raise BrokenPipeError('no pool')\n    for word in"
    (shell.folder / "shop.py").write_text(SHOP.replace("    for word in", failing))
    ended = shell("run", "shop:app")
    assert ended.code == 1
    assert ended.err.endswith("BrokenPipeError: no pool\n")
    assert "fault in leveret" not in ended.err


@pytest.mark.parametrize(
    "url",
    [
        "amqp://shop:geh#eim@rabbit-1",
        "amqp://shop:geh/eim@rabbit-1",
        "amqp://shop:geheim@rabbit-1:port",
        "amqp:/geheim",
    ],
)
def test_a_broken_broker_url_shows_no_password(shell, url):
    shell.environ["LEVERET_BROKER"] = url
    (shell.folder / "shop.py").write_text(SHOP.replace('broker="memory://", ', ""))
    ended = shell("run", "shop:app")
    assert ended.code == 2
    assert "LEVERET_BROKER" in ended.err
    assert "eim" not in ended.out + ended.err
    assert "Traceback" not in ended.err


def test_a_good_broker_url_shows_no_password_either(shell):
    # Nobody is there: `run` waits for ever, the others give up. `status` finds no store: those that make one
    # have theirs.
    url = ("--broker", "amqp://shop:geheim@127.0.0.1:9")
    running, *others = [
        shell.start(*command, *url)
        for command in (
            ["run", "shop:app", "--store", "sqlite:///of-its-own.db"],
            ["doctor", "shop:app", "--store", "sqlite:///of-doctor.db"],
            ["status"],
            ["publish", "x", "--namespace", "shop", "--store", "sqlite:///of-publish.db"],
            ["topology", "check", "shop:app"],
        )
    ]
    running.wait_for(r"amqp://shop:\*\*\*@127.0.0.1:9 does not answer yet")
    assert running.stop() == 0
    assert [each.ended() for each in others] == [1, 4, 3, 3]
    assert "geheim" not in "".join(each.told for each in (running, *others))


def test_a_reader_who_has_seen_enough_is_no_error(shell):
    shell.environ["WORK"] = "hard " * 30
    assert shell("run", "shop:app", "--until-idle", "--quiet").code == 0
    for flag in ("--json", "--quiet"):
        listing = subprocess.Popen(
            [sys.executable, "-m", "leveret.cli", "dead", "list", flag],
            cwd=shell.folder, env=shell.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        listing.stdout.close()
        err = listing.stderr.read()
        listing.stderr.close()
        assert (listing.wait(), err) == (0, "")
