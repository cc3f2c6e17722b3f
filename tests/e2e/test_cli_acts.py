"""Acts from another process, on an app that runs on `memory://`."""

from __future__ import annotations

import re
import time

import pytest
from tests.e2e.shell import Shell
from tests.e2e.test_cli_run import SHOP


@pytest.fixture
def shell(tmp_path):
    (tmp_path / "shop.py").write_text(SHOP)
    shell = Shell(tmp_path)
    yield shell
    shell.clean_up()


def waiting(shell, state="waiting"):
    return [
        each["message_id"] for each in shell("retries", "list", "--json").records if each["state"] == state
    ]


def test_a_running_app_obeys_acts_on_what_waits(shell):
    shell.environ["WORK"] = "soft soft soft soft"
    running = shell.start("run", "shop:app")
    running.wait_for("Ready")
    running.wait_for(r"(?s)(soft  charge.*){4}")
    shell.environ["WORK"] = ""
    one, two, three, four = waiting(shell)

    ended = shell("retries", "now", one[-6:])
    assert (ended.code, ended.out.partition(",")[0]) == (0, "due now: 1 of 1")
    assert re.search(r"asked \S+/\d+ \(holds the lease\)", ended.err)
    running.wait_for("began soft attempt 2")

    assert shell("retries", "hold", two).code == 0
    assert waiting(shell, "held") == [two]
    assert shell("retries", "cancel", three[-8:], four).out.startswith("cancelled 2 of 2")
    (dead, _) = shell("dead", "list", "--reason", "cancelled", "--json").records
    assert dead["message_id"] in {three, four}
    assert shell("retries", "release", "--worker", "charge", "--yes").code == 0
    assert waiting(shell) == [two]
    assert running.stop() == 0


def test_an_act_is_obeyed_within_a_second(shell):
    shell.environ["WORK"] = "soft soft soft"
    running = shell.start("run", "shop:app")
    running.wait_for(r"(?s)(soft  charge.*){3}")
    took = []
    for number, one in enumerate(waiting(shell), 1):
        asked = shell.start("retries", "now", one)
        asked.wait_for("asked ")
        began = time.monotonic()
        running.wait_for(rf"(?s)(began soft attempt 2.*){{{number}}}")
        took.append(time.monotonic() - began)
        assert asked.ended() == 0
    # The best of three, for the machine may have other things to do.
    assert min(took) < 1.0


def test_a_running_app_replays_dead_letters_once(shell):
    shell.environ["WORK"] = "hard hard"
    running = shell.start("run", "shop:app")
    running.wait_for(r"(?s)(dead  charge.*){2}")
    # The log line comes before the keeper has stored the letter.
    deadline = time.monotonic() + 30
    while len(shell("dead", "list", "--json").records) < 2:
        assert time.monotonic() < deadline
    ended = shell("dead", "replay", "--reason", "cannot charge", "--rate", "50", "--yes")
    assert ended.code == 0
    assert ended.out.startswith("published 2 of 2, dead again ")
    running.wait_for(r"(?s)(dead  charge.*){4}")
    assert running.stop() == 0
    assert running.told.count("began hard") == 4
    assert len(shell("dead", "list", "--json").records) == 2
    assert len(shell("dead", "list", "--state", "replayed", "--json").records) == 2


def test_where_nobody_runs_an_act_waits_5_seconds_and_then_for_the_next_run(shell):
    shell.environ["WORK"] = "soft"
    running = shell.start("run", "shop:app")
    running.wait_for("soft  charge")
    assert running.stop() == 0
    shell.environ["WORK"] = ""
    (one,) = waiting(shell)

    ended = shell("retries", "now", one[-6:])
    assert ended.code == 6
    assert "no retry worker of shop answered in 5 s" in ended.err
    assert waiting(shell) == [one]

    ended = shell("run", "shop:app", "--until-idle")
    assert ended.code == 0
    assert "began soft attempt 2" in ended.out
    assert waiting(shell) == []


def test_here_needs_nobody_and_the_next_run_publishes_what_was_made_due(shell):
    shell.environ["WORK"] = "soft"
    running = shell.start("run", "shop:app")
    running.wait_for("soft  charge")
    (one,) = waiting(shell)
    assert running.stop() == 0
    shell.environ["WORK"] = ""
    assert shell("retries", "now", one, "--here").code == 0
    assert "began soft attempt 2" in shell("run", "shop:app", "--until-idle").out
