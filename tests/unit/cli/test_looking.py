"""What the reading commands show, and what they leave as it is."""

from __future__ import annotations

import sqlite3

import pytest
from tests.unit.cli.conftest import a_letter, an_entry, with_store


@pytest.mark.parametrize(
    "command",
    [
        "status",
        "retries list",
        "dead list",
        "dead groups",
        "dead show 123456",
        "store check",
        "store migrate",
    ],
)
def test_a_command_that_reads_never_creates_a_store(leveret, folder, command):
    ended = leveret(*command.split())
    assert ended.code == 4
    assert ended.err.startswith("StoreError: there is no store at ")
    assert list(folder.iterdir()) == []


def test_a_store_inside_another_process_cannot_be_looked_into(leveret):
    ended = leveret("dead", "list", "--store", "memory://")
    assert ended.code == 2
    assert "lives inside one process" in ended.err


def test_every_listing_names_store_broker_and_namespace_in_its_head(leveret, stored, folder, monkeypatch):
    stored(an_entry("000001"), a_letter("000002"))
    monkeypatch.setenv("LEVERET_BROKER", "amqp://shop:secret@rabbit-1")
    for command in ("status", "retries list", "dead list", "dead groups"):
        head = leveret(*command.split()).out.splitlines()[0]
        assert f"sqlite:///{folder}/leveret.db" in head
        assert "broker amqp://shop:***@rabbit-1" in head
        assert head.endswith("all namespaces: shop")
    head = leveret("dead", "list", "--namespace", "shop").out.splitlines()[0]
    assert head.endswith("namespace shop (--namespace)")


def test_without_a_namespace_all_of_the_store_is_shown_and_with_one_only_that(leveret, stored):
    stored(an_entry("000001"), an_entry("000002", namespace="depot"))
    assert {each["namespace"] for each in leveret("retries", "list", "--json").records} == {"shop", "depot"}
    (only,) = leveret("retries", "list", "--json", "--namespace", "depot").records
    assert only["message_id"] == "message-000002"


def test_what_waits_is_listed_with_when_why_and_how_often_tried(leveret, stored):
    stored(
        an_entry("000001"),
        an_entry("000002", wait=0.0, counted=False, reason="not before 18:00", attempt=0),
    )
    lines = leveret("retries", "list").out.splitlines()
    assert lines[1].split() == ["due", "in", "worker", "message", "type", "tried", "reason"]
    assert "late" in lines[2]
    assert lines[2].endswith("charge   000002    order.placed   0 of 6   not before 18:00 (not counted)")
    assert lines[3].endswith("charge   000001    order.placed   2 of 6   the card service answered 503")
    assert lines[4] == "2 of 2 waiting, 1 overdue.   At once: leveret retries now 000002"


def test_what_died_is_listed_the_newest_first(leveret, stored):
    stored(
        a_letter("000001"), a_letter("000002", died_at=2000.0, reason="retries exhausted: 503", attempts=6)
    )
    lines = leveret("dead", "list").out.splitlines()
    assert [line.split()[-1] for line in lines[2:4]] == ["503", "cents"]
    assert lines[4] == "2 of 2 dead.   Why: leveret dead show 000002   Again: leveret dead replay 000002"


def test_a_listing_says_how_much_more_there_is(leveret, stored):
    stored(*(a_letter(f"{number:06}") for number in range(7)))
    assert "3 of 7 dead. More: --limit 7" in leveret("dead", "list", "--limit", "3").out
    assert len(leveret("dead", "list", "--limit", "600", "--json").records) == 7


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("--worker charge", "12"),
        ("--worker ship", "3"),
        ("--reason cANNOT", "12"),
        ("--type order.paid", "3"),
        ("--text zebra", "2"),
        ("--attempts 4", "3"),
        ("--since 2030-01-01", "3"),
        ("--until 2030-01-01", "12"),
        ("--since 2030-01-01 --worker charge", ""),
    ],
)
def test_a_filter_leaves_out_what_does_not_fit(leveret, stored, words, found):
    stored(
        a_letter("1"),
        a_letter("2", body=b"a zebra"),
        a_letter("3", worker="ship", type="order.paid", reason="gone", attempts=4, died_at=2e9),
    )
    records = leveret("dead", "list", "--json", *words.split()).records
    assert "".join(sorted(each["id"][-1] for each in records)) == found


def test_records_have_full_ids_and_times_in_utc(leveret, stored):
    stored(an_entry("000001"), a_letter("000002"))
    (entry,) = leveret("retries", "list", "--json").records
    assert (entry["message_id"], entry["retry_id"]) == ("message-000001", "retry-000001")
    assert entry["failed_at"] == "1970-01-01T00:16:40.000+00:00"
    (letter,) = leveret("dead", "list", "--json").records
    assert (letter["id"], letter["died_at"]) == ("letter-000002", "1970-01-01T00:16:40.000+00:00")
    assert letter["first_failed_at"] is None


