"""D15, in an app: a payload that JSON cannot carry is refused at publish with the path of the bad value.

Nothing reaches the broker: not with `publish`, not with a delay, not as one of many; the others of many are sent. As a
handler's result, where nobody waits for an error, it becomes a dead letter of its own.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime
from decimal import Decimal
from uuid import UUID

import pytest

from leveret import BadPayload, Leveret, Message, PublishFailures
from leveret.testing import TestLeveret


def itself() -> dict:
    inner: dict = {}
    inner["self"] = inner
    return inner


BAD = {
    "NaN": (math.nan, 'payload["order"][1]["bad"] is nan'),
    "infinity": (math.inf, 'payload["order"][1]["bad"] is inf'),
    "bytes": (b"raw", 'payload["order"][1]["bad"] is bytes'),
    "a datetime": (datetime(2026, 11, 30, tzinfo=UTC), 'payload["order"][1]["bad"] is a datetime'),
    "a Decimal": (Decimal("1.10"), 'payload["order"][1]["bad"] is a Decimal (1.10)'),
    "a UUID": (UUID(int=1), 'payload["order"][1]["bad"] is a UUID'),
    "a set": ({1, 2}, 'payload["order"][1]["bad"] is a set'),
    "a key that is an int": ({1: "one"}, 'payload["order"][1]["bad"] has the key 1, an int'),
    "itself": (itself(), 'payload["order"][1]["bad"]["self"] is payload["order"][1]["bad"] again'),
    "half a surrogate pair": ("\ud800", 'payload["order"][1]["bad"] holds half a surrogate pair'),
    "an int of 64 bits": (2**63, 'payload["order"][1]["bad"] is an int of 64 bits'),
}

bad = pytest.mark.parametrize(("value", "said"), BAD.values(), ids=BAD)


def carrying(value: object) -> dict:
    return {"id": 1, "order": ["fine", {"bad": value}]}


@pytest.fixture
def handled():
    return []


@pytest.fixture
def app(handled):
    app = Leveret("shop")

    @app.worker("order.placed")
    async def charge(order: dict) -> None:
        handled.append(order)

    return app


@bad
async def test_d15_it_is_refused_by_its_path_and_the_broker_sees_nothing(app, handled, value, said):
    async with TestLeveret(app) as t:
        sent = []
        t.broker.on_publish.append(lambda message, queues: sent.append(message))
        for options in ({}, {"delay": 5}, {"mandatory": False}):
            with pytest.raises(BadPayload) as caught:
                await app.publish("order.placed", carrying(value), **options)
            assert str(caught.value).startswith(f'"order.placed" cannot be written as JSON: {said}')
            assert "Nothing was sent." in str(caught.value)
        await t.advance(seconds=10)
        assert (sent, handled, t.waiting(), t.dead()) == ([], [], [], [])


@bad
async def test_d15_as_one_of_many_it_alone_is_not_sent(app, handled, value, said):
    async with TestLeveret(app) as t:
        payloads = [{"id": 1}, carrying(value), {"id": 3}]
        messages = [Message("order.placed", payload) for payload in payloads]
        with pytest.raises(PublishFailures) as caught:
            await app.publish_many(messages)
        assert list(caught.value.failed) == [1]
        assert said in str(caught.value.failed[1])
        assert len(caught.value.confirmed) == 2
        await t.advance()
        assert [order["id"] for order in handled] == [1, 3]


@bad
async def test_d15_as_a_result_it_is_a_dead_letter_of_its_own_and_its_input_is_done(value, said):
    app = Leveret("shop")

    @app.worker("order.placed")
    async def charge() -> Message:
        return Message("order.charged", carrying(value))

    async with TestLeveret(app) as t:
        await t.publish("order.placed", {})
        [letter] = t.dead()
        assert letter.ending == "unroutable result"
        assert said in letter.reason
        assert [run.outcome for run in t.runs()] == ["done"]
        assert t.published("order.charged") == []


async def test_d15_what_only_looks_odd_arrives_as_it_is(app, handled):
    odd = {"zero": -0.0, "big": 2**53 + 1, "most": 2**63 - 1, "least": -(2**63), "nul": "\x00", "": "no name"}
    async with TestLeveret(app) as t:
        await t.publish("order.placed", odd)
        assert [repr(order) for order in handled] == [repr(odd)]
