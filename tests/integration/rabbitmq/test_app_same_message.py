"""What comes back is the same message, whatever its properties hold, also where they would misroute or not fit (P5)."""

from __future__ import annotations

import asyncio
import struct
import uuid
from datetime import UTC, datetime, timedelta

from pika import BasicProperties, BlockingConnection, ConnectionParameters, PlainCredentials
from tests.rabbitmq_app import QueueRow
from tests.rabbitmq_scene import until

from leveret import Context, HardFailure, Message, PublishRefused, RetryPolicy, RMQExchangeConfig, SoftFailure
from leveret.core.message import Outgoing
from leveret.core.properties import Properties

SOON = RetryPolicy(first_delay=0.1, jitter=0)


#: What is left for properties in a header frame of 128 KiB.
ROOM = 131_072 - 8 - 12


def entry(name: str, kind: bytes, value: bytes) -> bytes:
    """An entry of a header table, as AMQP 0-9-1 writes it."""
    return bytes((len(name),)) + name.encode() + kind + value


def sized(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


#: Each of the types that RabbitMQ lets in, and values that a client which decodes and encodes again would change.
NESTED = entry("deeper", b"F", sized(entry("list", b"A", sized(b"t\x01V" + b"b\x80")))) + entry(
    "void", b"V", b""
)
ENTRIES = (
    entry("float", b"f", struct.pack(">f", 0.1)),
    entry("double", b"d", struct.pack(">d", 1e-300)),
    entry("decimal", b"D", b"\x02" + struct.pack(">I", 12345)),
    # A timestamp is in seconds; whoever takes it for milliseconds is far beyond the year 9999.
    entry("milliseconds", b"T", struct.pack(">Q", 1_764_000_000_123)),
    entry("void", b"V", b""),
    entry("octet", b"b", b"\xff"),
    entry("short", b"s", b"\x80\x00"),
    entry("int", b"I", struct.pack(">i", -1)),
    entry("long", b"l", struct.pack(">q", -(2**63))),
    entry("bytes", b"x", sized(b"\x00\xff")),
    entry("text", b"S", sized("schön".encode())),
    entry("no text", b"S", sized(b"\xff\xfe")),
    entry("nested", b"F", sized(NESTED)),
    entry("", b"t", b"\x01"),
)


def failing(app, runs, **options):
    """A worker that fails softly at first and hard then, and keeps what it was given each time."""

    @app.worker("order.placed", retry=SOON, **options)
    async def charge(body: bytes, ctx: Context) -> None:
        runs.append((ctx.attempt, body, ctx.properties, dict(ctx.headers)))
        if ctx.attempt == 1:
            raise SoftFailure("the card service answered 503")
        raise HardFailure("410 gone")


async def only_letter(app, *, after=()):
    """The dead letter that comes last, whole."""
    async with asyncio.timeout(20):
        while True:
            letters = [one for one in (await app.dead_letters.list()).items if one.id not in after]
            if letters:
                return await app.dead_letters.get(letters[0].id)
            await asyncio.sleep(0.05)


async def test_values_of_every_type_survive_a_retry_a_dead_letter_and_a_replay_byte_for_byte(place, connect):
    outside = await connect()
    app, runs = place.app(), []
    failing(app, runs)
    raw = struct.pack(">H", 0x2000 | 0x1000 | 0x0080) + sized(b"".join(ENTRIES)) + b"\x02" + b"\x01a"
    async with app.running():
        await outside.send(Outgoing(f"{place.namespace}.events", "order.placed", b"\x00{", Properties(raw)))
        first = await only_letter(app)
        report = await app.dead_letters.replay(first.id, reset_attempts=True)
        assert report.done == 1
        second = await only_letter(app, after={first.id})
    assert [attempt for attempt, *_ in runs] == [1, 2, 1, 2]
    for _, body, properties, _ in runs:
        assert body == b"\x00{"
        assert all(entry in properties.raw for entry in ENTRIES)
        assert (properties.message_id, properties.delivery_mode) == ("a", 2)
    delivered = runs[0][2].raw
    # From 4.0 on RabbitMQ itself sorts a table by its names.
    assert delivered == raw if place.broker.version < (4,) else len(delivered) == len(raw)
    for letter in (first, second):
        assert letter.body == b"\x00{"
        # Nothing but what the message bore.
        assert letter.properties == delivered


async def test_130_900_bytes_of_headers_survive_a_retry_a_dead_letter_and_a_replay(place):
    app, runs = place.app(), []
    failing(app, runs)
    headers = {"big": "x" * 130_880, "small": 1}
    async with app.running():
        place.publish(b"body", "order.placed", headers=headers, message_id="a", delivery_mode=2)
        first = await only_letter(app)
        assert (await app.dead_letters.replay(first.id)).done == 1
        second = await only_letter(app, after={first.id})
        assert app._open.parts.transport.state == "connected"
    raw = runs[0][2].raw
    # With leveret's headers it would not fit a frame, and the broker would end the connection over it.
    assert 130_900 <= len(raw) <= ROOM
    assert [(attempt, body) for attempt, body, *_ in runs] == [(1, b"body"), (2, b"body")] * 2
    assert all(seen == headers for *_, seen in runs)
    assert (first.body, first.properties) == (b"body", raw) == (second.body, second.properties)


async def test_a_header_cc_copies_once_and_a_retry_reaches_nobody_else(place):
    app, runs, audited = place.app(), [], []
    failing(app, runs)

    @app.worker("order.audited")
    async def audit(body: bytes, ctx: Context) -> None:
        audited.append(ctx.message_id)

    async with app.running():
        place.publish(b"x", "order.placed", headers={"CC": ["order.audited"], "mine": 1}, message_id="a")
        letter = await only_letter(app)
        await until(lambda: audited)
        assert (await app.dead_letters.replay(letter.id)).done == 1
        await only_letter(app, after={letter.id})
        await place.until_rows(audit=QueueRow(0, 0, 1), charge=QueueRow(0, 0, 1), retry=QueueRow(0, 0, 1))
    assert audited == ["a"]
    assert [attempt for attempt, *_ in runs] == [1, 2, 1, 2]
    assert runs[0][3] == {"CC": ["order.audited"], "mine": 1}
    # Kept for handlers to see, under a name that no broker obeys.
    assert all(seen == {"leveret-cc": ["order.audited"], "mine": 1} for *_, seen in runs[1:])


async def test_the_user_id_of_another_program_is_no_reason_to_refuse_a_retry(place):
    app, runs = place.app(), []
    failing(app, runs)
    node, name = place.broker.node, f"user-{uuid.uuid4().hex[:8]}"
    node.ctl("add_user", name, "secret")
    node.ctl("set_permissions", name, ".*", ".*", ".*")
    async with app.running():
        other = BlockingConnection(
            ConnectionParameters("127.0.0.1", node.port, credentials=PlainCredentials(name, "secret"))
        )
        channel = other.channel()
        channel.confirm_delivery()
        channel.basic_publish(
            f"{place.namespace}.events", "order.placed", b"x", BasicProperties(user_id=name), mandatory=True
        )
        other.close()
        letter = await only_letter(app)
    assert [(attempt, properties.user_id) for attempt, _, properties, _ in runs] == [(1, name), (2, None)]
    assert runs[1][3] == {"leveret-user-id": name}
    assert "410 gone" in letter.reason


async def test_one_publish_to_a_missing_exchange_among_50_good_ones_harms_none_of_them(place):
    app, ran = place.app(), set()

    @app.worker("order.placed")
    async def charge(order: dict) -> None:
        ran.add(order["id"])

    async with app.running():
        publisher = app._open.publisher
        bad = Message("order.placed", {"id": 25}, id="to nowhere")
        out = publisher.compose(bad, bad.id)
        publishes = [app.publish("order.placed", {"id": number}) for number in range(50)]
        publishes[25:25] = [
            publisher.deliver(Outgoing("no-such-exchange", "order.placed", out.body, out.properties), bad)
        ]
        answers = await asyncio.gather(*publishes, return_exceptions=True)
        refused = answers.pop(25)
        assert isinstance(refused, PublishRefused)
        assert (refused.code, refused.message) == (404, bad)
        assert "no exchange 'no-such-exchange'" in str(refused)
        assert all(isinstance(id, str) for id in answers)
        await until(lambda: ran == set(range(50)))
        assert app._open.parts.transport.state == "connected"


async def test_one_message_whose_exchange_has_gone_when_it_is_due_among_50_good_ones_is_kept_as_blocked(
    place,
):
    app, ran = place.app(), set()
    gone = f"{place.namespace}.gone"

    @app.worker("order.placed")
    async def charge(order: dict) -> None:
        ran.add(order["id"])

    async with app.running():
        parts = app._open.parts
        ours = parts.exchange
        due = datetime.now(UTC) + timedelta(seconds=1.5)
        # Nobody declares this exchange: that it is missing is found out when the message is due.
        parts.exchange = RMQExchangeConfig(gone)
        await app.publish("order.placed", {"id": 50}, id="to nowhere", at=due)
        parts.exchange = ours
        await asyncio.gather(*(app.publish("order.placed", {"id": number}, at=due) for number in range(50)))
        await until(lambda: ran == set(range(50)))
        async with asyncio.timeout(10):
            # The 50 are taken out of the store, and it is marked.
            while [entry.state for entry in (await app.retries.list()).items] != ["blocked"]:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        [entry] = (await app.retries.list()).items
        assert entry.message_id == "to nowhere"
        assert gone in entry.state_reason
        assert parts.transport.state == "connected"
