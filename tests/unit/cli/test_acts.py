"""Acts from the shell: chosen, agreed on, done, told."""

from __future__ import annotations

import asyncio
import json

import pytest
from tests.unit.cli.conftest import a_letter, an_entry, with_store

from leveret.cli import acts
from leveret.cli.console import Console
from leveret.retry import asking


def entries():
    async def read(store):
        from leveret.core.retry_entry import Filter

        found, _ = await store.entries(Filter(), limit=99)
        return {entry.message_id[-6:]: entry for entry in found}

    return with_store(read)


@pytest.fixture
def impatient(monkeypatch):
    """Nobody will answer, so that nobody is waited for."""
    from leveret.retry import browse

    async def ask(*arguments, **options):
        return await asking.ask(*arguments, **options, patience=0.0)

    monkeypatch.setattr(browse, "ask", ask)


@pytest.mark.parametrize("verb", ["now", "cancel", "hold", "release"])
def test_an_act_on_nothing_in_particular_is_refused(leveret, stored, verb):
    stored(an_entry("000001"))
    ended = leveret("retries", verb)
    assert ended.code == 2
    assert "say which retries: ids, or --worker" in ended.err


def test_a_selection_that_is_empty_ends_with_5(leveret, stored):
    stored(an_entry("000001"), a_letter("000002"))
    assert leveret("retries", "now", "--worker", "nobody", "--yes").code == 5
    assert leveret("dead", "replay", "--reason", "nothing", "--yes").code == 5
    assert leveret("dead", "discard", "nobody").code == 5


def test_an_act_by_filter_is_agreed_on_first_and_without_a_terminal_needs_yes(leveret, stored):
    stored(an_entry("000001"), an_entry("000002"))
    ended = leveret("retries", "hold", "--worker", "charge")
    assert ended.code == 7
    assert "hold 2 retries of shop" in ended.err
    assert "--yes" in ended.err
    assert {entry.state for entry in entries().values()} == {"waiting"}


@pytest.mark.parametrize(("answer", "left"), [("n\n", 1), ("\n", 1), ("y\n", 0)])
def test_on_a_terminal_it_is_asked_and_only_yes_goes_ahead(leveret, stored, monkeypatch, answer, left):
    import io

    stored(a_letter("000001"))
    monkeypatch.setattr(Console, "can_ask", True)
    monkeypatch.setattr("sys.stdin", io.StringIO(answer))
    ended = leveret("dead", "discard", "--worker", "charge")
    assert ended.code == 0
    assert "discard 1 letter of shop? [y/N]" in ended.err
    assert len(leveret("dead", "list", "--json").records) == left


def test_a_dry_run_says_how_many_and_changes_nothing(leveret, stored):
    stored(an_entry("000001"), a_letter("000002"))
    assert "now 1 retry of shop" in leveret("retries", "now", "--worker", "charge", "--dry-run").out
    assert leveret("dead", "discard", "000002", "--dry-run", "--json").records[0]["would_change"] == 1
    assert leveret("dead", "replay", "--worker", "charge", "--dry-run").code == 0
    assert entries()["000001"].due_in > 0
    assert len(leveret("dead", "list", "--json").records) == 1


def test_an_act_that_nobody_answers_stays_written_and_ends_with_6(leveret, stored, impatient):
    stored(an_entry("000001"))
    ended = leveret("retries", "now", "000001")
    assert ended.code == 6
    assert "no retry worker of shop answered" in ended.err
    assert "leveret run" in ended.err
    assert "--here" in ended.err
    (act,) = with_store(lambda store: store.asked("shop", ["retries.now"]))
    assert act.arguments["ids"] == ["retry-000001"]


def test_the_record_of_an_act_that_nobody_answers_says_so(leveret, stored, impatient):
    stored(an_entry("000001"))
    (record,) = leveret("retries", "now", "000001", "--json").records
    assert (record["act"], record["answered"], record["namespace"]) == ("retries.now", False, "shop")


