"""Bodies as B15 and A15 of the cases name them, at the codec: each a reason, quickly, and nothing crashes."""

from __future__ import annotations

import gzip
import json
import sys
import time
from dataclasses import dataclass
from typing import Any

import pydantic
import pytest

from leveret.core.payload import Undecodable, decoder, encode


@dataclass
class Order:
    a: Any


class Model(pydantic.BaseModel):
    a: Any


readers = pytest.mark.parametrize("annotation", [dict, Order, Model])


@readers
@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "the body is empty"),
        (
            b"{",
            "the body is not JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)",
        ),
        (b"null", "the body is null, and a JSON object is required"),
        (b"[1]", "the body is an array, and a JSON object is required"),
        (b'"text"', "the body is text, and a JSON object is required"),
        (b"true", "the body is true or false, and a JSON object is required"),
        (b"1", "the body is a number, and a JSON object is required"),
        (b"\xff", "the body is not UTF-8: byte 0xff at offset 0"),
        (b'{"a":"\xed\xa0\x80"}', "the body is not UTF-8: byte 0xed at offset 6"),
        (b"\xff\xfe", "the body looks like UTF-16 or UTF-32, and JSON travels as UTF-8"),
        ('{"a":1}'.encode("utf-16"), "the body looks like UTF-16 or UTF-32, and JSON travels as UTF-8"),
        ('{"a":1}'.encode("utf-16-le"), "the body looks like UTF-16 or UTF-32, and JSON travels as UTF-8"),
        ('{"a":1}'.encode("utf-32-be"), "the body looks like UTF-16 or UTF-32, and JSON travels as UTF-8"),
        (b'\xef\xbb\xbf{"a":1}', "the body begins with a byte order mark, and JSON travels without one"),
        (b'{"a":NaN}', "the body holds NaN, which is no number in JSON"),
        (b'{"a":-Infinity}', "the body holds -Infinity, which is no number in JSON"),
        (b'{"a":1e400}', "the body holds 1e400, a number beyond what a float holds"),
        (b'{"a":1,"a":1}', 'the body has the key "a" twice in one object'),
        (b'{"a": {"b": 1, "c": 2, "b": 3}}', 'the body has the key "b" twice in one object'),
        (b'{"a":{"\\u0000":1,"\\u0000":2}}', 'the body has the key "\\u0000" twice in one object'),
        (b'{"\\ud800":1,"\\ud800":2}', 'the body has the key "\\ud800" twice in one object'),
        (b'{"a":1} x', "the body is not JSON: Extra data: line 1 column 9 (char 8)"),
        (b'{"a":"\n"}', "the body is not JSON: Invalid control character at: line 1 column 7 (char 6)"),
        (
            gzip.compress(b'{"a":1}', mtime=0),
            "the body is compressed with gzip, and leveret decodes plain JSON only; take bytes",
        ),
        (b"[" * 100_000, "the body is nested too deeply"),
        (b'{"a":' * 100_000, "the body is nested too deeply"),
        (b"[" * 16_000_000, "the body is nested too deeply"),
    ],
    ids=lambda value: repr(value[:24]) if isinstance(value, bytes) else "",
)
def test_a_body_that_is_no_json_object_says_why(annotation, body, reason):
    read = decoder(annotation)

    began = time.perf_counter()
    with pytest.raises(Undecodable) as caught:
        read(body)

    assert str(caught.value) == reason
    # Milliseconds, in fact; seconds would stall the worker.
    assert time.perf_counter() - began < 2
    assert read(b'{"a":1}'), "the next message is normal"


@readers
@pytest.mark.parametrize("sign", ["", "-"])
def test_a_number_of_5000_digits_is_a_reason(annotation, sign):
    with pytest.raises(Undecodable, match=f"more than {sys.get_int_max_str_digits()} digits"):
        decoder(annotation)(f'{{"a":{sign}{"1" * 5000}}}'.encode())


@readers
@pytest.mark.parametrize(
    ("body", "value"),
    [
        (b'{"a":"x\\u0000y"}', "x\x00y"),
        (b'{"a":"\\ud800"}', "\ud800"),
        (b'{"a":123456789012345678901234567890}', 123456789012345678901234567890),
        (b'{"a":-0.0}', -0.0),
        (b' \r\n{ "a"\t:\n1 } \n', 1),
        (b'{"a":"http://a: \\"b\\": {"}', 'http://a: "b": {'),
    ],
)
def test_json_that_is_only_unusual_is_read(annotation, body, value):
    read = decoder(annotation)(body)

    assert repr(read["a"] if annotation is dict else read.a) == repr(value)


@readers
def test_what_publish_accepts_at_its_deepest_every_handler_reads(annotation):
    payload = {"a": json.loads("[" * 499 + "]" * 499)}

    read = decoder(annotation)(encode(payload, type="t"))

    assert (read if annotation is dict else vars(read)) == payload


@readers
@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
def test_a_valid_body_of_16_megabytes_is_simply_read(annotation, separators):
    payload = {"a": ["x" * 1_000_000] * 16}

    value = decoder(annotation)(json.dumps(payload, separators=separators).encode())

    assert (value if annotation is dict else vars(value)) == payload


def test_a_stack_that_is_nearly_used_up_is_a_reason_and_no_crash():
    read = decoder(dict)
    body = encode({"a": json.loads("[" * 400 + "]" * 400)}, type="t")

    def under(frames: int) -> Any:
        return under(frames - 1) if frames else read(body)

    assert under(100)["a"]
    # The first Python whose C code counts its depth apart from Python's frames still has room there.
    if sys.version_info < (3, 12):
        with pytest.raises(Undecodable, match="nested too deeply"):
            under(sys.getrecursionlimit() - 400)
    else:
        assert under(sys.getrecursionlimit() - 400)["a"]


def test_a_shortage_of_memory_is_a_reason_too(monkeypatch):
    def exhausted(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("leveret.core.payload.msgspec.json.decode", exhausted)
    monkeypatch.setattr("leveret.core.payload._EXACT", type("Parser", (), {"decode": exhausted}))

    with pytest.raises(Undecodable, match=r"too large for the memory that is left \(8 bytes\)"):
        decoder(dict)(b'{"a":1 }')
