"""The parts of the suite on leases, acts, start counts, and the store as a whole."""

# ruff: noqa: D102, S101
# The name of a test is its sentence, and its asserts are what it is made of.

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from leveret.core.errors import NotFound, StoreRefused, StoreUnavailable
from leveret.core.retry_entry import Filter
from leveret.ports import Acknowledged, Act, Grant, LeaseState
from leveret.testing.store_contract.base import ContractBase
from leveret.testing.store_contract.rows import a_letter, an_entry

if TYPE_CHECKING:
    from leveret.ports import Store
    from leveret.testing.fake_clock import FakeClock
    from leveret.testing.store_contract.base import Reopen


class LeaseContract(ContractBase):
    """Leases: one holder at a time, terms, release."""

    async def test_a_lease_has_one_holder_at_a_time(self, store: Store) -> None:
        lease = store.lease("shop/retry")
        assert await lease.acquire_or_renew("one", 0.0, 30.0)
        assert not await lease.acquire_or_renew("two", 0.0, 30.0)
        assert await lease.grant("one") == Grant("shop/retry", "one", 1)
        assert await lease.grant("two") is None

    async def test_of_many_candidates_at_once_one_gets_it(self, store: Store) -> None:
        answers = await asyncio.gather(
            *(store.lease("shop/retry").acquire_or_renew(str(number), 0.0, 30.0) for number in range(10))
        )
        assert sum(answers) == 1

    async def test_renewing_extends_the_lease_and_keeps_the_term(
        self, store: Store, clock: FakeClock
    ) -> None:
        lease = store.lease("shop/retry")
        for _ in range(10):
            assert await lease.acquire_or_renew("one", 0.0, 30.0)
            await clock.advance(20.0)
        assert not await lease.acquire_or_renew("two", 0.0, 30.0)
        state = await lease.state()
        assert state is not None
        assert state[:2] == ("one", 1)
        assert state.left == pytest.approx(10.0, abs=self.rounding)

    async def test_only_the_time_between_now_and_the_end_counts(self, store: Store, clock: FakeClock) -> None:
        lease = store.lease("shop/retry")
        await lease.acquire_or_renew("one", 5_000_000_000.0, 5_000_000_030.0)
        await clock.advance(29.0)
        assert not await lease.acquire_or_renew("two", 0.0, 30.0)
        await clock.advance(1.5)
        assert await lease.acquire_or_renew("two", 0.0, 30.0)

    async def test_a_jump_of_the_wall_clock_neither_frees_a_lease_nor_makes_it_last(
        self, store: Store, clock: FakeClock
    ) -> None:
        lease = store.lease("shop/retry")
        await lease.acquire_or_renew("one", clock.now(), clock.now() + 30.0)
        clock.jump(86_400.0)
        assert not await lease.acquire_or_renew("two", clock.now(), clock.now() + 30.0)
        clock.jump(-200_000.0)
        await clock.advance(30.5)
        assert await lease.acquire_or_renew("two", clock.now(), clock.now() + 30.0)

    async def test_of_hosts_whose_clocks_differ_and_jump_one_holds_it_at_any_time(
        self, store: Store, clock: FakeClock
    ) -> None:
        """Who holds it asks again for a while and then no more; all others ask all the time."""
        lease = store.lease("shop/retry")
        clocks = {"right": 0.0, "five minutes ahead": 300.0, "five minutes behind": -300.0, "jumping": 0.0}
        held: list[str] = []
        renewed = 0.0
        for step in range(40):
            clocks["jumping"] = (0.0, 3600.0, -3600.0)[step % 3]
            asking = list(clocks)
            if len(held) >= 3 and held[-3:] == held[-1:] * 3:
                # It stands still now, until another one holds the lease.
                asking.remove(held[-1])
            # Whoever has held it least asks first, so that each has its turn.
            for host in sorted(asking, key=held.count):
                now = clock.now() + clocks[host]
                got = await lease.acquire_or_renew(host, now, now + 30.0)
                if got and held and host != held[-1]:
                    assert clock.monotonic() - renewed >= 30.0 - self.rounding
                if got:
                    renewed = clock.monotonic()
            (holder,) = [host for host in clocks if await lease.grant(host) is not None]
            held.append(holder)
            await clock.advance(8.0)
        assert set(held) == set(clocks)

    async def test_a_take_over_raises_the_term(self, store: Store, clock: FakeClock) -> None:
        lease = store.lease("shop/retry")
        await lease.acquire_or_renew("one", 0.0, 30.0)
        await clock.advance(30.5)
        assert await lease.grant("one") is None
        assert await lease.acquire_or_renew("two", 0.0, 30.0)
        assert not await lease.acquire_or_renew("one", 0.0, 30.0)
        assert await lease.grant("two") == Grant("shop/retry", "two", 2)

    async def test_a_lease_that_ran_out_is_renewed_under_its_term_where_nobody_took_over(
        self, store: Store, clock: FakeClock
    ) -> None:
        lease = store.lease("shop/retry")
        await lease.acquire_or_renew("one", 0.0, 30.0)
        await clock.advance(100.0)
        assert await lease.acquire_or_renew("one", 0.0, 30.0)
        assert await lease.grant("one") == Grant("shop/retry", "one", 1)

    async def test_a_released_lease_is_free_at_once_and_its_term_goes_on(self, store: Store) -> None:
        lease = store.lease("shop/retry")
        await lease.acquire_or_renew("one", 0.0, 30.0)
        await lease.release("two")
        assert await lease.grant("one") is not None
        await lease.release("one")
        await lease.release("one")
        assert await lease.grant("one") is None
        assert await lease.state() == LeaseState("", 1, 0.0)
        assert await lease.acquire_or_renew("two", 0.0, 30.0)
        assert await lease.grant("two") == Grant("shop/retry", "two", 2)

    async def test_a_holder_that_released_comes_back_under_a_higher_term(self, store: Store) -> None:
        lease = store.lease("shop/retry")
        await lease.acquire_or_renew("one", 0.0, 30.0)
        await lease.release("one")
        await lease.acquire_or_renew("one", 0.0, 30.0)
        assert await lease.grant("one") == Grant("shop/retry", "one", 2)

    async def test_a_lease_that_nobody_ever_held_has_no_state(self, store: Store) -> None:
        lease = store.lease("shop/retry")
        assert await lease.state() is None
        assert await lease.grant("one") is None
        await lease.release("one")
        assert await lease.state() is None

    async def test_a_lease_outlives_a_restart(self, store: Store, reopen: Reopen) -> None:
        await store.lease("shop/retry").acquire_or_renew("one", 0.0, 30.0)
        store = await reopen(store)
        lease = store.lease("shop/retry")
        assert not await lease.acquire_or_renew("two", 0.0, 30.0)
        assert await lease.grant("one") == Grant("shop/retry", "one", 1)

    async def test_leases_are_told_apart_by_name_and_listed_by_namespace(
        self, store: Store, clock: FakeClock
    ) -> None:
        for name in ("shop/retry", "shop/keeper", "depot/retry", "shop2/retry"):
            assert await store.lease(name).acquire_or_renew(f"holder of {name}", 0.0, 30.0)
        await clock.advance(10.0)
        of_shop = await store.leases("shop")
        assert sorted(of_shop) == ["shop/keeper", "shop/retry"]
        assert of_shop["shop/retry"][:2] == ("holder of shop/retry", 1)
        assert of_shop["shop/retry"].left == pytest.approx(20.0, abs=self.rounding)
        assert len(await store.leases(None)) == 4