def test_here_does_it_in_this_process_and_gives_the_lease_back(leveret, stored):
    stored(an_entry("000001"), an_entry("000002"))
    ended = leveret("retries", "now", "000001", "--here")
    assert (ended.code, ended.out[:15]) == (0, "due now: 1 of 1")
    assert entries()["000001"].due_in <= 0
    assert entries()["000002"].due_in > 0
    leases = with_store(lambda store: store.leases("shop"))
    assert leases["shop/retry"].left <= 0


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("hold 000001", {"state": "held", "state_reason": "by hand"}),
        ("move 000001 --to shop.other", {"queue": "shop.other"}),
        ("reschedule 000001 --at 2100-01-01T00:00:00Z", {"due_at": 4102444800.0}),
    ],
)
def test_each_act_here_changes_what_it_says(leveret, stored, command, expected):
    stored(an_entry("000001"))
    assert leveret("retries", *command.split(), "--here").code == 0
    entry = entries()["000001"]
    assert {name: getattr(entry, name) for name in expected} == expected


def test_held_ones_are_released_and_rescheduled_ones_wait_as_long_as_said(leveret, stored):
    stored(an_entry("000001"))
    leveret("retries", "hold", "000001", "--here")
    leveret("retries", "release", "000001", "--here")
    leveret("retries", "reschedule", "000001", "--after", "5000", "--here")
    entry = entries()["000001"]
    assert entry.state == "waiting"
    assert 4900 < entry.due_in <= 5000


def test_a_cancelled_retry_lies_among_the_dead_letters(leveret, stored):
    stored(an_entry("000001"))
    assert leveret("retries", "cancel", "--worker", "charge", "--yes", "--here").code == 0
    assert entries() == {}
    (letter,) = leveret("dead", "list", "--json").records
    assert (letter["reason"], letter["message_id"]) == ("cancelled", "message-000001")


def test_where_another_process_holds_the_lease_here_leaves_it_to_that_one(leveret, stored, impatient):
    stored(an_entry("000001"))
    with_store(lambda store: store.lease("shop/retry").acquire_or_renew("web-1/4711/a41f09", 0.0, 30.0))
    ended = leveret("retries", "now", "000001", "--here")
    assert ended.code == 6
    assert "web-1/4711 holds the lease, and does it" in ended.err
    assert "--here" not in ended.err
    assert entries()["000001"].due_in > 0


def test_a_replay_here_needs_a_broker_that_is_not_inside_another_process(leveret, stored):
    stored(a_letter("000001"))
    ended = leveret("dead", "replay", "000001", "--here", "--broker", "memory://")
    assert ended.code == 2
    assert "memory:// (--broker) lives inside one process" in ended.err
    assert leveret("dead", "replay", "000001", "--here").code == 2


@pytest.mark.parametrize(
    "command",
    [
        "retries reschedule 000001",
        "retries reschedule 000001 --at 18:00 --after 3",
        "retries reschedule 000001 --after -3",
        "retries reschedule 000001 --after nan",
        "retries reschedule 000001 --at someday",
        "retries move 000001",
        "retries now --since yesterday --yes",
        "dead replay 000002 --rate 0",
        "dead replay 000002 --rate nan",
        "dead replay --worker charge --rpc --yes",
        "dead edit 000002 {",
        "dead import nothing.jsonl",
        "dead export nothing/there.jsonl",
    ],
)
def test_a_wrong_option_is_refused_before_anything_is_written(leveret, stored, command):
    stored(an_entry("000001"), a_letter("000002"))
    ended = leveret(*command.split())
    assert ended.code == 2
    assert "Traceback" not in ended.err
    assert (
        with_store(lambda store: store.asked("shop", ["retries.reschedule", "retries.move", "dead.replay"]))
        == []
    )


def test_letters_are_discarded_listed_and_restored(leveret, stored):
    stored(a_letter("000001"), a_letter("000002"))
    assert leveret("dead", "discard", "000001").out == "discarded 1 of 1\n"
    assert [each["id"] for each in leveret("dead", "list", "--json").records] == ["letter-000002"]
    listed = leveret("dead", "list", "--state", "discarded").out
    assert listed.endswith("1 of 1 discarded.   Back: leveret dead restore 000001\n")
    replayed = leveret("dead", "replay", "000001")
    assert replayed.code == 5
    assert "It was discarded:  leveret dead restore 000001" in replayed.err
    assert leveret("dead", "restore", "--worker", "charge", "--yes").out == "restored 1 of 1\n"


