"""What `leveret tail` makes of the copies it is handed."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import pytest

from leveret.cli.tail import kinds_of, read
from leveret.core import headers as h
from leveret.core.errors import ConfigError
from leveret.core.properties import Properties
from leveret.core.topology import Names
from leveret.testing.worlds import fake_world

SOFT = {
    "data_type": "soft-failure",
    "data": {
        "data_type": "order.placed",
        "data": {"id": 1},
        "job_id": "job-7c1e4b",
        "retry": {"count": 2, "after": 27.4, "reason": "503", "max": 5},
    },
    "origin": {"type": "charge", "name": "web-1"},
}
HARD = SOFT | {"data_type": "hard-failure", "error": "HardFailure: 0 cents"}


@dataclass
class Copy:
    body: bytes
    exchange: str = "shop.observer"
    routing_key: str = ""
    properties: Properties = field(default_factory=Properties.build)


def seen(body, **more):
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return read(Copy(raw, **more), Names("shop"), fake_world())


def test_a_failure_that_another_program_published_is_told_with_what_its_form_says():
    assert str(seen(SOFT)) == "soft  charge  7c1e4b  attempt 2 of 6, again in 27.4 s: 503"
    assert str(seen(HARD)) == "dead  charge  7c1e4b  attempt 2  HardFailure: 0 cents"


def test_a_copy_of_leverets_own_says_which_run_failed():
    properties = Properties.build(message_id="message-91aa07", headers={h.ATTEMPT: 3})
    assert str(seen(HARD, properties=properties)) == "dead  charge  91aa07  attempt 3  HardFailure: 0 cents"


def test_what_the_broker_dead_lettered_is_told_with_its_reason():
    death = {
        "queue": "shop.charge",
        "reason": "rejected",
        "exchange": "shop.events",
        "routing-keys": ["order.placed"],
    }
    properties = Properties.build(message_id="0f9d33", headers={"x-death": [death]})
    found = seen(b"{}", exchange="shop.events.dlq", properties=properties)
    assert str(found) == "dead  charge  0f9d33  dead-lettered by the broker from shop.charge: rejected"


@pytest.mark.parametrize(
    "body",
    [b"\xff", b"{", b"[" * 100_000, [], "text", {}, {"data_type": ["soft-failure"]}, {"data_type": "soft"}],
)
def test_what_is_no_failure_is_told_as_such(body):
    assert seen(body).kind == "other"


@pytest.mark.parametrize(
    "outer",
    [
        {"data_type": "soft-failure"},
        {"data_type": "soft-failure", "data": 5, "origin": "charge"},
        {
            "data_type": "soft-failure",
            "data": {"retry": {"count": "2", "max": True, "after": None, "reason": 5}},
        },
        {"data_type": "hard-failure", "data": {}, "error": ["?"]},
    ],
)
def test_a_failure_that_lacks_half_of_what_it_should_say_is_shown_all_the_same(outer):
    assert str(seen(outer)).startswith(("soft  –  –", "dead  –  –"))


def test_no_terminal_obeys_what_a_failure_says():
    assert "\x1b" not in str(seen(HARD | {"error": "\x1b[2J", "origin": {"type": "\x1b[31m"}}))


def test_only_takes_kinds_with_a_comma_between_them():
    assert kinds_of("soft, dead") == {"soft", "dead"}
    assert kinds_of(None) > kinds_of("soft,dead")
    with pytest.raises(ConfigError, match="--only hard: expected soft, dead"):
        kinds_of("hard")
