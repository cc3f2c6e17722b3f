"""An app of a user's own in the simulator: its handlers, its messages, and what they left behind."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from leveret import Context, GiveUp, HardFailure, Leveret, Message, RetryPolicy, SoftFailure
from leveret.core.errors import BadPayload, Unroutable
from leveret.core.message import Outgoing
from leveret.core.outcome import Unexpected
from leveret.core.topology import ExchangeType, RMQExchangeConfig
from leveret.simulate import simulate_app
from leveret.transports.memory_broker import MemoryBroker

ORDERS = [("order.placed", {"n": n}) for n in range(60)]


class Shop:
    """A shop whose handlers fail now and then, and what they wrote into the world outside."""

    def __init__(self, *, idempotent: bool = True) -> None:
        self.charged: Counter[str] = Counter()
        self._idempotent = idempotent

    def make_app(self) -> Leveret:
        app = Leveret("mine", retry=RetryPolicy(first_delay=0.3, max_attempts=4))

        @app.worker("order.*")
        async def charge(order: dict, ctx: Context) -> list[Message]:
            if order["n"] % 10 == 0 and ctx.attempt < 3:
                raise SoftFailure("the card service answered 503")
            if order["n"] % 21 == 1:
                raise HardFailure("cannot charge 0 cents")
            if not self._idempotent or not self.charged[ctx.message_id or ""]:
                self.charged[ctx.message_id or ""] += 1
            return [Message("receipt.made", order), Message("stock.taken", order)]

        @app.worker("receipt.made", retry=RetryPolicy(max_attempts=1))
        def post(order: dict) -> None:
            if order["n"] % 14 == 0:
                raise ValueError("no address")

        @app.worker("stock.#", unexpected="dead")
        async def count(order: dict) -> None:
            if order["n"] % 14 == 2:
                raise KeyError("shelf")

        return app


def test_an_app_that_keeps_to_the_rules_passes_whatever_strikes():
    shop = Shop()
    simulate_app(shop.make_app, ORDERS, runs=8)
    assert set(shop.charged.values()) == {1}
    assert len(shop.charged) == sum(n % 21 != 1 for n in range(60))


def test_faults_make_copies_so_a_handler_that_is_not_idempotent_is_caught_by_its_own_test():
    shop = Shop(idempotent=False)
    simulate_app(shop.make_app, ORDERS, runs=4, faults=["killed", "cut"])
    # Four runs charge each four times; what is more than that came of copies.
    assert max(shop.charged.values()) > 4


def test_without_faults_nothing_comes_twice():
    shop = Shop(idempotent=False)
    simulate_app(shop.make_app, ORDERS, runs=2, faults="none")
    assert set(shop.charged.values()) == {2}


def test_a_fault_that_does_not_exist_is_told_with_all_that_do():
    with pytest.raises(ValueError, match="there is no fault 'earthquake'"):
        simulate_app(Shop().make_app, ORDERS, faults="earthquake")


def test_nothing_to_publish_is_no_proof():
    with pytest.raises(ValueError, match="there is nothing to publish"):
        simulate_app(Shop().make_app, [])


@pytest.mark.parametrize("runs", [0, -1])
def test_no_run_is_no_proof(runs: int):
    with pytest.raises(ValueError, match=rf"runs={runs}\): expected at least 1"):
        simulate_app(Shop().make_app, ORDERS, runs=runs)


def test_what_no_worker_takes_is_refused_with_what_they_take():
    with pytest.raises(ValueError, match="no worker of the app takes 'order', 'shelf'") as told:
        simulate_app(Shop().make_app, [*ORDERS, ("shelf", {}), ("order", {})])
    assert str(told.value).endswith("charge (order.*) · count (stock.#) · post (receipt.made)")


def test_a_channel_takes_no_messages_and_that_is_told():
    def make_app() -> Leveret:
        app = Leveret("mine")

        @app.rpc("price")
        async def price(order: dict) -> dict:
            return {"cents": 500}

        return app

    with pytest.raises(
        ValueError, match=r"none\. price is a channel of @app.rpc: it takes what app.call sends"
    ):
        simulate_app(make_app, [("price", {})])


@pytest.mark.parametrize("type", ["topic", "direct", "fanout"])
def test_a_worker_takes_by_its_name_and_through_whatever_exchange_its_app_has(type: ExchangeType):
    taken: list[str] = []

    def make_app() -> Leveret:
        app = Leveret("mine", exchange=RMQExchangeConfig("elsewhere", type))

        @app.worker
        async def charge(order: dict) -> None:
            taken.append("charge")

        @app.worker
        async def audit(order: dict) -> None:
            taken.append("audit")

        return app

    simulate_app(make_app, [("charge", {})], runs=1, faults="none")
    assert sorted(taken) == (["audit", "charge"] if type == "fanout" else ["charge"])


def test_what_goes_wrong_is_told_with_its_seed_and_as_a_story(monkeypatch: pytest.MonkeyPatch):
    from tests.simulate.test_mutants import ack_before_it_is_stored

    ack_before_it_is_stored(monkeypatch)
    with pytest.raises(AssertionError) as told:
        simulate_app(Shop().make_app, ORDERS, runs=60)
    story = str(told.value)
    assert "seed " in story
    assert "lost 0" not in story
    assert "are enough:" in story
    assert "worker-1 1" in story


class Declined(Exception):
    """A failure that a policy knows by name."""


@pytest.mark.parametrize(
    "retry",
    [
        RetryPolicy(first_delay=0.2, max_attempts=4, retry_on={Declined: GiveUp}),
        RetryPolicy(first_delay=0.2, max_attempts=4, retry_on={Declined: GiveUp("declined", exhausted=True)}),
        RetryPolicy(
            first_delay=0.2, max_attempts=4, retry_on={Declined: RetryPolicy(first_delay=0.1, max_attempts=2)}
        ),
        RetryPolicy(
            first_delay=0.2, max_attempts=2, retry_on={Declined: RetryPolicy(first_delay=0.1, max_attempts=5)}
        ),
        RetryPolicy(first_delay=0.2, max_attempts=4, max_age=0.25),
    ],
    ids=["dead at once", "used up", "fewer tries", "more tries", "too old"],
)
@pytest.mark.parametrize("unexpected", ["retry", "dead"])
@pytest.mark.parametrize("faults", ["none", "all"])
def test_what_a_policy_says_of_an_error_is_what_is_expected(
    retry: RetryPolicy, unexpected: Unexpected, faults: str
):
    def make_app() -> Leveret:
        app = Leveret("mine", retry=retry)

        @app.worker("order.placed", unexpected=unexpected)
        async def charge(order: dict) -> None:
            if order["n"] % 3 == 0:
                raise Declined("no money")
            if order["n"] % 7 == 0:
                raise KeyError("card")

        return app

    simulate_app(make_app, ORDERS, runs=3, faults=faults)


@pytest.mark.parametrize(
    "asks",
    [
        {"retry_max": 7},
        {"retry_max": 0},
        {"retry_after": 60},
        {"retry_after": 60, "jitter": 0.5},
        {"retry_after": 0.5, "factor": 3},
    ],
    ids=str,
)
def test_what_a_failure_asks_for_is_what_is_expected(asks: dict[str, Any]):
    def make_app() -> Leveret:
        app = Leveret("mine", retry=RetryPolicy(first_delay=0.2, max_attempts=3, max_retry_after=2))

        @app.worker("order.placed")
        async def charge(order: dict) -> None:
            if order["n"] % 3 == 0:
                raise SoftFailure("503", **asks)

        return app

    simulate_app(make_app, ORDERS, runs=2)


def test_a_handler_that_runs_too_long_has_failed_softly_unless_it_raises_something_else():
    def make_app() -> Leveret:
        app = Leveret("mine", retry=RetryPolicy(first_delay=0.2, max_attempts=3))

        @app.worker("order.placed", timeout=1.0, unexpected="dead")
        async def charge(order: dict) -> None:
            try:
                await asyncio.sleep(order["n"])
            except asyncio.CancelledError:
                if order["n"] == 2:
                    raise
                if order["n"] == 3:
                    raise KeyError("cut off") from None

        return app

    simulate_app(make_app, [("order.placed", {"n": n}) for n in range(5)], runs=3)


class Paid:
    """A shop whose handlers publish themselves, one by one, many at once, later, and what nobody takes."""

    def __init__(self) -> None:
        self.shipped: Counter[str] = Counter()

    def make_app(self) -> Leveret:
        app = Leveret("mine", retry=RetryPolicy(first_delay=0.3, max_attempts=4))

        @app.worker("order.placed")
        async def charge(order: dict, ctx: Context) -> None:
            n = order["n"]
            if n % 5 == 0:
                await app.publish("order.paid", order, id=f"paid-{n}", delay=3)
            elif n % 5 == 1:
                await app.publish(Message("order.paid", order))
            elif n % 5 == 2:
                await app.publish_many(
                    [Message("order.paid", order, id=f"paid-{n}"), Message("order.paid", order)]
                )
            elif n % 5 == 3:
                await app.publish("order.noticed", order, mandatory=False)
            else:
                with pytest.raises(Unroutable):
                    await app.publish("order.noticed", order)
                with pytest.raises(BadPayload):
                    await app.publish("order.paid", {"at": object()})

        @app.worker("order.paid")
        async def ship(order: dict, ctx: Context) -> None:
            self.shipped[ctx.message_id or ""] += 1

        return app


def test_what_handlers_publish_is_accounted_for_too():
    shop = Paid()
    simulate_app(shop.make_app, ORDERS, runs=1, faults="none")
    assert len(shop.shipped) == 12 + 12 + 24
    assert set(shop.shipped.values()) == {1}


def test_what_handlers_publish_is_accounted_for_whatever_strikes():
    simulate_app(Paid().make_app, ORDERS, runs=20)


def test_what_a_handler_published_and_is_gone_is_lost(monkeypatch: pytest.MonkeyPatch):
    whole = MemoryBroker.publish

    def forgetful(self: MemoryBroker, connection: Any, message: Outgoing, answer: Any) -> None:
        if message.properties.message_id == "paid-2":
            connection.answers.append((answer, None))
            connection.schedule()
        else:
            whole(self, connection, message, answer)

    monkeypatch.setattr(MemoryBroker, "publish", forgetful)
    with pytest.raises(AssertionError, match=r"accounted for: paid-2 was accepted, and is nowhere"):
        simulate_app(Paid().make_app, ORDERS[:3], runs=1, faults="none")


PLUGIN_TEST = """
from leveret import Leveret

runs = []

def make_app():
    runs.append(1)
    app = Leveret("mine")

    @app.worker("order.placed")
    async def charge(order: dict) -> None:
        pass

    return app

def test_it(simulate_app):
    simulate_app(make_app, [("order.placed", {"n": 1})], runs=50, faults="none")
    print("made", len(runs), "apps")
"""


def test_the_plug_in_gives_tests_a_fixture_and_the_command_line_says_how_many_seeds(
    pytester: pytest.Pytester,
):
    pytester.makepyfile(PLUGIN_TEST)
    ended = pytester.runpytest_subprocess(
        "-s", "-p", "no:cacheprovider", "--simulate-runs=1", "--simulate-seed=7"
    )
    ended.assert_outcomes(passed=1)
    [made] = [line for line in ended.outlines if "made" in line]
    # One seed: each of its processes that work makes one, and one is looked at.
    assert int(made.split("made")[1].split()[0]) < 10
