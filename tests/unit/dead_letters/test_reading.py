from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from leveret.core import envelope
from leveret.core import headers as h
from leveret.core.dead_letter import DeadLetter
from leveret.core.envelope import Cause, Where
from leveret.core.message import DIRECT_REPLY, Received, wrap
from leveret.core.properties import Properties
from leveret.dead_letters.reading import read


@dataclass
class Lying:
    """A delivery from the dead-letter queue."""

    body: bytes
    properties: Properties
    exchange: str = ""
    routing_key: str = "shop.events.dlq"


def kept(body: bytes, properties: Properties) -> DeadLetter:
    delivery: Any = Lying(body, properties)
    return read(delivery, namespace="shop", events="shop.events", now=5.0, new_id=lambda: "minted")


REQUESTS = [{"headers": {h.TIMEOUT_MS: 5000}}, {"reply_to": DIRECT_REPLY}]


@pytest.mark.parametrize("frame_max", [131_072, 500], ids=["plain", "wrapped"])
@pytest.mark.parametrize("request_", REQUESTS, ids=["timeout", "direct reply"])
def test_an_rpc_request_is_known_as_one_also_where_it_had_to_be_wrapped(
    request_: dict[str, Any], frame_max: int
):
    headers = {"wide": "x" * 400} | request_.get("headers", {})
    properties = Properties.build(message_id="m", **(request_ | {"headers": headers}))
    failed = Received(queue="q", exchange="e", routing_key="k", body=b"{}", properties=properties)
    sent = envelope.dead_letter(
        failed, Cause(reason="no", worker="w", at=1.0), "hard failure", letter_id="l", retry_id="r", attempts=1,
        where=Where(frame_max=frame_max),
    )  # fmt: skip
    assert kept(*sent).rpc


def test_what_nobody_waits_for_is_no_rpc_request():
    assert not kept(b"{}", Properties.build(message_id="m", reply_to="answers")).rpc


@pytest.mark.parametrize("why", ["rejected", "expired", "maxlen"])
@pytest.mark.parametrize(
    ("queue", "is_request"),
    [
        ("shop.intent.req", True),
        ("shop.live-1.intent.req", True),
        ("shop.charge", False),
        ("shop.momentum", False),
        ("other.intent.req", False),
    ],
)
def test_what_the_broker_dead_lettered_from_the_queue_of_a_channel_is_a_request_whoever_sent_it(
    queue: str, is_request: bool, why: str
):
    death = {"queue": queue, "reason": why, "exchange": "", "routing-keys": [queue], "count": 1}
    plain = Properties.build(message_id="m", reply_to="answers", headers={"x-death": [death]})
    letter = kept(b"{}", plain)
    assert (letter.rpc, letter.queue) == (is_request, queue)


def test_a_foreign_message_that_is_wrapped_is_kept_as_the_message_itself():
    original = Properties.build(message_id="m", type="order.placed", headers={"wide": "x" * 400})
    letter = kept(*wrap(b"payload", original, {}, frame_max=300))
    assert (letter.ending, letter.body, letter.properties, letter.type) == (
        "foreign", b"payload", original.raw, "order.placed",
    )  # fmt: skip
