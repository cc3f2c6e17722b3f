"""The part of the suite on what is due: order, cursors, blocked and postponed rows, and who may act on them."""

# ruff: noqa: D102, S101
# The name of a test is its sentence, and its asserts are what it is made of.

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from leveret.core.errors import LeaseLost
from leveret.core.retry_entry import Filter
from leveret.testing.store_contract.base import ContractBase
from leveret.testing.store_contract.rows import a_grant, a_letter, an_entry, keys_due, stored

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from leveret.ports import Grant, Store
    from leveret.testing.fake_clock import FakeClock

DAY = 86_400.0
KEY = "shop.charge/one"

#: Every call that a grant guards.
GUARDED: dict[str, Callable[[Store, Grant], Awaitable[Any]]] = {
    "take": lambda store, grant: store.take("shop", [(KEY, 3)], grant=grant),
    "remove": lambda store, grant: store.remove("shop", [(KEY, 3)], grant=grant),
    "remove nothing": lambda store, grant: store.remove("shop", [], grant=grant),
    "postpone": lambda store, grant: store.postpone(
        "shop", [(KEY, 3)], seconds=60.0, blocked="gone", grant=grant
    ),
    "unblock": lambda store, grant: store.unblock("shop", "shop.charge", grant=grant),
    "bury": lambda store, grant: store.bury([(KEY, 3)], [a_letter("new")], grant=grant),
    "claim": lambda store, grant: store.claim(Filter(), replay_id="r", limit=9, grant=grant),
}


