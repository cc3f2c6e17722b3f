from __future__ import annotations

import enum
import inspect
import json
import math
import re
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, Generic, NotRequired, TypedDict, TypeVar
from uuid import UUID

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.core.errors import BadPayload, WorkerDefinition
from leveret.core.payload import Undecodable, check_content, decoder, encode

T = TypeVar("T")


class Size(enum.Enum):
    SMALL = "s"


class Colour(enum.StrEnum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


@dataclass
class Line:
    sku: str
    price: Decimal = Decimal("0.00")


@dataclass
class Order:
    id: UUID
    due: datetime
    size: Size
    lines: list[Line]
    day: date = date(2026, 11, 30)
    wait: timedelta = timedelta(minutes=2)
    tags: set[str] = field(default_factory=set)
    per_year: dict[int, int] = field(default_factory=dict)
    seal: bytes = b"\xff"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cents:
    cents: int

    def __post_init__(self) -> None:
        if self.cents < 0:
            raise ValueError(f"{self.cents} cents are fewer than none")
        if self.cents == 404:
            raise KeyError("no such price")


class Ticket(TypedDict):
    id: int
    note: NotRequired[str]


class Address(pydantic.BaseModel):
    url: pydantic.AnyUrl
    zip_code: str = pydantic.Field(alias="zipCode")


class Invoice(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True)

    due: datetime
    total: Decimal
    to: Address | None = None


class Numbers(pydantic.RootModel[list[int]]):
    pass


@pydantic.dataclasses.dataclass
class Parcel:
    to: pydantic.AnyUrl
    grams: int


@dataclass
class Envelope:
    address: Address
    stamps: int


@dataclass
class Page(Generic[T]):
    items: list[T]


class Opaque:
    pass


@dataclass
class HoldsOpaque:
    thing: Opaque


@dataclass
class Tree:
    name: str
    children: list[Tree] = field(default_factory=list)


order = Order(
    id=UUID(int=7),
    due=datetime.fromisoformat("2026-11-30T14:02:00+00:00"),
    size=Size.SMALL,
    lines=[Line("a", Decimal("1.10"))],
    tags={"new"},
    per_year={2026: 3},
)
address = Address.model_validate({"url": "http://endpoint.test/", "zipCode": "10115"})

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=4)
    ),
    max_leaves=20,
)


def refused(payload: Any) -> str:
    with pytest.raises(BadPayload) as caught:
        encode(payload, type="order.placed")
    return str(caught.value)


def reason(annotation: Any, body: bytes) -> str:
    with pytest.raises(Undecodable) as caught:
        decoder(annotation)(body)
    assert caught.value.reason == str(caught.value)
    return caught.value.reason


# Writing and reading back


@given(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), json_values, max_size=6))
def test_whatever_json_can_carry_comes_back_equal_and_of_the_same_types(payload):
    body = encode(payload, type="t")

    back = decoder(dict)(body)

    assert repr(back) == repr(payload)
    assert json.loads(body) == payload


@given(json_values, st.sampled_from([None, 1]), st.booleans())
def test_json_that_other_programs_wrote_is_read_as_the_standard_parser_reads_it(value, indent, ascii_only):
    body = json.dumps({"value": value}, indent=indent, ensure_ascii=ascii_only).encode()

    assert repr(decoder(dict)(body)) == repr(json.loads(body))


@given(st.binary(max_size=40) | st.text('{}[]",:\\u0d8x1-+.eE \n', max_size=30).map(str.encode))
def test_no_body_brings_anything_but_an_object_or_a_reason(body):
    said = ""
    value = None
    try:
        value = decoder(dict)(body)
    except Undecodable as error:
        said = error.reason

    assert (value == json.loads(body)) if not said else "\0" not in said


@pytest.mark.parametrize("payload", [b"\x00\xff", bytearray(b"\x00\xff"), memoryview(b"\x00\xff")])
def test_bytes_are_published_as_they_are_and_come_back_as_they_came(payload):
    body = encode(payload, type="t")

    assert body == b"\x00\xff"
    assert decoder(bytes)(body) == b"\x00\xff"


@pytest.mark.parametrize(
    ("payload", "body"),
    [
        (None, b"null"),
        ((1, "two"), b'[1,"two"]'),
        ({"": {"": []}}, b'{"":{"":[]}}'),
        (OrderedDict(a=Colour.RED, b=Level.HIGH), b'{"a":"red","b":3}'),
        ({Colour.RED: True}, b'{"red":true}'),
        ({"text": 'é\x00"\\'}, b'{"text":"\xc3\xa9\\u0000\\"\\\\"}'),
    ],
)
def test_plain_values_and_their_subclasses_are_written_as_compact_json(payload, body):
    assert encode(payload, type="t") == body


