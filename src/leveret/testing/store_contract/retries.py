"""The part of the suite on writing, reading, listing and removing what waits."""

# ruff: noqa: D102, S101
# The name of a test is its sentence, and its asserts are what it is made of.

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from leveret.core.errors import NotFound, StoreRefused
from leveret.core.properties import Properties
from leveret.core.retry_entry import Filter
from leveret.testing.store_contract.base import ContractBase
from leveret.testing.store_contract.rows import AWKWARD, BODIES, an_entry, keys_due, stored

if TYPE_CHECKING:
    from leveret.ports import Store
    from leveret.testing.fake_clock import FakeClock
    from leveret.testing.store_contract.base import Reopen


class RetryContract(ContractBase):
    """Writing, reading, listing and removing what waits."""

    # ── Put ───────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_an_entry_comes_back_as_it_was_put(self, store: Store, clock: FakeClock) -> None:
        entry = an_entry(kind="delayed", through_exchange=True, counted=False, state_reason="")
        await store.put([entry])
        due_at = clock.now() + 10.0
        expected = replace(entry, wait=None, due_at=due_at, due_in=10.0, size=13)
        assert await stored(store, entry.key) == expected

    async def test_an_entry_without_message_id_has_none_when_it_comes_back(self, store: Store) -> None:
        await store.put([an_entry(message_id=None)])
        found = await stored(store, "shop.charge/one")
        assert found is not None
        assert found.message_id is None

    async def test_an_entry_that_gives_its_due_time_keeps_it(self, store: Store, clock: FakeClock) -> None:
        await store.put([an_entry(wait=None, due_at=clock.now() + 90.125)])
        found = await stored(store, "shop.charge/one")
        assert found is not None
        assert found.due_at == pytest.approx(clock.now() + 90.125, abs=self.rounding)

    async def test_put_answers_for_each_entry_in_order(self, store: Store) -> None:
        await store.put([an_entry("b", wait=5.0)])
        placed = await store.put([an_entry("a", wait=1.0), an_entry("b", wait=2.0), an_entry("c", wait=3.0)])
        assert [each.written for each in placed] == [True, False, True]
        assert [each.due_in for each in placed] == pytest.approx([1.0, 5.0, 3.0], abs=self.rounding)

    async def test_a_higher_failure_replaces_all_of_the_entry(self, store: Store, clock: FakeClock) -> None:
        await store.put([an_entry()])
        later = an_entry(
            failure=4,
            attempt=3,
            reason="refused",
            body=b"other",
            properties=b"p",
            wait=60.0,
            queue="shop.other",
        )
        (placed,) = await store.put([later])
        assert placed.written
        assert await stored(store, later.key) is None
        assert await stored(store, later.key, failure=4) == replace(
            later, wait=None, due_at=clock.now() + 60.0, due_in=60.0, size=5
        )
        assert await store.count_entries(Filter()) == 1

    @pytest.mark.parametrize("failure", [3, 2, 0])
    async def test_an_equal_or_lower_failure_changes_nothing(self, store: Store, failure: int) -> None:
        await store.put([an_entry()])
        before = await stored(store, "shop.charge/one")
        (placed,) = await store.put([an_entry(failure=failure, body=b"other", wait=60.0)])
        assert not placed.written
        assert placed.due_in == pytest.approx(10.0, abs=self.rounding)
        assert await stored(store, "shop.charge/one") == before

    @pytest.mark.parametrize("failures", [(4, 7), (7, 4)])
    async def test_of_one_key_twice_in_a_batch_the_higher_failure_stays(
        self, store: Store, failures: tuple[int, int]
    ) -> None:
        await store.put([an_entry(failure=failure, body=str(failure).encode()) for failure in failures])
        found = await stored(store, "shop.charge/one", failure=7)
        assert found is not None
        assert found.body == b"7"
        assert await store.count_entries(Filter()) == 1

    async def test_one_key_in_two_namespaces_is_two_entries(self, store: Store) -> None:
        await store.put([an_entry(), an_entry(namespace="depot", body=b"other")])
        assert await store.count_entries(Filter()) == 2
        found = await stored(store, "shop.charge/one", "depot")
        assert found is not None
        assert found.body == b"other"

    async def test_a_thousand_entries_without_message_ids_are_a_thousand_entries(self, store: Store) -> None:
        entries = [an_entry(f"{number:04}", message_id=None) for number in range(1000)]
        assert all(each.written for each in await store.put(entries))
        assert await store.count_entries(Filter(namespace="shop")) == 1000
        assert len(await keys_due(store, within=10.0)) == 1000

    async def test_nothing_put_is_nothing_written(self, store: Store) -> None:
        assert await store.put([]) == []
        assert await store.count_entries(Filter()) == 0

    async def test_a_batch_with_an_entry_from_a_listing_is_refused_whole(self, store: Store) -> None:
        with pytest.raises(StoreRefused, match="without its body"):
            await store.put([an_entry("good"), an_entry("bad", body=None)])
        assert await store.count_entries(Filter()) == 0

    @pytest.mark.parametrize("changes", [{"wait": float("nan")}, {"wait": None, "due_at": float("inf")}])
    async def test_an_entry_that_is_due_at_no_time_is_refused(
        self, store: Store, changes: dict[str, float | None]
    ) -> None:
        with pytest.raises(StoreRefused, match="finite"):
            await store.put([an_entry("good"), an_entry("bad", **changes)])
        assert await store.count_entries(Filter()) == 0

    # ── Content ───────────────────────────────────────────────────────────────────────────────────────────────────────

    @pytest.mark.parametrize("body", BODIES)
    async def test_a_body_comes_back_byte_for_byte(self, store: Store, reopen: Reopen, body: bytes) -> None:
        await store.put([an_entry(body=body, properties=body[:512])])
        store = await reopen(store)
        found = await stored(store, "shop.charge/one")
        assert found is not None
        # Compared before the assert, which would print megabytes.
        same = found.body == body and found.properties == body[:512]
        assert same
        assert found.size == len(body)

    @pytest.mark.parametrize("header", ["a.b", "$x", ""])
    async def test_headers_that_mean_something_to_a_database_come_back_as_they_were(
        self, store: Store, header: str
    ) -> None:
        properties = Properties.build(headers={header: 1, "within": {header: [{header: "a"}]}})
        await store.put([an_entry(properties=properties.raw)])
        found = await stored(store, "shop.charge/one")
        assert found is not None
        assert found.properties == properties.raw
        assert Properties(found.properties).headers == properties.headers

    @pytest.mark.parametrize("name", ["a.b", "$x", "", "a/b", "a\\b", "\\0"])
    async def test_names_that_mean_something_to_a_database_are_only_names(
        self, store: Store, name: str
    ) -> None:
        named = dict.fromkeys(("key", "queue", "message_id", "worker"), name)
        await store.put([an_entry(**named)])
        await store.put([an_entry(**named, failure=4)])
        ((entry,), _) = await store.entries(Filter(worker=name), limit=9)
        assert (entry.key, entry.queue, entry.message_id, entry.failure) == (name, name, name, 4)
        assert await store.remove("shop", [(name, 4)]) == 1

    async def test_texts_that_databases_choke_on_are_kept_in_a_form_that_can_be_shown(
        self, store: Store
    ) -> None:
        texts = ("worker", "type", "reason", "error", "traceback", "host")
        await store.put([an_entry(**dict.fromkeys(texts, AWKWARD))])
        found = await stored(store, "shop.charge/one")
        assert found is not None
        assert [getattr(found, name) for name in texts] == ["a\\x00b\\ud800c"] * len(texts)
        assert found.body == an_entry().body

    async def test_names_that_databases_choke_on_come_back_as_they_were(self, store: Store) -> None:
        names = ("key", "queue", "exchange", "routing_key", "message_id", "retry_id")
        await store.put([an_entry(**dict.fromkeys(names, AWKWARD))])
        (key,) = await keys_due(store, within=10.0)
        found = await stored(store, key)
        assert found is not None
        assert [getattr(found, name) for name in names] == [AWKWARD] * len(names)
        assert await store.entry(None, AWKWARD) is not None
        assert await store.remove("shop", [(AWKWARD, 3)]) == 1

    async def test_all_that_was_put_is_there_after_a_restart(self, store: Store, reopen: Reopen) -> None:
        await store.put([an_entry(str(number)) for number in range(20)])
        before = (await store.entries(Filter(), limit=100))[0]
        store = await reopen(store)
        assert (await store.entries(Filter(), limit=100))[0] == before
        assert len(before) == 20

    # ── Take and remove ───────────────────────────────────────────────────────────────────────────────────────────────

    async def test_take_gives_only_rows_that_still_carry_that_failure(self, store: Store) -> None:
        await store.put([an_entry("a"), an_entry("b"), an_entry("c")])
        await store.put([an_entry("b", failure=4)])
        wanted = [(f"shop.charge/{name}", 3) for name in "cbad"]
        assert {entry.key for entry in await store.take("shop", wanted)} == {"shop.charge/a", "shop.charge/c"}

    async def test_take_leaves_rows_where_they_are(self, store: Store) -> None:
        await store.put([an_entry()])
        assert await stored(store, "shop.charge/one") == await stored(store, "shop.charge/one")
        assert await store.count_entries(Filter()) == 1

    async def test_take_gives_nothing_of_another_namespace(self, store: Store) -> None:
        await store.put([an_entry(namespace="depot")])
        assert await store.take("shop", [("shop.charge/one", 3)]) == []

    async def test_remove_deletes_only_rows_that_still_carry_that_failure(self, store: Store) -> None:
        await store.put([an_entry("a"), an_entry("b"), an_entry("c", namespace="depot")])
        await store.put([an_entry("b", failure=4)])
        assert await store.remove("shop", [(f"shop.charge/{name}", 3) for name in "abcd"]) == 1
        assert {entry.key for entry in (await store.entries(Filter(), limit=9))[0]} == {
            "shop.charge/b",
            "shop.charge/c",
        }

    async def test_nothing_to_remove_is_nothing_removed(self, store: Store) -> None:
        await store.put([an_entry()])
        assert await store.remove("shop", []) == 0
        assert await store.remove("shop", [("shop.charge/other", 3)]) == 0

    async def test_a_key_that_was_removed_can_be_put_again(self, store: Store) -> None:
        await store.put([an_entry()])
        await store.remove("shop", [("shop.charge/one", 3)])
        assert (await store.put([an_entry(failure=1)]))[0].written

    # ── Listings ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_a_listing_has_everything_but_bodies(self, store: Store) -> None:
        await store.put([an_entry()])
        (listed,), more = await store.entries(Filter(), limit=10)
        whole = await stored(store, "shop.charge/one")
        assert whole is not None
        assert listed == replace(whole, body=None)
        assert more is None

    async def test_a_listing_goes_by_the_next_due_and_held_ones_come_last(self, store: Store) -> None:
        await store.put([an_entry(name, wait=wait) for name, wait in (("c", 30.0), ("a", 1.0), ("b", 20.0))])
        await store.put([an_entry("d", namespace="depot", wait=25.0)])
        await store.hold([("shop", "shop.charge/a")], held=True, reason="ask Ann first")
        listed = (await store.entries(Filter(), limit=10))[0]
        assert [entry.key[-1] for entry in listed] == ["b", "d", "c", "a"]
        assert (listed[-1].state, listed[-1].state_reason) == ("held", "ask Ann first")
        assert listed[-1].due_in == pytest.approx(1.0, abs=self.rounding)

    async def test_pages_together_are_the_listing(self, store: Store) -> None:
        # Many at one time, and in two namespaces: what a cursor by time alone would skip.
        await store.put([an_entry(f"{number:02}", wait=float(number % 3)) for number in range(20)])
        await store.put([an_entry(f"{number:02}", namespace="depot", wait=1.0) for number in range(10)])
        await store.hold([("shop", f"shop.charge/{number:02}") for number in range(5)], held=True)
        seen: list[tuple[str, str]] = []
        after = None
        pages = 0
        while True:
            page, after = await store.entries(Filter(), limit=4, after=after)
            assert len(page) <= 4
            seen += [(entry.namespace, entry.key) for entry in page]
            pages += 1
            if after is None:
                break
        whole = [(entry.namespace, entry.key) for entry in (await store.entries(Filter(), limit=100))[0]]
        assert seen == whole
        assert len(set(seen)) == 30
        assert pages == 8

    async def test_paging_shows_nothing_twice_while_rows_come_and_go(self, store: Store) -> None:
        await store.put([an_entry(f"{number:02}", wait=float(number)) for number in range(10)])
        first, after = await store.entries(Filter(), limit=5)
        await store.remove("shop", [("shop.charge/02", 3), ("shop.charge/07", 3)])
        await store.put([an_entry("new early", wait=0.5), an_entry("new late", wait=8.5)])
        second, _ = await store.entries(Filter(), limit=10, after=after)
        assert [entry.key for entry in first] == [f"shop.charge/{number:02}" for number in range(5)]
        assert [entry.key.removeprefix("shop.charge/") for entry in second] == [
            "05",
            "06",
            "08",
            "new late",
            "09",
        ]

    async def test_a_cursor_of_somebody_elses_making_is_refused(self, store: Store) -> None:
        with pytest.raises(StoreRefused, match="not a cursor"):
            await store.entries(Filter(), limit=5, after="page two")

    @pytest.mark.parametrize(
        ("wanted", "names"),
        [
            (Filter(), "abc"),
            (Filter(namespace="shop"), "ab"),
            (Filter(namespace="nowhere"), ""),
            (Filter(worker="ship"), "b"),
            (Filter(worker="shi"), ""),
            (Filter(reason="STRASSE"), "b"),
            (Filter(reason="30 s"), "ac"),
            (Filter(type="order.paid"), "c"),
            (Filter(text="Grüße"), "a"),
            (Filter(text="%"), ""),
            (Filter(since=200.0), "bc"),
            (Filter(until=200.0), "ab"),
            (Filter(since=150.0, until=250.0), "b"),
            (Filter(attempts=1), "a"),
            (Filter(ids=["retry-id-a", "message-c"]), "ac"),
            (Filter(ids=["-id-bb", "retry-id-a"]), "ab"),
            (Filter(ids=["id-bb"]), ""),
            (Filter(ids=["other-id-bb"]), ""),
            (Filter(ids=["x"]), "c"),
            (Filter(namespace="shop", worker="charge", reason="30", attempts=1, since=0.0), "a"),
        ],
    )
    async def test_a_filter_takes_what_holds_for_all_that_it_names(
        self, store: Store, wanted: Filter, names: str
    ) -> None:
        await store.put(
            [
                an_entry("a", attempt=1, failed_at=100.0, body='"Grüße"'.encode()),
                an_entry("b", retry_id="retry-id-bb", worker="ship", reason="Keine Straße", failed_at=200.0),
                an_entry(
                    "c", retry_id="x", namespace="depot", type="order.paid", failed_at=300.0, body=b"\xff\x00"
                ),
            ]
        )
        listed, _ = await store.entries(wanted, limit=10)
        assert sorted(entry.key[-1] for entry in listed) == list(names)
        assert await store.count_entries(wanted) == len(names)

    async def test_a_page_of_a_filter_is_full_whatever_lies_between(self, store: Store) -> None:
        await store.put(
            [
                an_entry(f"{number:03}", worker="a" if number % 10 else "b", wait=float(number))
                for number in range(100)
            ]
        )
        page, after = await store.entries(Filter(worker="b"), limit=6)
        rest, end = await store.entries(Filter(worker="b"), limit=6, after=after)
        assert [entry.key[-3:] for entry in page + rest] == [f"{number:03}" for number in range(0, 100, 10)]
        assert end is None

    async def test_counting_the_overdue_leaves_out_what_is_not_due_and_what_is_held(
        self, store: Store, clock: FakeClock
    ) -> None:
        await store.put(
            [an_entry(name, wait=wait) for name, wait in (("a", 1.0), ("b", 2.0), ("c", 9.0), ("d", 2.0))]
        )
        await store.hold([("shop", "shop.charge/b")], held=True)
        await clock.advance(3.0)
        assert await store.count_entries(Filter(), overdue=True) == 2
        assert await store.count_entries(Filter(worker="other"), overdue=True) == 0
        assert await store.count_entries(Filter()) == 4

    # ── One entry ─────────────────────────────────────────────────────────────────────────────────────────────────────

    @pytest.mark.parametrize("id", ["retry-id-one", "message-one", "id-one", "ge-one"])
    async def test_an_entry_is_found_by_id_or_ending_with_its_body(self, store: Store, id: str) -> None:
        await store.put([an_entry("one"), an_entry("two")])
        assert await store.entry("shop", id) == await stored(store, "shop.charge/one")
        assert await store.entry(None, id) is not None
        assert await store.entry("depot", id) is None

    @pytest.mark.parametrize("id", ["d-one", "retry-id", "nothing", "%d-one", "retry_id_one", "other-id-one"])
    async def test_what_is_no_id_and_no_ending_of_six_characters_finds_nothing(
        self, store: Store, id: str
    ) -> None:
        await store.put([an_entry("one")])
        assert await store.entry(None, id) is None

    async def test_a_short_id_is_found_in_full(self, store: Store) -> None:
        await store.put([an_entry("one", retry_id="7"), an_entry("two", retry_id="17")])
        found = await store.entry(None, "7")
        assert found is not None
        assert found.key == "shop.charge/one"

    async def test_a_held_entry_is_found(self, store: Store) -> None:
        await store.put([an_entry()])
        await store.hold([("shop", "shop.charge/one")], held=True)
        assert await store.entry(None, "retry-id-one") is not None

    async def test_an_ending_of_several_is_refused_with_all_of_them(self, store: Store) -> None:
        await store.put([an_entry("one-abcdef"), an_entry("two-abcdef")])
        with pytest.raises(NotFound, match=r"retry-id-one-abcdef.*retry-id-two-abcdef"):
            await store.entry(None, "abcdef")

    async def test_a_full_id_is_found_even_where_it_ends_another_one(self, store: Store) -> None:
        await store.put([an_entry("one", retry_id="abcdef"), an_entry("two", retry_id="12-abcdef")])
        found = await store.entry(None, "abcdef")
        assert found is not None
        assert found.key == "shop.charge/one"

    async def test_an_id_that_is_no_text_for_databases_is_named_by_an_ending_that_is(
        self, store: Store
    ) -> None:
        for number, id in enumerate(["\0-abcdef", "ü\ud800-abcdeg", "-\0-h", "-abc\ud800éf"]):
            await store.put([an_entry(str(number), retry_id=id, message_id=None)])
        for ending, key in (
            ("abcdef", "0"),
            ("-abcdeg", "1"),
            ("bc\ud800éf", None),
            ("abc\ud800éf", "3"),
            ("\0-h", None),
        ):
            found = await store.entry("shop", ending)
            assert (None if found is None else found.key) == (None if key is None else f"shop.charge/{key}")

    async def test_a_thousand_are_named_at_once(self, store: Store) -> None:
        await store.put([an_entry(f"{number:04}") for number in range(0, 1200, 100)])
        wanted = Filter(namespace="shop", ids=[f"try-id-{number:04}" for number in range(1000)])
        assert await store.count_entries(wanted) == 10

    async def test_a_message_that_two_workers_failed_is_named_by_its_retry_ids(self, store: Store) -> None:
        await store.put([an_entry("charge", message_id="m-000001"), an_entry("ship", message_id="m-000001")])
        with pytest.raises(NotFound, match="2 retries"):
            await store.entry(None, "m-000001")
