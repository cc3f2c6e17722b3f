from __future__ import annotations

import io
import json

import pytest

from leveret import BadPayload, ConfigError, Leveret, PublishRefused, PublishTimeout
from leveret.cli import publish
from leveret.cli.console import Console
from leveret.cli.options import Common


@pytest.fixture
def console():
    return Console(Common())


async def test_each_line_becomes_a_message_and_empty_ones_none(console):
    app = Leveret("shop", broker="memory://", store="memory://")
    seen = []

    @app.worker("order.placed")
    async def charge(order: dict) -> None:
        seen.append(order["id"])

    async with app:
        came_to = await publish.send(
            app, "order.placed", iter(['{"id": 1}\n', "\n", '{"id": 2}\n']), {}, console
        )
        await app.run(until_idle=True, signals=False)
    assert (came_to.confirmed, came_to.exit_code) == (2, 0)
    assert sorted(seen) == [1, 2]
    assert str(came_to) == "confirmed 2   unroutable 0   refused 0   unknown 0"


async def test_lines_that_were_not_confirmed_are_told_by_number_and_the_others_go_on(console):
    class App:
        async def publish(self, message):
            match message.payload:
                case 2:
                    raise PublishTimeout("no answer in 10 s")
                case 3:
                    raise PublishRefused("404 NOT_FOUND")

    came_to = await publish.send(App(), "order.placed", iter(["1", "2", "3", "{", "5", "2"]), {}, console)
    assert came_to.exit_code == 6
    assert str(came_to) == "confirmed 2   unroutable 0   refused 2 (lines 3, 4)   unknown 2 (lines 2, 6)"
    assert came_to.words["unknown"].startswith("line 2: no answer")


async def test_what_nobody_takes_is_unroutable(console):
    app = Leveret("shop", broker="memory://", store="memory://")
    async with app:
        came_to = await publish.send(app, "order.placed", iter(["{}"]), {}, console)
    assert (came_to.unroutable, came_to.exit_code) == ([1], 6)


async def test_headers_go_out_with_every_message(console):
    app = Leveret("shop", broker="memory://", store="memory://")
    seen = []

    from leveret import Context

    @app.worker("order.placed")
    async def charge(order: dict, ctx: Context) -> None:
        seen.append(ctx.headers["tenant"])

    async with app:
        headers = publish.headers_of(["tenant=a=b"])
        await publish.send(app, "order.placed", iter(["{}", "{}"]), headers, console)
        await app.run(until_idle=True, signals=False)
    assert seen == ["a=b", "a=b"]


async def test_a_rate_spreads_messages_out(console, monkeypatch):
    slept = []

    async def sleep(seconds):
        slept.append(seconds)

    monkeypatch.setattr(publish.asyncio, "sleep", sleep)
    lines = [line async for line in publish._paced(iter(["1", "2", "3"]), 10.0)]
    assert [number for number, _ in lines] == [1, 2, 3]
    assert [round(seconds, 1) for seconds in slept] == [0.0, 0.1, 0.2]


async def test_standard_input_is_read_line_by_line(console, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("1\n2\n"))
    with publish._lines("-") as (lines, total):
        assert total is None
        assert [line async for line in publish._paced(lines, None)] == [(1, "1\n"), (2, "2\n")]


def test_a_files_lines_are_counted_before_they_are_sent(tmp_path):
    file = tmp_path / "orders.jsonl"
    file.write_text('{"id": 1}\n\n{"id": 2}\n')
    with publish._lines(str(file)) as (lines, total):
        assert total == 2
        assert json.loads(next(lines)) == {"id": 1}


@pytest.mark.parametrize("text", ["tenant", "=42", ""])
def test_a_header_without_name_or_value_is_refused(text):
    with pytest.raises(ConfigError, match="expected K=V"):
        publish.headers_of([text])


@pytest.mark.parametrize("text", ["{", "text", "[" * 100_000])
def test_what_is_no_json_is_refused_with_its_place(text):
    with pytest.raises(BadPayload, match="line 7 is no JSON"):
        publish.payload_of(text, "line 7")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            "order.placed {} --namespace shop --broker memory://",
            "memory:// (--broker) lives inside one process",
        ),
        ("order.placed {}", "no broker"),
        ("order.placed { --namespace shop --broker amqp://h", "PAYLOAD is no JSON"),
        ("order.placed {} --file x.jsonl", "not both"),
        ("order.placed --rate 0", "more than 0"),
        ("order.placed --file nothing.jsonl --namespace shop --broker amqp://h", "No such file"),
        ("order.placed {} --header tenant", "expected K=V"),
        ("order.placed {} --broker amqp://h", "no namespace is named"),
    ],
)
def test_a_wrong_command_line_is_refused_before_anything_is_sent(leveret, arguments, words):
    ended = leveret("publish", *arguments.split())
    assert ended.code == 2
    assert words in ended.err


@pytest.mark.parametrize("command", ["keeper", "retry-worker"])
def test_services_without_workers_need_a_broker_that_two_processes_can_reach(leveret, command):
    ended = leveret(command, "--namespace", "shop", "--broker", "memory://")
    assert ended.code == 2
    assert "lives inside one process" in ended.err