def an_act(name: str = "one", **changes: Any) -> Act:
    """An act that somebody asked for."""
    given: dict[str, Any] = {
        "id": f"act-{name}",
        "namespace": "shop",
        "verb": "retries.now",
        "arguments": {"ids": ["a", "ü\0\ud800"], "rate": 1.5, "rpc": False, "to": None, "n": 2**70},
        "asked_at": 1_750_000_000.5,
    }
    return Act(**{**given, **changes})


def a_report(*, finished: bool = True) -> Acknowledged:
    """A report of an act."""
    return Acknowledged(by="web-1/4711", asked=3, done=2, notes=("1 was gone",), finished=finished)


class OtherContract(ContractBase):
    """Acts, start counts, and the store as a whole."""

    # ── Acts ──────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_an_act_is_asked_as_it_was_written(self, store: Store, reopen: Reopen) -> None:
        await store.ask(an_act())
        store = await reopen(store)
        assert await store.asked("shop", ["retries.now"]) == [an_act()]
        assert await store.act("act-one") == an_act()
        assert await store.act("act-none") is None

    async def test_acts_are_asked_by_namespace_and_verb_the_oldest_first(self, store: Store) -> None:
        await store.ask(an_act("c", asked_at=3.0))
        await store.ask(an_act("a", asked_at=1.0, verb="dead.replay"))
        await store.ask(an_act("b", asked_at=2.0))
        await store.ask(an_act("d", namespace="depot"))
        asked = await store.asked("shop", ["retries.now", "dead.replay"])
        assert [act.id for act in asked] == ["act-a", "act-b", "act-c"]
        assert [act.id for act in await store.asked("shop", ["dead.replay"])] == ["act-a"]
        assert await store.asked("shop", []) == []

    async def test_an_act_that_is_asked_again_is_left_as_it_is(self, store: Store) -> None:
        await store.ask(an_act())
        await store.report("act-one", a_report())
        await store.ask(an_act(verb="retries.cancel"))
        found = await store.act("act-one")
        assert found is not None
        assert (found.verb, found.report) == ("retries.now", a_report())

    async def test_an_act_is_asked_until_its_report_says_that_it_is_finished(self, store: Store) -> None:
        await store.ask(an_act())
        await store.report("act-one", a_report(finished=False))
        (asked,) = await store.asked("shop", ["retries.now"])
        assert asked.report == a_report(finished=False)
        await store.report("act-one", a_report())
        assert await store.asked("shop", ["retries.now"]) == []
        found = await store.act("act-one")
        assert found is not None
        assert found.report == a_report()

    async def test_reports_of_finished_acts_are_kept_for_a_day_and_unfinished_acts_for_ever(
        self, store: Store, clock: FakeClock
    ) -> None:
        await store.ask(an_act("done"))
        await store.ask(an_act("open"))
        await store.report("act-done", a_report())
        await clock.advance(86_000.0)
        await store.ask(an_act("next"))
        assert await store.act("act-done") is not None
        await clock.advance(500.0)
        await store.ask(an_act("last"))
        assert await store.act("act-done") is None
        assert len(await store.asked("shop", ["retries.now"])) == 3

    async def test_a_report_of_an_act_that_is_not_there_is_refused(self, store: Store) -> None:
        with pytest.raises(NotFound, match="act-none"):
            await store.report("act-none", a_report())

    async def test_arguments_that_json_cannot_carry_are_refused(self, store: Store) -> None:
        with pytest.raises(StoreRefused, match="act-one"):
            await store.ask(an_act(arguments={"when": object()}))
        assert await store.act("act-one") is None

    async def test_changing_the_arguments_later_does_not_change_the_act(self, store: Store) -> None:
        arguments = {"ids": ["a"]}
        await store.ask(an_act(arguments=arguments))
        arguments["ids"].append("b")
        found = await store.act("act-one")
        assert found is not None
        assert found.arguments == {"ids": ["a"]}

    # ── Starts ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_starts_are_counted_for_each_message_and_outlive_a_restart(
        self, store: Store, reopen: Reopen
    ) -> None:
        assert await store.count_start("shop", "q", "m") == 1
        store = await reopen(store)
        assert await store.count_start("shop", "q", "m") == 2
        assert await store.count_start("shop", "q", "other") == 1
        assert await store.count_start("shop", "other", "m") == 1
        assert await store.count_start("depot", "q", "m") == 1

    async def test_forgotten_starts_are_counted_from_one_again(self, store: Store) -> None:
        for message in ("a", "b", "b", "c"):
            await store.count_start("shop", "q", message)
        await store.forget_starts("shop", "q", ["a", "b", "never seen"])
        await store.forget_starts("shop", "q", [])
        assert [await store.count_start("shop", "q", message) for message in "abc"] == [1, 1, 2]

    async def test_starts_counted_at_once_are_all_counted(self, store: Store) -> None:
        counts = await asyncio.gather(*(store.count_start("shop", "q", "m") for _ in range(20)))
        assert sorted(counts) == list(range(1, 21))

    # ── The store ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_namespaces_are_those_of_which_something_is_there(self, store: Store) -> None:
        assert await store.namespaces() == []
        await store.put([an_entry(namespace="a"), an_entry(namespace="c")])
        await store.keep([a_letter(namespace="b"), a_letter(namespace="a")])
        await store.lease("d/retry").acquire_or_renew("one", 0.0, 30.0)
        await store.ask(an_act(namespace="e"))
        await store.count_start("f", "q", "m")
        assert await store.namespaces() == ["a", "b", "c", "d", "e", "f"]

    async def test_where_no_retry_worker_keeps_documents_none_are_told(self, store: Store) -> None:
        await store.put([an_entry()])
        assert await store.lease("shop/retry").acquire_or_renew("me", 0.0, 30.0)
        assert await store.document_collections() == []

    async def test_a_check_of_a_sound_store_says_so_and_counts(self, store: Store) -> None:
        await store.put([an_entry("a"), an_entry("b")])
        await store.keep([a_letter()])
        check = await store.check()
        assert (check["integrity"], check["waiting"], check["dead"]) == ("ok", 2, 1)

    async def test_a_store_says_where_it_is(self, store: Store) -> None:
        assert "://" in store.display
        assert store.display in repr(store)
        assert isinstance(store.shared, bool)

    async def test_open_and_close_can_be_called_twice(self, store: Store) -> None:
        await store.put([an_entry()])
        await store.open()
        assert await store.count_entries(Filter()) == 1
        await store.close()
        await store.close()
        await store.open(create=False)
        assert await store.count_entries(Filter()) == 1

    async def test_a_closed_store_says_that_it_is_not_open(self, store: Store) -> None:
        await store.close()
        with pytest.raises(StoreUnavailable, match="not open"):
            await store.put([an_entry()])
        with pytest.raises(StoreUnavailable, match="not open"):
            await store.count_entries(Filter())

    async def test_a_caller_that_gives_up_takes_no_other_call_along(self, store: Store) -> None:
        calls = [asyncio.ensure_future(store.put([an_entry(str(number))])) for number in range(20)]
        await asyncio.sleep(0)
        for call in calls[::2]:
            call.cancel()
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(answer, list) for answer in answers[1::2])
        assert {entry.key for entry in (await store.entries(Filter(), limit=99))[0]} >= {
            f"shop.charge/{number}" for number in range(1, 20, 2)
        }

    async def test_a_refused_call_takes_no_other_call_along(self, store: Store) -> None:
        answers = await asyncio.gather(
            *(store.put([an_entry(str(number), body=None if number == 3 else b"x")]) for number in range(8)),
            return_exceptions=True,
        )
        assert [isinstance(answer, StoreRefused) for answer in answers] == [
            number == 3 for number in range(8)
        ]
        assert await store.count_entries(Filter()) == 7