def test_a_dataclass_knows_dates_decimals_uuids_enums_sets_and_bytes_both_ways():
    assert decoder(Order)(encode(order, type="t")) == order


def test_a_model_is_written_by_its_aliases_and_finds_them_again():
    invoice = Invoice(due=order.due, total=Decimal("1.10"), to=address)

    body = encode(invoice, type="t")

    assert b'"zipCode":"10115"' in body
    assert decoder(Invoice)(body) == invoice


@pytest.mark.parametrize(
    "payload", [Parcel("http://endpoint.test/", 20), Envelope(address, 2), Numbers([1, 2])]
)
def test_pydantic_types_in_any_form_come_back_as_they_were(payload):
    assert decoder(type(payload))(encode(payload, type="t")) == payload


def test_dataclasses_and_models_may_lie_in_a_dict_or_a_list():
    body = encode({"lines": [Line("a"), address]}, type="t")

    assert json.loads(body)["lines"] == [
        {"sku": "a", "price": "0.00"},
        {"url": "http://endpoint.test/", "zipCode": "10115"},
    ]


def test_the_deepest_payload_that_is_accepted_is_also_read():
    deep: Any = "bottom"
    for _ in range(499):
        deep = [deep]
    payload = {"down": deep}

    assert decoder(dict)(encode(payload, type="t")) == payload
    assert "more than 500 levels" in refused({"down": [deep]})


# What is refused, beyond the rows of tests/cases


@pytest.mark.parametrize(
    ("payload", "path", "advice"),
    [
        (Tree("root", [Tree("a"), Tree(float("nan"))]), "payload.children[1].name is nan", "Send None"),  # type: ignore[arg-type]
        ({"tree": [Tree("a\ud800")]}, 'payload["tree"][0].name holds half a surrogate', "Replace it"),
        (HoldsOpaque(Opaque()), "payload.thing is an Opaque", "Give the field a type"),
        ({"a": Size.SMALL}, 'payload["a"] is a Size (SMALL)', 'payload["a"].value'),
        ({"a": timedelta(1)}, 'payload["a"] is a timedelta', 'payload["a"].total_seconds()'),
        ({"a": Order}, 'payload["a"] is the class Order', "A payload is a dict"),
        ({"a": Opaque()}, 'payload["a"] is an Opaque', "A payload is a dict"),
        (Opaque(), "payload is an Opaque", "A payload is a dict"),
        ({"a": {date(2026, 1, 1): 1}}, 'payload["a"] has the key datetime.date(2026, 1, 1)', "str(key)"),
        ({"\ud800": 1}, 'payload has the key "\\ud800"', "decoded wrongly"),
        (Line({float("inf")}), 'payload["sku"][0] is inf', "Send None"),  # type: ignore[arg-type]
        ({"a": 10**5000}, 'payload["a"] is an int of 16610 bits', 'str(payload["a"])'),
    ],
)
def test_a_bad_value_is_named_by_its_path_with_a_way_out(payload, path, advice):
    text = refused(payload)

    assert path in text
    assert advice in text.splitlines()[1]


def test_nan_within_a_model_is_refused_by_the_path_of_its_field():
    class Measure(pydantic.BaseModel):
        values: list[float]

    assert "payload.values[1] is nan" in refused(Measure(values=[1.0, math.nan]))


def test_a_model_whose_serializer_raises_says_what_it_raised():
    class Torn(pydantic.BaseModel):
        seal: bytes

    # Which of pydantic's errors it is depends on its version.
    assert re.search(r"Torn raised \w+Error: .*invalid utf-8", refused(Torn(seal=b"\xff")))


def test_a_text_without_end_does_not_make_an_endless_error():
    text = refused({"k" * 10**6: {"x" * 10**6: Opaque()}})

    assert len(text) < 2500


# Fitting


@pytest.mark.parametrize(
    "annotation", [inspect.Parameter.empty, Any, dict, dict[str, Any], Mapping[str, Any]]
)
def test_a_handler_that_names_no_fields_gets_the_whole_object(annotation):
    assert decoder(annotation)(b'{"id": 1, "more": null}') == {"id": 1, "more": None}


def test_fields_that_the_type_does_not_name_are_ignored():
    assert decoder(Cents)(b'{"cents":5,"more":1}') == Cents(cents=5)
    assert decoder(Ticket)(b'{"id":5,"more":1}') == {"id": 5}


def test_generic_and_recursive_dataclasses_and_typed_dicts_of_any_key_are_fitted():
    assert decoder(Page[int])(b'{"items":[1]}') == Page([1])
    assert decoder(Tree)(b'{"name":"a","children":[{"name":"b"}]}') == Tree("a", [Tree("b")])
    assert decoder(dict[int, str])(b'{"1":"one"}') == {1: "one"}


