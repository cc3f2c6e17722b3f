from __future__ import annotations

import json
import tempfile

import pytest

from leveret import BrokerUnreachable, ConfigError, Counts
from leveret.cli import demo as command
from leveret.cli.demo_view import DemoView
from leveret.cli.options import Common
from leveret.demo.ledger import Ledger
from leveret.demo.run import Demo, Moment
from leveret.retry.dispatch import Lateness


@pytest.fixture(autouse=True)
def own_temporary_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("no_proxy", "")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def ends_with(monkeypatch):
    """Runs the command with a demo that ends so."""

    def prepare(**counts):
        ledger = Ledger(
            **{"published": 5, "delivered": 3, "dead": 2, "waiting": 0, "lost": 0, "twice": 0} | counts
        )

        async def run(self):
            return ledger

        monkeypatch.setattr(Demo, "run", run)

    return prepare


async def test_the_last_line_is_the_ledger_and_the_one_before_says_where_to_look(ends_with, capsys, tmp_path):
    ends_with(twice=1)
    assert await command.demo(seed=7, count=3, common=Common(store=f"sqlite:///{tmp_path}/l.db")) == 0
    before, last = capsys.readouterr().out.splitlines()
    assert before.startswith("delivered twice: 1 (")
    assert before.endswith(f"Look around: leveret dead list --store sqlite:///{tmp_path}/l.db")
    assert last == "accounted: published=5 delivered=3 dead=2 waiting=0 lost=0"


@pytest.mark.parametrize("short", [{"lost": 1, "delivered": 2}, {"waiting": 1, "delivered": 2}])
async def test_a_message_that_has_not_come_to_its_end_is_exit_code_1(ends_with, short):
    ends_with(**short)
    assert await command.demo(seed=7, count=3, common=Common()) == 1


async def test_json_is_one_object_for_programs(ends_with, capsys):
    ends_with()
    await command.demo(seed=7, count=3, common=Common(json=True, namespace="demo-here"))
    told = json.loads(capsys.readouterr().out)
    assert (told["lost"], told["seed"], told["namespace"]) == (0, 7, "demo-here")


async def test_a_broker_that_is_not_there_is_told():
    # Nobody listens on port 1.
    with pytest.raises(BrokerUnreachable, match=r"127\.0\.0\.1:1"):
        await command.demo(common=Common(broker="amqp://shop:secret@127.0.0.1:1"))


async def test_a_store_that_would_die_with_the_retry_worker_is_refused():
    with pytest.raises(ConfigError, match="such a store dies with it"):
        await command.demo(common=Common(store="memory://"))


async def test_a_settings_file_is_refused_for_the_demo_reads_none():
    with pytest.raises(ConfigError, match="reads no settings"):
        await command.demo(common=Common(config="leveret.toml"))


async def test_the_webhooks_of_the_demo_go_through_no_proxy(ends_with, monkeypatch):
    import os

    ends_with()
    monkeypatch.setenv("no_proxy", "internal")
    await command.demo(seed=7, count=3, common=Common())
    assert os.environ["no_proxy"] == "internal,127.0.0.1"


def a_moment(**changes):
    given = {
        "seconds": 17.2, "total": 1002, "published": 1002, "delivered": 768,
        "counts": Counts(queued=0, running=7, waiting=214, dead=13), "next_due": 0.42,
        "lateness": Lateness(0.003, 0.021, 0.1),
        "answers": {"200": 768, "503": 412, "429": 96, "none": 61, "410": 11},
    }  # fmt: skip
    return Moment(**given | changes)


def test_the_live_view_shows_where_every_message_is():
    pictures = []
    view = DemoView("memory:// · seed 7", draw=pictures.append)
    view.tell("retry worker dropped without clean-up, 231 waiting")
    view.tell("dead  deliver  b7c2e1  attempt 1  HardFailure: 410 gone", death=True)
    view.show(a_moment())
    title, bar, places, endpoint, mark, death = ["".join(text for text, _ in line) for line in pictures[-1]]
    assert title == " leveret demo   memory:// · seed 7   00:17"
    assert bar.startswith(" settled  ━")
    assert bar.endswith("   781 of 1002")
    assert places == (
        " published 1002   delivered 768   waiting 214   running 7   dead 13   "
        "next due in 0.4 s   late p50 3 ms  p99 21 ms"
    )
    assert endpoint == (
        " endpoint  200: 768   503: 412 again   429 Retry-After: 96 again, not counted   no answer: 61 again   "
        "410 gone: 11 dead"
    )
    assert mark == " 00:00  retry worker dropped without clean-up, 231 waiting"
    assert death == " 00:00  dead  deliver  b7c2e1  attempt 1  HardFailure: 410 gone"


@pytest.mark.parametrize("delivered", [0, 1, 500, 988, 989])
def test_the_bar_always_has_the_same_length(delivered):
    pictures = []
    DemoView("x", draw=pictures.append).show(a_moment(delivered=delivered))
    bar = "".join(text for text, _ in pictures[0][1][1:-1])
    assert len(bar) == 52


def test_only_the_newest_deaths_stay_and_every_event_of_the_retry_worker():
    pictures = []
    view = DemoView("x", draw=pictures.append)
    view.tell("dropped")
    view.tell("started again")
    for number in range(30):
        view.tell(f"dead {number}", death=True)
    view.show(a_moment())
    shown = ["".join(text for text, _ in line) for line in pictures[0][4:]]
    assert shown[:2] == [" 00:00  dropped", " 00:00  started again"]
    assert shown[-1] == " 00:00  dead 29"
    assert len(shown) == 8


def test_lines_come_every_two_seconds_and_at_the_end():
    lines = []
    view = DemoView("x", lines=lines.append)
    for seconds in (0.0, 0.2, 1.9, 2.1, 2.3):
        view.show(a_moment(seconds=seconds))
    view.show(a_moment(seconds=2.4, delivered=989))
    assert [line.split()[0] for line in lines] == ["00:00", "00:02", "00:02"]


def test_a_reason_from_outside_cannot_command_the_terminal():
    lines = []
    DemoView("x", lines=lines.append).tell("dead  \x1b[2J")
    assert "\x1b" not in lines[0]


def test_a_moment_never_shows_more_settled_than_there_are():
    assert a_moment(delivered=1002).settled == 1002
