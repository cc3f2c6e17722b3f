from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.core.alarm import WARNINGS, Alarm, alert, plain_text, read_alert


def told(**given):
    made = alert(Alarm(**{"code": "c", "title": "t", **given}), state="holds", count=1, first=0.0, last=1.5)
    return made, json.loads(made.body(namespace="shop", host="box-1"))


def test_an_alarm_travels_with_all_that_is_known_of_it():
    made, body = told(code="disk_full", title="no room on /data", about="/data", fields={"free": 0})
    assert made.routing_key == "alarm.CRITICAL.disk_full"
    assert body == {
        "code": "disk_full", "title": "no room on /data", "severity": "CRITICAL", "state": "holds", "about": "/data",
        "fields": {"free": 0}, "count": 1, "first": "1970-01-01T00:00:00.000Z", "last": "1970-01-01T00:00:01.500Z",
        "namespace": "shop", "host": "box-1",
    }  # fmt: skip
    assert read_alert(made.routing_key, made.body(namespace="shop", host="box-1")) == body


@pytest.mark.parametrize("code", sorted(WARNINGS))
def test_the_codes_that_only_warn_are_warnings(code):
    assert told(code=code)[0].routing_key == f"alarm.WARNING.{code}"


def test_whoever_tells_may_say_how_grave_it_is():
    assert told(severity="WARNING")[0].severity == "WARNING"
    assert told(code="retries_late", severity="CRITICAL")[0].severity == "CRITICAL"


@pytest.mark.parametrize("code", ["", "a.b#*.c", "x" * 400, "Ω über", 7, None, "alarm\n"])
def test_any_code_makes_a_key_that_the_broker_takes(code):
    made, _ = told(code=code)
    assert len(made.routing_key.encode()) <= 255
    assert made.routing_key.count(".") == 2
    assert not set(made.routing_key) & set("#* \n")


class Unshowable:
    def __str__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    "value",
    [float("nan"), 1 << 70, b"\xff", {1, 2}, object(), Unshowable(), "\ud800", [{"a": [float("inf")]}], {1: {2}}],
)  # fmt: skip
def test_what_json_cannot_carry_is_told_as_text(value):
    _, body = told(fields={"value": value})
    assert "value" in body["fields"]


def test_a_title_and_fields_of_any_size_are_cut():
    _, body = told(
        title="t" * 10_000, fields={f"n{i}": "x" * 100_000 for i in range(1000)} | {"l": list(range(9999))}
    )
    assert len(json.dumps(body)) < 60_000


def test_fields_that_are_no_mapping_are_told_all_the_same():
    assert told(fields=None)[1]["fields"] == {"fields": None}
    assert told(fields="text")[1]["fields"] == {"fields": "text"}


@pytest.mark.parametrize(
    "text",
    [
        "amqp://shop:ΩΩΩ@rabbit", "x amqp://shop:p/ΩΩΩ@h y", "https://user:ΩΩΩ@host/path?a=b", "'redis://:ΩΩΩ@h'",
        "amqp://u:ΩΩΩ@ΩΩΩ@host", "https://ΩΩΩ@sentry", "x" * 490 + "amqp://u:" + "ΩΩΩ" * 90 + "@h",
    ],
)  # fmt: skip
def test_no_password_of_a_url_is_told(text):
    _, body = told(title=text, about=text, fields={"error": text, "nested": [text], text: 1})
    assert "Ω" not in json.dumps(body, ensure_ascii=False).replace("\\u03a9", "Ω")


def test_a_url_without_a_password_is_told_as_it_is():
    assert (
        plain_text("no answer from https://example.org/a?b=c") == "no answer from https://example.org/a?b=c"
    )


@given(st.text(max_size=40), st.binary(max_size=200))
def test_whatever_lies_on_the_alerts_exchange_can_be_shown(key, body):
    shown = read_alert(key, body)
    assert all(isinstance(shown[name], str) for name in ("code", "title", "severity", "state", "namespace"))


@pytest.mark.parametrize(
    ("key", "body", "code", "title"),
    [
        ("alarm.WARNING.disk", b'{"free": 1}', "disk", "disk"),
        ("feed.down", b"not json", "feed.down", "feed.down"),
        ("x", b'{"code": "c", "fields": [1], "count": "many"}', "c", "c"),
        ("x", b"[" * 100_000, "x", "x"),
    ],
)
def test_what_other_programs_write_there_can_be_shown(key, body, code, title):
    shown = read_alert(key, body)
    assert (shown["code"], shown["title"]) == (code, title)