def test_a_letter_gets_another_payload_and_its_old_one_stays(leveret, stored):
    stored(a_letter("000001"))
    assert leveret("dead", "edit", "000001", '{"id": 1}').code == 0
    (edited,) = leveret("dead", "show", "000001", "--json").records
    assert json.loads(edited["body"]) == {"id": 1}
    assert len(leveret("dead", "list", "--state", "discarded", "--json").records) == 1


def test_exported_letters_come_back_byte_for_byte_in_another_store(leveret, stored, folder):
    stored(a_letter("000001", body=b"\xff\x00"), a_letter("000002"))
    assert leveret("dead", "export", "letters.jsonl").out == "2 letters written to letters.jsonl\n"
    (folder / "leveret.db").rename(folder / "old.db")
    stored(a_letter("000003"))
    assert leveret("dead", "import", "letters.jsonl").out.startswith("2 letters new in ")
    assert leveret("dead", "import", "letters.jsonl").out.startswith("0 letters new in ")
    assert leveret("dead", "show", "000001", "--json").records[0]["body_b64"] == "/wA="


def test_of_several_namespaces_one_has_to_be_named_unless_an_id_does(leveret, stored):
    stored(a_letter("000001"), a_letter("000002", namespace="depot"))
    ended = leveret("dead", "discard", "--worker", "charge", "--yes")
    assert ended.code == 2
    assert "lie in several namespaces: depot, shop. Name one: --namespace depot" in ended.err
    assert leveret("dead", "export", "letters.jsonl").code == 2
    assert leveret("dead", "discard", "000002").code == 0
    assert leveret("dead", "discard", "--worker", "charge", "--namespace", "shop", "--yes").code == 0


def test_a_replay_says_where_to_and_how_long_before_it_is_agreed_on(leveret, stored):
    stored(*(a_letter(f"{number:06}") for number in range(300)))
    ended = leveret("dead", "replay", "--reason", "cannot", "--rate", "50")
    assert ended.code == 7
    assert "replay 300 letters to shop.charge at 50/s, about 6 s" in ended.err


def test_an_act_that_is_done_in_part_ends_with_6_and_says_why(capsys):
    from leveret.cli.options import Common
    from leveret.retry.asking import ActReport

    class Look:
        console = Console(Common())

    chosen = acts.Chosen(namespace="shop", ids=(), words={}, count=2, places=())
    for report, code in (
        (ActReport(act_id="1", answered=True, finished=True, by="web-1/4711/a", asked=2, done=2), 0),
        (
            ActReport(
                act_id="1", answered=True, finished=True, by="a", asked=2, done=1, notes=("1 too late",)
            ),
            6,
        ),
        (ActReport(act_id="1", answered=True, finished=False, by="a", asked=2, done=2), 6),
        (ActReport(act_id="1", answered=True, finished=True, by="a", notes=("could not be done",)), 6),
    ):
        assert acts._tell(Look(), chosen, report, verb="retries.now", lease="retry", alone=False) == code
    told = capsys.readouterr()
    assert "due now: 2 of 2, by web-1/4711" in told.out
    assert "1 too late" in told.err


def test_acts_are_obeyed_here_by_whoever_holds_the_keeper_lease_too():
    """With an open broker, a replay is published by the process that asked for it."""
    from leveret.core.topology import Queue, Topology
    from leveret.dead_letters.browse import DeadLetters
    from leveret.runtime.here import acting_here, parts_here
    from leveret.runtime.world import system_world
    from leveret.stores.memory import MemoryData, MemoryStore
    from leveret.transports.memory import MemoryBroker, MemoryTransport

    async def work():
        world, broker = system_world(), MemoryBroker()
        store = MemoryStore(clock=world.clock, data=MemoryData())
        await store.open()
        await store.keep([a_letter("000001")])
        transport = MemoryTransport(broker, world=world)
        await transport.open()
        await transport.declare(Topology(queues=(Queue("shop.charge"),)))
        parts = parts_here(store, world, "shop", transport=transport)
        async with acting_here(parts, lease="keeper", ttl=30.0) as (nudge, other):
            assert other is None
            report = await DeadLetters(store, world, "shop", nudge=nudge).replay("letter-000001")
        delivery = await transport.get("shop.charge")
        await transport.close()
        return report, delivery

    report, delivery = asyncio.run(work())
    assert (report.finished, report.done) == (True, 1)
    assert delivery is not None
    assert delivery.body == b'{"id": 0}'
