"""B15: a body that cannot be read is one dead letter, with its reason and its bytes, and the next message is normal.

The handler is not called, nothing is tried again, no worker stalls: neither over nothing, text that is no JSON, another
encoding, numbers and keys that JSON leaves open, nor over 16 megabytes of open brackets. A valid 16 MB body is simply
handled.
"""

from __future__ import annotations

import gzip
import json
import time
from dataclasses import dataclass
from typing import Any

import pytest
from tests.cases.scene import foreign, from_outside

from leveret import Leveret
from leveret.testing import TestLeveret

PLAIN = b'{"id": 1}'

HOSTILE = {
    "0 bytes": (b"", {}, "the body is empty"),
    "an open brace": (b"{", {}, "the body is not JSON: Expecting property name"),
    "null": (b"null", {}, "the body is null, and a JSON object is required"),
    "an array": (b"[1]", {}, "the body is an array, and a JSON object is required"),
    "text": (b'"text"', {}, "the body is text, and a JSON object is required"),
    "invalid UTF-8": (b'{"id": "\xff"}', {}, "the body is not UTF-8: byte 0xff at offset 8"),
    "two bytes of UTF-16": (b"\xff\xfe", {}, "the body looks like UTF-16"),
    "a byte order mark": (b"\xef\xbb\xbf" + PLAIN, {}, "the body begins with a byte order mark"),
    "UTF-16": (PLAIN.decode().encode("utf-16"), {}, "the body looks like UTF-16"),
    "UTF-16 without a mark": (PLAIN.decode().encode("utf-16-be"), {}, "the body looks like UTF-16"),
    "NaN": (b'{"id": NaN}', {}, "the body holds NaN, which is no number in JSON"),
    "100,000 nested arrays": (b"[" * 100_000, {}, "the body is nested too deeply"),
    "100,000 nested objects": (b'{"id": ' * 100_000, {}, "the body is nested too deeply"),
    "a number of 5,000 digits": (b'{"id": ' + b"9" * 5_000 + b"}", {}, "more than 4300 digits"),
    "a key that comes twice": (b'{"id": 1, "id": 2}', {}, 'the body has the key "id" twice in one object'),
    "16 MB of open brackets": (b"[" * 16_000_000, {}, "the body is nested too deeply"),
    "gzip that says it is plain": (gzip.compress(PLAIN, mtime=0), {}, "the body is compressed with gzip"),
    "plain that says it is gzip": (PLAIN, {"content_encoding": "gzip"}, 'content-encoding "gzip"'),
    "a content type nobody knows": (PLAIN, {"content_type": "application/x-no"}, 'content-type "application/x-no"'),
}  # fmt: skip


@dataclass
class Order:
    id: int


@pytest.mark.parametrize("annotation", [dict, Order])
@pytest.mark.parametrize(("body", "properties", "reason"), HOSTILE.values(), ids=HOSTILE)
async def test_b15_it_is_one_dead_letter_and_the_next_message_is_normal(body, properties, reason, annotation):
    app = Leveret("shop")
    handled: list[Any] = []

    @app.worker("order.placed", prefetch=1)
    async def charge(order: annotation) -> None:
        handled.append(order)

    async with TestLeveret(app) as t:
        began = time.perf_counter()
        await from_outside(t.broker, foreign(body, message_id="o-1", **properties), foreign(PLAIN))
        await t.advance()
        assert time.perf_counter() - began < 5

        [letter] = t.dead()
        assert (letter.ending, letter.worker, letter.queue, letter.attempts, letter.message_id) == (
            "undecodable", "charge", "shop.charge", 0, "o-1",
        )  # fmt: skip
        assert reason in letter.reason
        assert letter.body == body
        assert handled == [{"id": 1} if annotation is dict else Order(1)]
        assert [run.outcome for run in t.runs()] == ["dead", "done"]
        assert t.waiting() == []


async def test_b15_among_many_of_them_every_normal_message_is_handled():
    app = Leveret("shop")
    handled: list[int] = []

    @app.worker("order.placed")
    async def charge(order: dict) -> None:
        handled.append(order["id"])

    async with TestLeveret(app) as t:
        for number, (body, properties, _) in enumerate(HOSTILE.values()):
            await from_outside(t.broker, foreign(body, **properties), foreign(b'{"id": %d}' % number))
        await t.advance()
        assert sorted(handled) == list(range(len(HOSTILE)))
        assert sorted(letter.body for letter in t.dead()) == sorted(body for body, *_ in HOSTILE.values())


async def test_b15_a_valid_body_of_16_megabytes_is_simply_handled():
    app = Leveret("shop")
    handled: list[int] = []
    text = "x" * 1000
    body = json.dumps({"id": 1, "lines": [text] * 16_000}).encode()
    assert len(body) > 16_000_000

    @app.worker("order.placed")
    async def charge(order: dict) -> None:
        handled.append(sum(map(len, order["lines"])))

    async with TestLeveret(app) as t:
        await from_outside(t.broker, foreign(body))
        await t.advance()
        assert handled == [16_000_000]
        assert t.dead() == []


@pytest.mark.parametrize(("body", "properties", "reason"), HOSTILE.values(), ids=HOSTILE)
async def test_b15_a_worker_that_takes_bytes_gets_every_body_as_it_came(body, properties, reason):
    app = Leveret("shop")
    handled: list[bytes] = []

    @app.worker("order.placed")
    async def charge(body: bytes) -> None:
        handled.append(body)

    async with TestLeveret(app) as t:
        await from_outside(t.broker, foreign(body, **properties))
        await t.advance()
        assert handled == [body]
        assert t.dead() == []
