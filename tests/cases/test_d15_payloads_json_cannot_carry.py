"""D15: what JSON cannot carry is refused at publish, by the path of the bad value; the rest passes unchanged."""

from __future__ import annotations

import json
from datetime import datetime
from decimal import Decimal
from uuid import UUID

import pytest

from leveret.core.errors import BadPayload
from leveret.core.payload import encode


def test_d15_the_error_names_type_path_and_value_and_says_what_to_write_instead():
    payload = {"items": [{}, {}, {}, {"due": datetime.fromisoformat("2026-11-30 14:02:00")}]}

    with pytest.raises(BadPayload) as caught:
        encode(payload, type="order.placed")

    assert str(caught.value) == (
        '"order.placed" cannot be written as JSON: payload["items"][3]["due"] is a datetime (2026-11-30 14:02:00). '
        "Nothing was sent.\n"
        'Make it text, payload["items"][3]["due"].isoformat(), or publish a dataclass or pydantic model: '
        "those know dates, decimals and UUIDs."
    )


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (float("nan"), 'payload["deep"][1]["bad"] is nan'),
        (float("inf"), 'payload["deep"][1]["bad"] is inf'),
        (float("-inf"), 'payload["deep"][1]["bad"] is -inf'),
        (b"raw", 'payload["deep"][1]["bad"] is bytes (3 of them)'),
        (bytearray(b"raw"), 'payload["deep"][1]["bad"] is bytearray (3 of them)'),
        (
            datetime.fromisoformat("2026-11-30"),
            'payload["deep"][1]["bad"] is a datetime (2026-11-30 00:00:00)',
        ),
        (Decimal("1.10"), 'payload["deep"][1]["bad"] is a Decimal (1.10)'),
        (UUID(int=1), 'payload["deep"][1]["bad"] is a UUID (00000000-0000-0000-0000-000000000001)'),
        ({1, 2}, 'payload["deep"][1]["bad"] is a set of 2'),
        ({1: "one"}, 'payload["deep"][1]["bad"] has the key 1, an int'),
        ({None: "none"}, 'payload["deep"][1]["bad"] has the key None'),
        (2**63, 'payload["deep"][1]["bad"] is an int of 64 bits'),
        (-(2**63) - 1, 'payload["deep"][1]["bad"] is an int of 64 bits'),
        ("a\ud800", 'payload["deep"][1]["bad"] holds half a surrogate pair (\\ud800 at character 1)'),
        (object(), 'payload["deep"][1]["bad"] is an object'),
    ],
)
def test_d15_each_is_refused_with_its_path(value, said):
    with pytest.raises(BadPayload) as caught:
        encode({"fine": 1, "deep": ["fine", {"bad": value}]}, type="order.placed")

    first, advice = str(caught.value).splitlines()
    assert first.startswith(f'"order.placed" cannot be written as JSON: {said}')
    assert first.endswith("Nothing was sent.")
    assert advice
    str(caught.value).encode()


def test_d15_a_value_that_contains_itself_is_named_with_what_it_contains():
    inner: dict[str, object] = {}
    inner["self"] = [inner]
    twice: list[object] = []
    twice += [twice, twice]

    with pytest.raises(BadPayload, match=r'payload\["a"\]\["self"\]\[0\] is payload\["a"\] again'):
        encode({"a": inner}, type="order.placed")
    with pytest.raises(BadPayload, match=r"payload\[0\] is payload again"):
        encode(twice, type="order.placed")


@pytest.mark.parametrize(
    "wrap", [lambda inner: [inner], lambda inner: {"down": inner}], ids=["lists", "dicts"]
)
def test_d15_500_levels_pass_and_one_more_is_refused(wrap):
    payload: object = "bottom"
    for _ in range(500):
        payload = wrap(payload)

    assert b"bottom" in encode(payload, type="order.placed")
    with pytest.raises(BadPayload, match="lies more than 500 levels deep"):
        encode(wrap(payload), type="order.placed")


def test_d15_a_payload_deeper_than_the_stack_is_refused_in_the_same_words():
    payload: list[object] = []
    for _ in range(5_000):
        payload = [payload]

    with pytest.raises(BadPayload, match="lies more than 500 levels deep"):
        encode(payload, type="order.placed")


def test_d15_what_only_looks_odd_passes_unchanged():
    payload = {
        "": -0.0,
        "big": 2**53 + 1,
        "most": 2**63 - 1,
        "least": -(2**63),
        "same": [[]] * 2,
        "nul": "\x00",
    }

    back = json.loads(encode(payload, type="order.placed"))

    assert repr(back) == repr(payload)
