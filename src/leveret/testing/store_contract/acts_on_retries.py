"""The part of the suite on what people do to what waits: reschedule, hold, move, bury."""

# ruff: noqa: D102, S101
# The name of a test is its sentence, and its asserts are what it is made of.

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from leveret.core.errors import StoreRefused
from leveret.core.retry_entry import Filter
from leveret.testing.store_contract.base import ContractBase
from leveret.testing.store_contract.rows import a_grant, a_letter, an_entry, keys_due, stored

if TYPE_CHECKING:
    from leveret.ports import Store
    from leveret.testing.fake_clock import FakeClock

KEY = "shop.charge/one"
ROW = ("shop", KEY)


class ActsOnRetriesContract(ContractBase):
    """Reschedule, hold, move, bury."""

    async def test_rows_are_rescheduled_by_a_wait_and_by_a_time(self, store: Store, clock: FakeClock) -> None:
        await store.put([an_entry("a"), an_entry("b"), an_entry("c", namespace="depot")])
        assert await store.reschedule([("shop", "shop.charge/a"), ("depot", "shop.charge/c")], wait=0.0) == 2
        assert await store.reschedule([("shop", "shop.charge/b")], due_at=clock.now() + 99.0) == 1
        assert await store.reschedule([("shop", "shop.charge/none")], wait=1.0) == 0
        assert await store.reschedule([], wait=1.0) == 0
        assert await keys_due(store) == ["shop.charge/a"]
        found = await stored(store, "shop.charge/b")
        assert found is not None
        assert found.due_in == pytest.approx(99.0, abs=self.rounding)

    async def test_rescheduling_unblocks(self, store: Store) -> None:
        await store.put([an_entry(wait=0.0)])
        await store.postpone("shop", [(KEY, 3)], seconds=300.0, blocked="gone")
        await store.reschedule([ROW], wait=0.0)
        assert await keys_due(store) == [KEY]
        found = await stored(store, KEY)
        assert found is not None
        assert (found.state, found.state_reason) == ("waiting", "")

    async def test_a_held_row_that_is_rescheduled_stays_held_and_goes_by_its_new_time_once_released(
        self, store: Store
    ) -> None:
        await store.put([an_entry()])
        await store.hold([ROW], held=True)
        assert await store.reschedule([ROW], wait=0.0) == 1
        assert await keys_due(store, within=99.0) == []
        await store.hold([ROW], held=False)
        assert await keys_due(store) == [KEY]

    @pytest.mark.parametrize("when", [{}, {"due_at": 1.0, "wait": 1.0}, {"wait": float("nan")}])
    async def test_rescheduling_to_no_time_is_refused(self, store: Store, when: dict[str, float]) -> None:
        await store.put([an_entry()])
        before = await stored(store, KEY)
        with pytest.raises(ValueError, match="wait="):
            await store.reschedule([ROW], **when)
        assert await stored(store, KEY) == before

    async def test_a_held_row_is_never_due_and_never_taken(self, store: Store, clock: FakeClock) -> None:
        await store.put([an_entry(), an_entry("free", wait=99.0)])
        assert await store.hold([ROW, ("shop", "shop.charge/none")], held=True, reason="ask Ann first") == 1
        await clock.advance(20.0)
        assert await keys_due(store, within=float("inf")) == ["shop.charge/free"]
        assert await store.next_due("shop") == pytest.approx(79.0, abs=self.rounding)
        assert await store.take("shop", [(KEY, 3)]) == []

    async def test_held_rows_of_one_retry_id_are_each_taken_by_whoever_asks_for_held_ones(
        self, store: Store, clock: FakeClock
    ) -> None:
        one, other = an_entry("a", retry_id="same"), an_entry("b", retry_id="same", failure=4, body=b"b")
        await store.put([one, other, an_entry("free")])
        await store.hold([("shop", one.key), ("shop", other.key)], held=True, reason="ask Ann first")
        rows = [(one.key, 3), (other.key, 4), ("shop.charge/free", 3)]
        grant = await a_grant(store, clock)
        for proof in (None, grant):
            taken = await store.take("shop", rows, grant=proof, held=True)
            assert [(each.key, each.state, each.body) for each in taken] == [
                (one.key, "held", one.body),
                (other.key, "held", b"b"),
                ("shop.charge/free", "waiting", one.body),
            ]
        assert await store.take("shop", [(one.key, 4), (other.key, 3)], held=True) == []
        assert await keys_due(store, within=99.0) == ["shop.charge/free"]

    async def test_where_all_is_held_nothing_is_next(self, store: Store) -> None:
        await store.put([an_entry()])
        await store.hold([ROW], held=True)
        assert await store.next_due("shop") is None

    async def test_a_released_row_is_due_when_it_was(self, store: Store, clock: FakeClock) -> None:
        await store.put([an_entry()])
        await store.hold([ROW], held=True, reason="ask Ann first")
        await clock.advance(20.0)
        assert await store.hold([ROW], held=False) == 1
        found = await stored(store, KEY)
        assert found is not None
        assert (found.state, found.state_reason) == ("waiting", "")
        assert found.due_in == pytest.approx(-10.0, abs=self.rounding)
        assert await keys_due(store) == [KEY]

    async def test_holding_what_is_held_and_releasing_what_is_not_changes_nothing(self, store: Store) -> None:
        await store.put([an_entry()])
        assert await store.hold([ROW], held=False) == 0
        await store.hold([ROW], held=True, reason="first")
        assert await store.hold([ROW], held=True, reason="second") == 0
        ((listed,), _) = await store.entries(Filter(), limit=9)
        assert listed.state_reason == "first"

    async def test_a_held_row_stays_held_when_its_message_fails_anew(self, store: Store) -> None:
        await store.put([an_entry()])
        await store.hold([ROW], held=True, reason="ask Ann first")
        (placed,) = await store.put([an_entry(failure=4, wait=0.0, body=b"new")])
        assert placed.written
        assert await keys_due(store, within=99.0) == []
        ((listed,), _) = await store.entries(Filter(), limit=9)
        assert (listed.state, listed.state_reason, listed.failure) == ("held", "ask Ann first", 4)
        await store.hold([ROW], held=False)
        assert await keys_due(store) == [KEY]

    async def test_postponing_leaves_held_rows_alone(self, store: Store) -> None:
        await store.put([an_entry()])
        await store.hold([ROW], held=True)
        await store.postpone("shop", [(KEY, 3)], seconds=0.0, blocked="gone")
        assert await keys_due(store, within=99.0) == []

    async def test_an_entry_can_be_put_as_held(self, store: Store) -> None:
        await store.put([an_entry(state="held", state_reason="imported so", wait=0.0)])
        assert await keys_due(store, within=99.0) == []
        await store.hold([ROW], held=False)
        assert await keys_due(store) == [KEY]

    async def test_a_row_moves_to_another_queue_under_its_key(self, store: Store) -> None:
        await store.put([an_entry(through_exchange=True)])
        before = await stored(store, KEY)
        assert before is not None
        assert await store.move([ROW, ("shop", "shop.charge/none")], queue="shop.other") == 1
        assert await stored(store, KEY) == replace(before, queue="shop.other", through_exchange=False)
        ((due, _),) = await store.upcoming("shop", within=99.0, limit=9)
        assert due.queue == "shop.other"

    async def test_a_blocked_row_that_is_moved_is_tried_at_once(self, store: Store) -> None:
        await store.put([an_entry(wait=0.0)])
        await store.postpone("shop", [(KEY, 3)], seconds=300.0, blocked="gone")
        await store.move([ROW], queue="shop.other")
        assert await keys_due(store) == [KEY]
        found = await stored(store, KEY)
        assert found is not None
        assert (found.state, found.state_reason) == ("waiting", "")

    async def test_a_held_row_that_is_moved_stays_held(self, store: Store) -> None:
        await store.put([an_entry(wait=0.0)])
        await store.hold([ROW], held=True, reason="ask Ann first")
        await store.move([ROW], queue="shop.other")
        assert await keys_due(store, within=99.0) == []

    # ── Bury ──────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_a_buried_row_is_a_dead_letter_and_no_retry(self, store: Store) -> None:
        await store.put([an_entry("a"), an_entry("b"), an_entry("c", namespace="depot")])
        rows = [("shop.charge/a", 3), ("shop.charge/c", 3)]
        assert await store.bury(rows, [a_letter("a"), a_letter("c", namespace="depot")]) == [True, True]
        assert [entry.key for entry in (await store.entries(Filter(), limit=9))[0]] == ["shop.charge/b"]
        assert await store.letter("shop", "letter-id-a") == replace(a_letter("a"), size=13)
        assert await store.letter("depot", "letter-id-c") is not None

    async def test_a_row_that_has_failed_anew_or_is_gone_is_not_buried(self, store: Store) -> None:
        await store.put([an_entry("a", failure=4), an_entry("c")])
        rows = [("shop.charge/a", 3), ("shop.charge/b", 3), ("shop.charge/c", 3)]
        letters = [a_letter("a"), a_letter("b"), a_letter("c")]
        assert await store.bury(rows, letters) == [False, False, True]
        assert await store.count_letters(Filter()) == 1
        assert await store.count_entries(Filter()) == 1

    async def test_a_letter_that_is_refused_buries_nothing(self, store: Store) -> None:
        await store.put([an_entry("a"), an_entry("b")])
        with pytest.raises(StoreRefused):
            await store.bury(
                [("shop.charge/a", 3), ("shop.charge/b", 3)], [a_letter("a"), a_letter("b", body=None)]
            )
        assert await store.count_entries(Filter()) == 2
        assert await store.count_letters(Filter()) == 0
