"""Call channels: a request goes out, its reply comes to whoever sent it, and to nobody else."""

# ruff: noqa: D102, S101
# The name of a test is its sentence, and its asserts are what it is made of.

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from leveret.core.errors import BrokerUnreachable, PublishError, PublishRefused, PublishTimeout, Unroutable
from leveret.core.message import DIRECT_REPLY, Outgoing
from leveret.core.properties import Properties
from leveret.ports import CallChannel, Transport
from leveret.testing.transport_contract.scene import PATIENCE, REPLIES_RETURNED, Inbox, Scene, code, message


class Replies:
    """Collects what one call channel hears."""

    def __init__(self) -> None:
        self.heard: list[tuple[str | None, bytes]] = []
        self.returned: list[str] = []
        self.gone: list[PublishError] = []
        self._came = asyncio.Event()

    async def channel(self, transport: Transport) -> CallChannel:
        """A channel that tells here."""
        return await transport.call_channel(on_reply=self._reply, on_return=self._return, on_gone=self._end)

    def _reply(self, body: bytes, properties: Properties) -> None:
        self.heard.append((properties.correlation_id, body))
        self._came.set()

    def _return(self, name: str) -> None:
        self.returned.append(name)
        self._came.set()

    def _end(self, error: PublishError) -> None:
        self.gone.append(error)
        self._came.set()

    async def until(self, number: int) -> list[tuple[str | None, bytes]]:
        """Return all replies once there are so many."""
        await self._until(lambda: len(self.heard) >= number)
        return self.heard

    async def until_returned(self, number: int) -> list[str]:
        """Return the names of all that came back, once there are so many."""
        await self._until(lambda: len(self.returned) >= number)
        return self.returned

    async def until_gone(self) -> PublishError:
        """Return what the channel tells of its end."""
        await self._until(lambda: bool(self.gone))
        return self.gone[0]

    async def _until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not condition():
                self._came.clear()
                await self._came.wait()


def request(queue: str, body: bytes = b"", *, id: str = "one") -> Outgoing:
    """A request to *queue* whose reply comes to its channel."""
    return message(queue, body, reply_to=DIRECT_REPLY, correlation_id=id)


async def serve(transport: Transport, inbox: Inbox, number: int) -> None:
    """Answer so many requests with their own bodies."""
    for delivery in await inbox.until(number):
        found = delivery.properties
        assert found.reply_to is not None
        reply = message(found.reply_to, delivery.body, mandatory=False, correlation_id=found.correlation_id)
        await transport.send(reply)
        delivery.ack()


