"""The part of the suite on dead letters."""

# ruff: noqa: D102, S101
# The name of a test is its sentence, and its asserts are what it is made of.

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from leveret.core.dead_letter import LetterState, Replay
from leveret.core.errors import NotFound, StoreRefused
from leveret.core.message import ID_BYTES
from leveret.core.retry_entry import Filter
from leveret.testing.store_contract.base import ContractBase
from leveret.testing.store_contract.rows import AWKWARD, BODIES, a_letter

if TYPE_CHECKING:
    from leveret.ports import Store
    from leveret.testing.store_contract.base import Reopen

EVERY_STATE: tuple[LetterState, ...] = ("dead", "claimed", "replayed", "discarded")


def a_replay(replay_id: str = "r1", outcome: str = "published") -> Replay:
    """One replay."""
    return Replay(at=1_750_001_000.5, replay_id=replay_id, to="shop.charge", outcome=outcome)


class LetterContract(ContractBase):
    """Dead letters."""

    # ── Keep ──────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_a_letter_comes_back_as_it_was_kept(self, store: Store, reopen: Reopen) -> None:
        letter = a_letter(replays=(a_replay(), a_replay("r2", "failed: NO_ROUTE")))
        assert await store.keep([letter]) == 1
        store = await reopen(store)
        assert await store.letter("shop", letter.id) == replace(letter, size=13)

    async def test_a_letter_that_is_kept_again_is_left_as_it_is(self, store: Store) -> None:
        await store.keep([a_letter("a")])
        assert (
            await store.keep([a_letter("a", body=b"other", reason="other"), a_letter("b"), a_letter("b")])
            == 1
        )
        assert await store.letter(None, "letter-id-a") == replace(a_letter("a"), size=13)
        assert await store.count_letters(Filter()) == 2

    async def test_a_letter_kept_again_after_its_replay_does_not_rise(self, store: Store) -> None:
        await store.keep([a_letter()])
        await store.claim(Filter(), replay_id="r1", limit=9)
        await store.replayed([("shop", "letter-id-one")], a_replay(), state="replayed")
        assert await store.keep([a_letter()]) == 0
        assert await store.count_letters(Filter()) == 0

    async def test_one_id_in_two_namespaces_is_two_letters(self, store: Store) -> None:
        assert await store.keep([a_letter(), a_letter(namespace="depot")]) == 2
        assert await store.count_letters(Filter(namespace="depot")) == 1

    async def test_a_batch_with_a_letter_from_a_listing_is_refused_whole(self, store: Store) -> None:
        with pytest.raises(StoreRefused, match="without its body"):
            await store.keep([a_letter("good"), a_letter("bad", body=None)])
        assert await store.count_letters(Filter(), states=EVERY_STATE) == 0

    @pytest.mark.parametrize("body", [body for body in BODIES if body.id in {"empty", "raw", "17 MB"}])
    async def test_a_letters_body_comes_back_byte_for_byte(self, store: Store, body: bytes) -> None:
        await store.keep([a_letter(body=body)])
        found = await store.letter(None, "letter-id-one")
        assert found is not None
        same = found.body == body
        assert same
        assert found.size == len(body)

    async def test_texts_that_databases_choke_on_do_not_keep_a_letter_out(self, store: Store) -> None:
        texts = ("worker", "type", "reason", "error", "traceback", "host")
        names = ("id", "queue", "exchange", "routing_key", "message_id", "retry_id", "first_letter")
        assert await store.keep([a_letter(**dict.fromkeys((*texts, *names), AWKWARD))]) == 1
        found = await store.letter(None, AWKWARD)
        assert found is not None
        assert [getattr(found, name) for name in texts] == ["a\\x00b\\ud800c"] * len(texts)
        assert [getattr(found, name) for name in names] == [AWKWARD] * len(names)
        assert (await store.groups(Filter()))[0].fingerprint == found.fingerprint

    @pytest.mark.parametrize("id", ["\0" * ID_BYTES, "é" * (ID_BYTES // 2)], ids=["NUL", "two bytes"])
    async def test_a_letter_is_kept_under_the_longest_id_that_one_may_bring(
        self, store: Store, id: str
    ) -> None:
        letter = a_letter(id=id)
        assert await store.keep([letter]) == 1
        assert await store.letter("shop", id) == replace(letter, size=13)

    async def test_a_letter_that_never_was_in_a_queue_keeps_its_empty_fields(self, store: Store) -> None:
        letter = a_letter(queue="", message_id=None, retry_id="", attempts=0, ending="foreign", rpc=False)
        await store.keep([letter])
        assert await store.letter(None, letter.id) == replace(letter, size=13)

    # ── Listings ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_a_listing_has_everything_but_bodies_the_newest_first(self, store: Store) -> None:
        await store.keep(
            [a_letter(name, died_at=died_at) for name, died_at in (("b", 2.0), ("c", 3.0), ("a", 1.0))]
        )
        listed, more = await store.letters(Filter(), limit=9)
        assert [letter.id[-1] for letter in listed] == ["c", "b", "a"]
        assert listed[0] == replace(a_letter("c", died_at=3.0), size=13, body=None)
        assert more is None

    async def test_letter_pages_together_are_the_listing(self, store: Store) -> None:
        await store.keep([a_letter(f"{number:02}", died_at=float(number % 3)) for number in range(20)])
        await store.keep([a_letter(f"{number:02}", namespace="depot", died_at=1.0) for number in range(10)])
        await store.set_state(
            Filter(ids=[f"er-id-{number:02}" for number in range(7)]), was="dead", to="discarded"
        )
        seen: list[tuple[str, str]] = []
        after = None
        while True:
            page, after = await store.letters(Filter(), limit=4, after=after, states=EVERY_STATE)
            seen += [(letter.namespace, letter.id) for letter in page]
            if after is None:
                break
        whole, _ = await store.letters(Filter(), limit=99, states=EVERY_STATE)
        assert seen == [(letter.namespace, letter.id) for letter in whole]
        assert len(set(seen)) == 30

    async def test_letter_paging_shows_nothing_twice_while_letters_come_and_go(self, store: Store) -> None:
        await store.keep([a_letter(str(number), died_at=float(number)) for number in range(10)])
        first, after = await store.letters(Filter(), limit=5)
        await store.keep([a_letter("new", died_at=99.0), a_letter("old", died_at=0.5)])
        await store.set_state(Filter(ids=["ter-id-7", "ter-id-3"]), was="dead", to="discarded")
        second, _ = await store.letters(Filter(), limit=99, after=after)
        assert [letter.id[10:] for letter in first] == ["9", "8", "7", "6", "5"]
        assert [letter.id[10:] for letter in second] == ["4", "2", "1", "old", "0"]

    @pytest.mark.parametrize(
        ("wanted", "names"),
        [
            (Filter(), "abc"),
            (Filter(namespace="shop"), "ab"),
            (Filter(worker="ship"), "b"),
            (Filter(reason="STRASSE"), "b"),
            (Filter(type="order.paid"), "c"),
            (Filter(text="Grüße"), "a"),
            (Filter(since=200.0), "bc"),
            (Filter(until=200.0), "ab"),
            (Filter(attempts=1), "a"),
            (Filter(rpc=True), "ac"),
            (Filter(rpc=False), "b"),
            (Filter(ids=["letter-id-a", "message-c"]), "ac"),
            (Filter(ids=["r-id-b"]), "b"),
            (Filter(ids=["-id-b"]), ""),
            (Filter(namespace="shop", worker="charge", reason="30", attempts=1, since=0.0), "a"),
        ],
    )
    async def test_a_filter_takes_the_letters_for_which_all_holds(
        self, store: Store, wanted: Filter, names: str
    ) -> None:
        await store.keep(
            [
                a_letter("a", attempts=1, died_at=100.0, body='"Grüße"'.encode()),
                a_letter("b", worker="ship", reason="Keine Straße", died_at=200.0, rpc=False),
                a_letter("c", namespace="depot", type="order.paid", died_at=300.0, body=b"\xff\x00"),
            ]
        )
        listed, _ = await store.letters(wanted, limit=9)
        assert sorted(letter.id[-1] for letter in listed) == list(names)
        assert await store.count_letters(wanted) == len(names)
        assert sum(group.count for group in await store.groups(wanted)) == len(names)

    async def test_letters_are_listed_and_counted_by_state(self, store: Store) -> None:
        await store.keep([a_letter(name) for name in "abcd"])
        await store.set_state(Filter(ids=["letter-id-a"]), was="dead", to="discarded")
        await store.claim(Filter(ids=["letter-id-b"]), replay_id="r1", limit=1)
        states: dict[LetterState, str] = {"dead": "cd", "claimed": "b", "replayed": "", "discarded": "a"}
        for state, names in states.items():
            listed, _ = await store.letters(Filter(), limit=9, states=[state])
            assert sorted(letter.id[-1] for letter in listed) == list(names)
            assert await store.count_letters(Filter(), states=[state]) == len(names)
        assert await store.count_letters(Filter(), states=["dead", "discarded", "dead"]) == 3

    @pytest.mark.parametrize("id", ["letter-id-one", "message-one", "id-one"])
    async def test_a_letter_is_found_by_id_or_ending_in_any_state(self, store: Store, id: str) -> None:
        await store.keep([a_letter("one"), a_letter("two")])
        await store.set_state(Filter(), was="dead", to="discarded")
        found = await store.letter("shop", id)
        assert found is not None
        assert (found.id, found.state, found.body) == ("letter-id-one", "discarded", b'{"order": 17}')
        assert await store.letter("depot", id) is None
        assert await store.letter(None, "d-one") is None

    async def test_an_ending_of_several_letters_is_refused_with_all_of_them(self, store: Store) -> None:
        await store.keep([a_letter("one-abcdef"), a_letter("two-abcdef")])
        with pytest.raises(NotFound, match=r"letter-id-one-abcdef.*letter-id-two-abcdef"):
            await store.letter(None, "abcdef")

    async def test_groups_gather_deaths_of_one_kind_the_largest_first(self, store: Store) -> None:
        await store.keep(
            [a_letter(f"a{n}", reason=f"order {n} has no url", died_at=float(n)) for n in range(3)]
            + [a_letter("b", worker="ship", died_at=50.0), a_letter("c", error="KeyError", died_at=60.0)]
            + [a_letter("d", namespace="depot", reason="order 9 has no url", died_at=70.0)]
        )
        await store.set_state(Filter(ids=["er-id-b"]), was="dead", to="discarded")
        groups = await store.groups(Filter(namespace="shop"))
        assert [(g.count, g.error, g.reason, g.first_died_at, g.last_died_at) for g in groups] == [
            (3, "TimeoutError", "order 2 has no url", 0.0, 2.0),
            (1, "KeyError", "no answer within 30 s", 60.0, 60.0),
        ]
        assert groups[0].fingerprint == a_letter(reason="order 77 has no url").fingerprint
        assert groups[0].worker == "charge"
        assert [group.count for group in await store.groups(Filter())] == [4, 1]

    # ── Replays ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_a_claim_takes_the_oldest_dead_letters_whole(self, store: Store) -> None:
        await store.keep(
            [a_letter(name, died_at=died_at) for name, died_at in (("b", 2.0), ("c", 3.0), ("a", 1.0))]
        )
        claimed = await store.claim(Filter(), replay_id="r1", limit=2)
        assert claimed == [
            replace(a_letter("a", died_at=1.0), size=13),
            replace(a_letter("b", died_at=2.0), size=13),
        ]
        assert await store.count_letters(Filter(), states=["claimed"]) == 2

    async def test_a_claim_takes_only_dead_letters_that_are_meant(self, store: Store) -> None:
        await store.keep(
            [a_letter("a"), a_letter("b"), a_letter("c", worker="ship"), a_letter("d", namespace="depot")]
        )
        await store.set_state(Filter(ids=["er-id-b"]), was="dead", to="discarded")
        claimed = await store.claim(Filter(namespace="shop", worker="charge"), replay_id="r1", limit=9)
        assert [letter.id for letter in claimed] == ["letter-id-a"]

    async def test_a_claim_without_a_namespace_takes_the_oldest_of_all(self, store: Store) -> None:
        await store.keep([a_letter("a", died_at=3.0), a_letter("b", namespace="depot", died_at=2.0)])
        await store.keep([a_letter("c", namespace="depot", died_at=4.0)])
        claimed = await store.claim(Filter(), replay_id="r1", limit=2)
        assert [letter.id[-1] for letter in claimed] == ["b", "a"]

    async def test_two_replays_at_once_never_get_the_same_letter(self, store: Store) -> None:
        await store.keep([a_letter(f"{number:02}", died_at=float(number)) for number in range(40)])
        claims = await asyncio.gather(
            *(store.claim(Filter(), replay_id=f"r{number}", limit=7) for number in range(8))
        )
        ids = [letter.id for claimed in claims for letter in claimed]
        assert len(ids) == len(set(ids)) == 40

    async def test_a_replay_that_goes_on_gets_its_unreported_letters_first_and_marked(
        self, store: Store, reopen: Reopen
    ) -> None:
        await store.keep(
            [a_letter(name, died_at=died_at) for name, died_at in (("a", 1.0), ("b", 2.0), ("c", 3.0))]
        )
        await store.keep([a_letter("early", died_at=0.5)])
        await store.claim(Filter(ids=["letter-id-a", "letter-id-b"]), replay_id="r1", limit=9)
        await store.replayed([("shop", "letter-id-a")], a_replay(), state="replayed")
        store = await reopen(store)
        claimed = await store.claim(Filter(), replay_id="r1", limit=9)
        assert [(letter.id[10:], letter.state) for letter in claimed] == [
            ("b", "claimed"),
            ("early", "dead"),
            ("c", "dead"),
        ]
        assert [letter.id[10:] for letter in await store.claim(Filter(), replay_id="r1", limit=1)] == [
            "early"
        ]
        assert await store.claim(Filter(), replay_id="r2", limit=9) == []

    async def test_a_reported_replay_is_noted_and_sets_the_state(self, store: Store) -> None:
        await store.keep([a_letter("a"), a_letter("b")])
        await store.claim(Filter(), replay_id="r1", limit=9)
        rows = [("shop", "letter-id-a"), ("shop", "letter-id-none")]
        assert await store.replayed(rows, a_replay(), state="replayed") == 1
        failed = a_replay(outcome="failed: NO_ROUTE")
        assert await store.replayed([("shop", "letter-id-b")], failed, state="dead") == 1
        a, b = await store.letter(None, "letter-id-a"), await store.letter(None, "letter-id-b")
        assert a is not None
        assert b is not None
        assert (a.state, a.replays) == ("replayed", (a_replay(),))
        assert (b.state, b.replays) == ("dead", (failed,))

    async def test_a_letter_that_is_dead_again_can_be_claimed_by_anybody(self, store: Store) -> None:
        await store.keep([a_letter()])
        await store.claim(Filter(), replay_id="r1", limit=9)
        await store.replayed([("shop", "letter-id-one")], a_replay(outcome="failed"), state="dead")
        (claimed,) = await store.claim(Filter(), replay_id="r2", limit=9)
        assert claimed.state == "dead"
        await store.replayed([("shop", "letter-id-one")], a_replay("r2"), state="replayed")
        found = await store.letter(None, "letter-id-one")
        assert found is not None
        assert [replay.replay_id for replay in found.replays] == ["r1", "r2"]

    async def test_a_late_report_does_not_take_a_letter_from_the_replay_that_has_claimed_it(
        self, store: Store
    ) -> None:
        await store.keep([a_letter()])
        await store.claim(Filter(), replay_id="r1", limit=9)
        await store.set_state(Filter(), was="claimed", to="dead")
        await store.claim(Filter(), replay_id="r2", limit=9)
        assert await store.replayed([("shop", "letter-id-one")], a_replay("r1"), state="dead") == 1
        found = await store.letter(None, "letter-id-one")
        assert found is not None
        assert (found.state, found.replays) == ("claimed", (a_replay("r1"),))
        assert await store.claim(Filter(), replay_id="r3", limit=9) == []

    # ── State and edits ───────────────────────────────────────────────────────────────────────────────────────────────

    async def test_letters_are_discarded_and_restored(self, store: Store) -> None:
        await store.keep([a_letter("a"), a_letter("b"), a_letter("c", namespace="depot")])
        assert await store.set_state(Filter(namespace="shop"), was="dead", to="discarded") == 2
        assert await store.set_state(Filter(), was="dead", to="discarded") == 1
        assert await store.set_state(Filter(ids=["letter-id-a"]), was="discarded", to="dead") == 1
        listed, _ = await store.letters(Filter(), limit=9)
        assert [letter.id for letter in listed] == ["letter-id-a"]

    async def test_a_replayed_letter_is_restored(self, store: Store) -> None:
        await store.keep([a_letter()])
        await store.claim(Filter(), replay_id="r1", limit=9)
        await store.replayed([("shop", "letter-id-one")], a_replay(), state="replayed")
        assert await store.set_state(Filter(), was="discarded", to="dead") == 0
        assert await store.set_state(Filter(), was="replayed", to="dead") == 1
        assert len(await store.claim(Filter(), replay_id="r1", limit=9)) == 1

    async def test_an_edited_letter_keeps_its_old_body_in_a_discarded_one_that_names_it(
        self, store: Store
    ) -> None:
        await store.keep([a_letter()])
        edited = await store.edit("shop", "letter-id-one", b"mended")
        expected = replace(a_letter(), body=b"mended", size=6)
        assert edited == expected
        assert await store.letter(None, "letter-id-one") == expected
        ((old,), _) = await store.letters(Filter(), limit=9, states=["discarded"])
        assert (old.first_letter, old.size, old.reason) == ("letter-id-one", 13, a_letter().reason)
        whole = await store.letter(None, old.id)
        assert whole is not None
        assert whole.body == b'{"order": 17}'

    async def test_a_letter_edited_twice_keeps_both_old_bodies(self, store: Store) -> None:
        await store.keep([a_letter()])
        for body in (b"second", b"third", b"second", b"third"):
            await store.edit("shop", "letter-id-one", body)
        old, _ = await store.letters(Filter(), limit=9, states=["discarded"])
        bodies = [found.body for letter in old if (found := await store.letter(None, letter.id))]
        assert sorted(body or b"" for body in bodies) == [b"second", b"third", b'{"order": 17}']

    async def test_only_a_letter_that_lies_dead_is_edited(self, store: Store) -> None:
        await store.keep([a_letter()])
        await store.claim(Filter(), replay_id="r1", limit=9)
        with pytest.raises(StoreRefused, match="is claimed"):
            await store.edit("shop", "letter-id-one", b"mended")
        with pytest.raises(NotFound, match="letter-id-none"):
            await store.edit("shop", "letter-id-none", b"mended")
        assert await store.count_letters(Filter(), states=EVERY_STATE) == 1
