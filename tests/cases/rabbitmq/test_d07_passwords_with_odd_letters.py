"""D07: a password of any letters gets in, percent-encoded, and is shown nowhere; the error says how to write it."""

from __future__ import annotations

import asyncio
import logging
from urllib.parse import quote

import pytest
from tests.cases.rabbitmq.shop import Shop

from leveret import Leveret
from leveret.core.errors import AccessRefused, ConfigError
from leveret.sync import RabbitMQTransport, TransportUnavailableError

PASSWORD = "p@s/s#w%:$ é"


@pytest.fixture
async def login(shop: Shop) -> str:
    """A user of that password, who may do everything in the usual vhost, and in one whose name has a slash."""
    user, ctl = shop.namespace, shop.broker.node.ctl
    await asyncio.to_thread(ctl, "add_user", user, PASSWORD)
    await asyncio.to_thread(ctl, "add_vhost", f"{user}/b")
    for vhost in ("/", f"{user}/b"):
        await asyncio.to_thread(ctl, "set_permissions", "-p", vhost, user, ".*", ".*", ".*")
    return f"{user}:{quote(PASSWORD, safe='')}"


async def test_d07_it_gets_in_percent_encoded_on_any_vhost_and_appears_nowhere(
    shop: Shop, login: str, caplog
):
    caplog.set_level(logging.DEBUG)
    shown = []
    for path in ("", "/", "//", "/%2F", f"/{shop.namespace}%2Fb"):
        app = shop.app(login=login, query=path)
        async with app:
            shown += [repr(app), app._open.parts.transport.display, repr(app._open.parts.transport)]
            vhost = app._open.parts.transport._url.vhost
            assert vhost == (f"{shop.namespace}/b" if "b" in path else "/")
            await shop.cut(app)
            await shop.until_connected(app)
    with pytest.raises(AccessRefused) as caught:
        await shop.app(login=login, query="/nowhere").open()
    shown += [str(caught.value), repr(caught.value), caplog.text]
    for secret in (PASSWORD, quote(PASSWORD, safe=""), quote(PASSWORD)):
        assert not [text for text in shown if secret in text]


def test_d07_unencoded_it_is_told_how_to_write_it_and_not_shown():
    with pytest.raises(ConfigError) as caught:
        Leveret("shop", broker=f"amqp://user:{PASSWORD}@localhost")
    said = str(caught.value)
    assert "%" in said
    for part in (PASSWORD, "p@s", "s#w", "w%:"):
        assert part not in said


async def test_d07_a_sync_transport_gets_in_with_it_too_and_shows_it_nowhere(shop: Shop, login: str, caplog):
    caplog.set_level(logging.DEBUG)
    port = shop.broker.proxy.port
    right = RabbitMQTransport(f"amqp://{login}@127.0.0.1:{port}", namespace=shop.namespace)
    wrong = RabbitMQTransport(f"amqp://{login}x@127.0.0.1:{port}", namespace=shop.namespace)
    await asyncio.to_thread(right.declare_topology)
    with pytest.raises(TransportUnavailableError) as caught:
        await asyncio.to_thread(wrong.declare_topology)
    shown = [repr(right), repr(wrong), str(caught.value), repr(caught.value), caplog.text]
    for transport in (right, wrong):
        await asyncio.to_thread(transport.close)
    for secret in (PASSWORD, quote(PASSWORD, safe=""), quote(PASSWORD)):
        assert not [text for text in shown if secret in text]