class Calling:
    """What a call channel promises."""

    async def test_a_reply_comes_to_the_channel_that_sent_its_request_and_to_no_other(
        self, scene: Scene
    ) -> None:
        queue = await scene.queue()
        server, client = await scene.connect(), await scene.connect()
        inbox = Inbox()
        await server.consume(queue, inbox, prefetch=5)
        first, second = Replies(), Replies()
        one, two = await first.channel(client), await second.channel(client)
        one.send(request(queue, b"of the first"))
        two.send(request(queue, b"of the second"))
        await serve(server, inbox, 2)
        assert await first.until(1) == [("one", b"of the first")]
        assert await second.until(1) == [("one", b"of the second")]

    async def test_a_request_bears_an_address_that_names_its_channel_and_is_otherwise_as_it_was_sent(
        self, scene: Scene
    ) -> None:
        queue = await scene.queue()
        transport = await scene.connect()
        channel = await Replies().channel(transport)
        sent = message(
            queue, b"{}", reply_to=DIRECT_REPLY, correlation_id="one", headers={"a": 1.5}, expiration="60000"
        )
        inbox = Inbox()
        await transport.consume(queue, inbox, prefetch=5)
        channel.send(sent)
        came = (await inbox.until(1))[0].properties
        assert came.reply_to is not None
        assert came.reply_to.startswith(f"{DIRECT_REPLY}.")
        assert (came.correlation_id, came.headers, came.expiration, came.delivery_mode) == (
            "one", {"a": 1.5}, "60000", 2,
        )  # fmt: skip

    async def test_of_requests_those_that_reach_no_queue_come_back_by_their_names(self, scene: Scene) -> None:
        queue, nobody = await scene.queue(), scene.name("nobody")
        transport = await scene.connect()
        replies = Replies()
        channel = await replies.channel(transport)
        names = [channel.send(request(each)) for each in (nobody, queue, nobody)]
        assert len(set(names)) == 3
        assert await replies.until_returned(2) == [names[0], names[2]]
        assert replies.gone == []

    async def test_a_request_that_is_not_mandatory_may_reach_nobody_untold(self, scene: Scene) -> None:
        transport = await scene.connect()
        replies = Replies()
        channel = await replies.channel(transport)
        channel.send(message(scene.name("nobody"), mandatory=False))
        named = channel.send(request(scene.name("nobody, either")))
        assert await replies.until_returned(1) == [named]

    async def test_a_request_that_the_broker_does_not_have_ends_its_channel_and_no_other(
        self, scene: Scene
    ) -> None:
        queue = await scene.queue()
        transport = await scene.connect()
        bad, good = Replies(), Replies()
        wrong, right = await bad.channel(transport), await good.channel(transport)
        wrong.send(message("somewhere", exchange=scene.name("no exchange")))
        ended = await bad.until_gone()
        assert code(ended) == 404
        inbox = Inbox()
        await transport.consume(queue, inbox, prefetch=5)
        right.send(request(queue, b"fine"))
        await serve(transport, inbox, 1)
        assert await good.until(1) == [("one", b"fine")]

    async def test_what_fits_no_frame_is_not_sent_and_harms_nobody(self, scene: Scene) -> None:
        queue = await scene.queue()
        transport = await scene.connect()
        channel = await Replies().channel(transport)
        with pytest.raises(PublishRefused):
            channel.send(message(queue, headers={"much": "x" * transport.frame_max}))
        with pytest.raises(PublishRefused):
            channel.send(message("k" * 256))
        channel.send(request(queue, b"fine"))
        await scene.lies(transport, queue, ready=1)

    async def test_a_reply_whose_caller_is_gone_is_dropped_and_its_sender_unharmed(
        self, scene: Scene
    ) -> None:
        queue = await scene.queue()
        server, client = await scene.connect(), await scene.connect()
        inbox, replies = Inbox(), Replies()
        await server.consume(queue, inbox, prefetch=5)
        channel = await replies.channel(client)
        channel.send(request(queue))
        await inbox.until(1)
        channel.leave()
        await client.close()
        async with asyncio.timeout(PATIENCE):
            await serve(server, inbox, 1)
            await server.send(message(queue))
            await inbox.until(2)
        assert (replies.heard, replies.gone) == ([], [])

    async def test_a_mandatory_reply_comes_back_for_such_an_address_is_no_queue(self, scene: Scene) -> None:
        scene.needs(REPLIES_RETURNED)
        queue = await scene.queue()
        transport = await scene.connect()
        channel = await Replies().channel(transport)
        inbox = Inbox()
        await transport.consume(queue, inbox, prefetch=5)
        channel.send(request(queue))
        to = (await inbox.until(1))[0].properties.reply_to
        with pytest.raises(Unroutable):
            await transport.send(message(to or ""))

    async def test_a_cut_ends_the_channel_for_good_and_the_next_one_works(self, scene: Scene) -> None:
        queue = await scene.queue()
        transport = await scene.connect()
        before, after = Replies(), Replies()
        channel = await before.channel(transport)
        channel.send(request(queue, b"before"))
        await scene.lies(transport, queue, ready=1)
        await scene.broker.drop_connections()
        assert isinstance(await before.until_gone(), PublishTimeout)
        with pytest.raises(PublishRefused):
            channel.send(request(queue, b"too late"))
        async with asyncio.timeout(PATIENCE):
            (await after.channel(transport)).send(request(queue, b"after"))
            await transport.ready()
        inbox = Inbox()
        await transport.consume(queue, inbox, prefetch=5)
        await serve(transport, inbox, 2)
        # The first one's address is gone with its channel.
        assert await after.until(1) == [("one", b"after")]
        assert (before.heard, len(before.gone)) == ([], 1)

    async def test_a_transport_that_is_closed_ends_its_channels_and_gives_no_more(self, scene: Scene) -> None:
        transport = await scene.connect()
        replies = Replies()
        await replies.channel(transport)
        await transport.close()
        await replies.until_gone()
        with pytest.raises(BrokerUnreachable):
            await replies.channel(transport)