class DueContract(ContractBase):
    """What is due, and who may act on it."""

    # ── Upcoming ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_the_longest_due_comes_first(self, store: Store, clock: FakeClock) -> None:
        await store.put(
            [an_entry(name, wait=wait) for name, wait in (("c", 3.0), ("a", 1.0), ("b", 2.0), ("z", 99.0))]
        )
        await clock.advance(10.0)
        found = await store.upcoming("shop", within=0.0, limit=10)
        assert [due[:2] for due, _ in found] == [(f"shop.charge/{name}", 3) for name in "abc"]
        assert [due.due_in for due, _ in found] == pytest.approx([-9.0, -8.0, -7.0], abs=self.rounding)
        assert {due.queue for due, _ in found} == {"shop.charge"}

    async def test_within_looks_ahead_so_many_seconds(self, store: Store) -> None:
        await store.put([an_entry(str(wait), wait=float(wait)) for wait in (0, 5, 10, 15)])
        assert await keys_due(store, within=0.0) == ["shop.charge/0"]
        assert await keys_due(store, within=10.5) == ["shop.charge/0", "shop.charge/5", "shop.charge/10"]

    @pytest.mark.parametrize(
        "wait", [0.0, 0.001, 1.5, 25 * DAY, 40 * DAY, 4_294_967.296, 3652.5 * DAY, 365_250 * DAY]
    )
    async def test_a_wait_is_kept_exactly_however_short_or_long(
        self, store: Store, clock: FakeClock, wait: float
    ) -> None:
        (placed,) = await store.put([an_entry(wait=wait)])
        assert placed.due_in == pytest.approx(wait, abs=self.rounding)
        assert await store.next_due("shop") == pytest.approx(wait, abs=self.rounding)
        await clock.advance(max(0.0, wait - 2 * self.rounding))
        if wait > 2 * self.rounding:
            assert await keys_due(store) == []
        await clock.advance(4 * self.rounding)
        assert await keys_due(store) == [KEY]

    async def test_cursors_lead_through_what_is_due_in_any_portion(self, store: Store) -> None:
        # Many at the same time: what a cursor by time alone would skip.
        await store.put([an_entry(f"{number:02}", wait=float(number // 5)) for number in range(23)])
        seen: list[str] = []
        after = None
        while found := await store.upcoming("shop", within=60.0, limit=4, after=after):
            seen += [due.key for due, _ in found]
            after = found[-1][1]
        assert seen == [f"shop.charge/{number:02}" for number in range(23)]

    async def test_a_cursor_is_good_after_its_row_is_gone(self, store: Store) -> None:
        await store.put([an_entry(name, wait=0.0) for name in "abcd"])
        found = await store.upcoming("shop", within=0.0, limit=2)
        await store.remove("shop", [(due.key, due.failure) for due, _ in found])
        assert await keys_due(store, after=found[-1][1]) == ["shop.charge/c", "shop.charge/d"]

    async def test_since_leaves_out_what_has_been_due_for_longer(
        self, store: Store, clock: FakeClock
    ) -> None:
        await store.put(
            [an_entry(name, wait=wait) for name, wait in (("a", 0.0), ("b", 5.0), ("c", 8.0), ("d", 30.0))]
        )
        await clock.advance(10.0)
        assert await keys_due(store, since=5.5) == ["shop.charge/b", "shop.charge/c"]
        assert await keys_due(store, since=5.5, within=60.0) == [f"shop.charge/{name}" for name in "bcd"]
        after = (await store.upcoming("shop", within=0.0, limit=1, since=5.5))[-1][1]
        assert await keys_due(store, since=5.5, after=after) == ["shop.charge/c"]

    async def test_a_row_that_is_due_just_now_is_not_left_out_by_since(self, store: Store) -> None:
        await store.put([an_entry(wait=0.0)])
        assert await keys_due(store, since=self.rounding) == [KEY]

    async def test_each_namespace_has_its_own_dues(self, store: Store) -> None:
        await store.put([an_entry("a", wait=0.0), an_entry("b", namespace="depot", wait=0.0)])
        assert await keys_due(store) == ["shop.charge/a"]
        assert await store.upcoming("nowhere", within=99.0, limit=9) == []

    async def test_the_next_due_is_negative_where_one_is_overdue_and_none_where_nothing_waits(
        self, store: Store, clock: FakeClock
    ) -> None:
        assert await store.next_due("shop") is None
        await store.put(
            [an_entry("a", wait=20.0), an_entry("b", wait=7.0), an_entry("c", namespace="depot", wait=1.0)]
        )
        assert await store.next_due("shop") == pytest.approx(7.0, abs=self.rounding)
        await clock.advance(9.5)
        assert await store.next_due("shop") == pytest.approx(-2.5, abs=self.rounding)

    # ── Postponed and blocked ─────────────────────────────────────────────────────────────────────────────────────────

    async def test_a_postponed_row_is_tried_again_when_its_time_has_come(
        self, store: Store, clock: FakeClock
    ) -> None:
        await store.put([an_entry("a", wait=0.0), an_entry("b", wait=0.0)])
        await store.postpone("shop", [("shop.charge/a", 3)], seconds=5.0)
        assert await keys_due(store) == ["shop.charge/b"]
        await clock.advance(5.0)
        assert await keys_due(store) == ["shop.charge/b", "shop.charge/a"]

    async def test_postponing_leaves_the_due_time(self, store: Store, clock: FakeClock) -> None:
        await store.put([an_entry(wait=0.0)])
        due_at = clock.now()
        await clock.advance(3.0)
        await store.postpone("shop", [(KEY, 3)], seconds=5.0, blocked="queue shop.charge is gone")
        found = await stored(store, KEY)
        assert found is not None
        assert (found.state, found.state_reason) == ("blocked", "queue shop.charge is gone")
        assert found.due_at == pytest.approx(due_at, abs=self.rounding)
        assert found.due_in == pytest.approx(-3.0, abs=self.rounding)
        assert await store.next_due("shop") == pytest.approx(5.0, abs=self.rounding)

    async def test_postponing_without_a_reason_ends_a_block(self, store: Store) -> None:
        await store.put([an_entry(wait=0.0)])
        await store.postpone("shop", [(KEY, 3)], seconds=5.0, blocked="gone")
        await store.postpone("shop", [(KEY, 3)], seconds=5.0)
        found = await stored(store, KEY)
        assert found is not None
        assert (found.state, found.state_reason) == ("waiting", "")

    async def test_only_rows_that_still_carry_that_failure_are_postponed(self, store: Store) -> None:
        await store.put([an_entry(wait=0.0)])
        await store.postpone("shop", [(KEY, 2), ("shop.charge/other", 3)], seconds=60.0, blocked="gone")
        assert await keys_due(store) == [KEY]

    async def test_a_queue_that_is_back_unblocks_its_rows_at_once_and_no_others(self, store: Store) -> None:
        await store.put([an_entry(name, wait=0.0) for name in "abc"])
        await store.put(
            [an_entry("d", queue="shop.ship", wait=0.0), an_entry("e", namespace="depot", wait=0.0)]
        )
        blocked = [(f"shop.charge/{name}", 3) for name in "abd"]
        await store.postpone("shop", blocked, seconds=300.0, blocked="gone")
        await store.postpone("depot", [("shop.charge/e", 3)], seconds=300.0, blocked="gone")
        await store.postpone("shop", [("shop.charge/c", 3)], seconds=300.0)
        assert await store.unblock("shop", "shop.charge") == 2
        assert await keys_due(store) == ["shop.charge/a", "shop.charge/b"]
        listed = {entry.key[-1]: entry.state for entry in (await store.entries(Filter(), limit=9))[0]}
        assert listed == {"a": "waiting", "b": "waiting", "c": "waiting", "d": "blocked", "e": "blocked"}
        assert await store.unblock("shop", "shop.charge") == 0

    async def test_a_blocked_row_that_fails_anew_waits_again(self, store: Store) -> None:
        await store.put([an_entry(wait=0.0)])
        await store.postpone("shop", [(KEY, 3)], seconds=300.0, blocked="gone")
        await store.put([an_entry(failure=4, wait=0.0)])
        found = await stored(store, KEY, failure=4)
        assert found is not None
        assert (found.state, found.state_reason) == ("waiting", "")
        assert await keys_due(store) == [KEY]

    async def test_a_put_that_changes_nothing_tells_when_the_postponed_row_is_tried(
        self, store: Store
    ) -> None:
        await store.put([an_entry(wait=0.0)])
        await store.postpone("shop", [(KEY, 3)], seconds=300.0, blocked="gone")
        (placed,) = await store.put([an_entry(wait=0.0)])
        assert not placed.written
        assert placed.due_in == pytest.approx(300.0, abs=self.rounding)

    # ── Grants ────────────────────────────────────────────────────────────────────────────────────────────────────────

    @pytest.mark.parametrize("call", GUARDED)
    async def test_a_grant_that_holds_lets_its_holder_act(
        self, store: Store, clock: FakeClock, call: str
    ) -> None:
        await store.put([an_entry()])
        await GUARDED[call](store, await a_grant(store, clock))

    @pytest.mark.parametrize("call", GUARDED)
    async def test_a_lease_taken_over_stops_its_old_holder_and_nothing_is_changed(
        self, store: Store, clock: FakeClock, call: str
    ) -> None:
        await store.put([an_entry(wait=0.0), an_entry("blocked", wait=0.0)])
        await store.postpone("shop", [("shop.charge/blocked", 3)], seconds=60.0, blocked="gone")
        await store.keep([a_letter("old")])
        grant = await a_grant(store, clock)
        await clock.advance(31.0)
        await a_grant(store, clock, holder="other")
        before = await _everything(store)
        with pytest.raises(LeaseLost, match=r"shop/retry.*other holds it, term 2"):
            await GUARDED[call](store, grant)
        assert await _everything(store) == before

    @pytest.mark.parametrize("call", GUARDED)
    async def test_a_released_lease_stops_its_old_holder(
        self, store: Store, clock: FakeClock, call: str
    ) -> None:
        grant = await a_grant(store, clock)
        await store.lease("shop/retry").release("me")
        with pytest.raises(LeaseLost):
            await GUARDED[call](store, grant)

    async def test_the_same_holder_under_a_later_term_stops_its_earlier_self(
        self, store: Store, clock: FakeClock
    ) -> None:
        grant = await a_grant(store, clock)
        await store.lease("shop/retry").release("me")
        await a_grant(store, clock)
        with pytest.raises(LeaseLost):
            await store.take("shop", [], grant=grant)

    async def test_a_lease_that_has_run_out_still_holds_until_somebody_takes_over(
        self, store: Store, clock: FakeClock
    ) -> None:
        await store.put([an_entry()])
        grant = await a_grant(store, clock)
        await clock.advance(31.0)
        assert await store.remove("shop", [(KEY, 3)], grant=grant) == 1

    async def test_a_grant_of_a_lease_that_nobody_ever_held_is_lost(
        self, store: Store, clock: FakeClock
    ) -> None:
        grant = await a_grant(store, clock)
        with pytest.raises(LeaseLost, match="nobody ever held it"):
            await store.take("shop", [], grant=grant._replace(lease="depot/retry"))


async def _everything(store: Store) -> tuple[Any, ...]:
    return (
        await store.entries(Filter(), limit=99),
        await store.upcoming("shop", within=999.0, limit=99),
        await store.letters(Filter(), limit=99, states=("dead", "claimed", "replayed", "discarded")),
    )