@pytest.mark.parametrize(
    ("annotation", "body", "said"),
    [
        (Cents, b'{"cents":"5"}', "the body does not fit Cents: Expected `int`, got `str` - at `$.cents`"),
        (Cents, b"{}", "the body does not fit Cents: Object missing required field `cents`"),
        (Cents, b'{"cents":-1}', "the body does not fit Cents: -1 cents are fewer than none"),
        (Cents, b'{"cents":404}', "the body does not fit Cents: KeyError: 'no such price'"),
        (Ticket, b'{"id":null}', "the body does not fit Ticket: Expected `int`, got `null` - at `$.id`"),
        (dict[str, int], b'{"a":"1"}', "the body does not fit dict[str, int]: Expected `int`, got `str`"),
        (Page[int], b'{"items":["1"]}', "Expected `int`, got `str` - at `$.items[0]`"),
        (Invoice, b'{"due":5,"total":"1"}', "the body does not fit Invoice: due: Input should be"),
        (
            Envelope,
            b'{"address":{"url":"x","zipCode":"1"},"stamps":1}',
            "address.url: Input should be a valid URL",
        ),
        (Numbers, b'["a","b","c","d"]', "; and 1 more"),
        (Cents, b"[1]", "the body is an array, and a JSON object is required"),
        (Invoice, b"[1]", "the body is an array, and a JSON object is required"),
    ],
)
def test_a_body_of_another_shape_says_where_and_what_was_expected(annotation, body, said):
    assert said in reason(annotation, body)


def test_keys_that_come_twice_are_found_for_models_as_well():
    assert "twice" in reason(Address, b'{"url":"http://a.test/","zipCode":"1","zipCode":"2"}')


def test_whatever_a_validator_raises_is_a_reason():
    class Rude(pydantic.BaseModel):
        id: int

        @pydantic.field_validator("id")
        @classmethod
        def fall_over(cls, value: int) -> int:
            raise LookupError("no\0thing")

    assert reason(Rude, b'{"id":1}') == "the body does not fit Rude: LookupError: no\\x00thing"


def test_a_long_value_is_left_out_of_a_models_reason():
    text = reason(Address, json.dumps({"url": "x" * 5000, "zipCode": ["y" * 5000]}).encode())

    assert "zipCode: Input should be a valid string" in text
    assert len(text) < 1000
    assert "yyy" not in text


@pytest.mark.parametrize(
    "annotation", [int, str, list[int], Opaque, object, None, "Order", Order | None, Order | Cents, [1]]
)
def test_a_type_that_is_no_payload_is_refused_at_declaration(annotation):
    with pytest.raises(WorkerDefinition, match="take a dict, a TypedDict, a dataclass,"):
        decoder(annotation)


def test_a_dataclass_with_a_field_that_json_cannot_fill_is_refused_at_declaration():
    with pytest.raises(WorkerDefinition, match=r"cannot be HoldsOpaque: .*Opaque"):
        decoder(HoldsOpaque)


def test_a_type_that_is_defined_too_late_is_told_at_declaration():
    @dataclass
    class Early:
        later: NotYet  # type: ignore[name-defined]  # noqa: F821

    class EarlyModel(pydantic.BaseModel):
        later: NotYet  # type: ignore[name-defined]  # noqa: F821

    for annotation in (Early, EarlyModel):
        with pytest.raises(
            WorkerDefinition, match=r"'NotYet' is not defined\. Define that type at the top level"
        ):
            decoder(annotation)


# What a message says of its content


@pytest.mark.parametrize(
    ("content_type", "content_encoding"),
    [
        (None, None),
        ("", ""),
        ("application/json", "utf-8"),
        ("Application/JSON; Charset=UTF-8", "identity"),
        ('application/cloudevents+json; charset="utf-8"', None),
        ("text/json", None),
        ("text/plain; charset=us-ascii", None),
        ("application/octet-stream", "UTF-8"),
    ],
)
def test_json_under_its_names_and_under_none_is_decoded(content_type, content_encoding):
    check_content(content_type, content_encoding)


@pytest.mark.parametrize(
    ("content_type", "content_encoding", "named"),
    [
        ("application/json", "gzip", 'content-encoding "gzip"'),
        (None, "br\0", 'content-encoding "br\\u0000"'),
        ("application/x-python-serialize", None, 'content-type "application/x-python-serialize"'),
        ("application/msgpack", "utf-8", 'content-type "application/msgpack"'),
        ("application/json; charset=utf-16", None, 'content-type "application/json; charset=utf-16"'),
        ("text/plain;charset=latin-1", None, "JSON travels as UTF-8"),
    ],
)
def test_content_that_says_it_is_no_plain_json_is_not_guessed_at(content_type, content_encoding, named):
    with pytest.raises(Undecodable) as caught:
        check_content(content_type, content_encoding)

    assert named in str(caught.value)
    assert "take bytes" in str(caught.value)