def test_a_message_is_shown_whole_by_any_ending_of_six(leveret, stored):
    stored(
        an_entry("000001"),
        a_letter("000002", traceback="Traceback\n  File x\nKeyError: 'url'", body=b"\xff\x00"),
    )
    shown = leveret("retries", "show", "000001").out
    assert "the card service answered 503" in shown
    assert "tenant: 42" in shown
    assert '{"id": 1}' in shown
    shown = leveret("dead", "show", "r-000002").out
    assert "no UTF-8; in hex: ff 00" in shown
    assert "KeyError: 'url'" in shown
    assert "Again: leveret dead replay r-000002" in shown


def test_the_record_of_a_message_has_its_body(leveret, stored):
    stored(an_entry("000001"), a_letter("000002", body=b"\xff\x00"))
    (entry,) = leveret("retries", "show", "000001", "--json").records
    assert (entry["body"], entry["headers"]) == ('{"id": 1}', {"tenant": "42"})
    (letter,) = leveret("dead", "show", "000002", "--json").records
    assert letter["body_b64"] == "/wA="


def test_of_a_message_that_died_twice_the_letter_that_lies_there_is_shown(leveret, stored):
    stored(
        a_letter("first-1", message_id="message-1", state="replayed"),
        a_letter("second-2", message_id="message-1", reason="once more"),
    )
    assert "once more" in leveret("dead", "show", "message-1").out


def test_an_id_that_names_nothing_says_where_the_message_is_instead(leveret, stored):
    stored(an_entry("000001"), a_letter("000002"))
    ended = leveret("retries", "show", "000002")
    assert ended.code == 5
    assert "It is among the dead letters:  leveret dead show 000002" in ended.err
    assert leveret("retries", "show", "nobody").code == 5


def test_an_ending_that_names_several_lists_them(leveret, stored):
    stored(an_entry("1-000001"), an_entry("2-000001"))
    ended = leveret("retries", "show", "000001")
    assert ended.code == 5
    assert "retry-1-000001 (of charge), retry-2-000001 (of charge)" in ended.err


def test_what_anybody_wrote_into_a_message_moves_no_cursor(leveret, stored):
    evil = "\x1b[2J\x1b]0;owned\x07"
    stored(a_letter("000001", reason=evil, type=evil, worker=evil, traceback=evil, body=evil.encode()))
    for command in (
        ["dead", "list"],
        ["dead", "show", "000001"],
        ["dead", "groups"],
        ["dead", "list", "--json"],
    ):
        out = leveret(*command).out
        assert "owned" in out
        assert "\x1b" not in out
        assert "\x07" not in out


def test_letters_that_died_of_one_thing_are_one_group(leveret, stored):
    stored(
        *(a_letter(str(number), reason=f"order {number} has no url") for number in range(3)), a_letter("x")
    )
    groups = leveret("dead", "groups", "--json").records
    assert [each["count"] for each in groups] == [3, 1]
    assert leveret("dead", "groups").out.splitlines()[-1] == "4 dead letters in 2 groups."


def test_status_is_well_while_nothing_is_late(leveret, stored):
    stored(an_entry("000001"), a_letter("000002"))
    ended = leveret("status", "--json")
    assert ended.code == 0
    (shop,) = ended.records
    assert (shop["waiting"], shop["overdue"], shop["dead"], shop["faults"]) == (1, 0, 1, [])
    assert shop["retry_worker"] is None


def test_status_ends_with_1_where_retries_are_overdue_and_says_what_to_do(leveret, stored):
    stored(an_entry("000001", wait=None, due_at=1000.0))
    ended = leveret("status")
    assert ended.code == 1
    assert "no retry worker, and 1 retry of shop overdue" in ended.out
    assert "leveret retry-worker" in ended.out


def test_status_names_the_holder_under_whom_retries_are_late(leveret, stored):
    stored(an_entry("000001", wait=None, due_at=1000.0))
    with_store(lambda store: store.lease("shop/retry").acquire_or_renew("web-1/4711/a41f09", 0.0, 30.0))
    ended = leveret("status")
    assert ended.code == 1
    assert "though web-1/4711 holds the lease" in ended.out


def test_a_whole_store_is_said_to_be_so(leveret, stored):
    stored(an_entry("000001"), a_letter("000002"))
    ended = leveret("store", "check")
    assert ended.code == 0
    assert ended.out.endswith("up to date; 1 waiting, 1 dead, integrity ok\n")
    (record,) = leveret("store", "migrate", "--json").records
    assert record["schema"] == record["newest_schema"]


def test_another_programs_file_is_no_store(leveret, folder):
    with sqlite3.connect(folder / "other.db") as other:
        other.execute("CREATE TABLE customer (id)")
    ended = leveret("store", "check", "--store", "sqlite:///other.db")
    assert ended.code == 4
    assert "another program" in ended.err


def test_quiet_leaves_the_rows_alone(leveret, stored):
    stored(a_letter("000001"))
    assert leveret("dead", "list", "--quiet").out.count("\n") == 2


def test_colours_are_for_terminals(leveret, stored, monkeypatch):
    stored(a_letter("000001"))
    assert "\x1b" not in leveret("dead", "list").out
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b" in leveret("dead", "list").out
    assert "\x1b[3" not in leveret("dead", "list", "--no-color").out
