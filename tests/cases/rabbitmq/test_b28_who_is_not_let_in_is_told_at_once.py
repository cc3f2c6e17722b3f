"""B28: a wrong password, vhost or TLS is an error at the start, in the broker's words, and is not tried again."""

from __future__ import annotations

import asyncio
import logging
import time

import pytest
from tests.cases.rabbitmq.shop import Shop

from leveret.core.errors import AccessRefused

SECRET = "s3cr3t-never-shown"


@pytest.mark.parametrize(
    ("url", "words"),
    [
        (f"amqp://guest:{SECRET}@127.0.0.1:{{port}}", "ACCESS_REFUSED"),
        ("amqp://guest:guest@127.0.0.1:{port}/nowhere", "NOT_ALLOWED"),
        ("amqp://nobody:" + SECRET + "@127.0.0.1:{port}", "ACCESS_REFUSED"),
        ("amqps://guest:guest@127.0.0.1:{port}", "TLS"),
    ],
)
async def test_b28_the_app_does_not_start_and_says_why_in_the_brokers_words(shop: Shop, caplog, url, words):
    caplog.set_level(logging.DEBUG)
    app = shop.app(broker=url.format(port=shop.broker.proxy.port))
    started = time.monotonic()
    with pytest.raises(AccessRefused, match=words) as caught:
        await app.open()
    assert time.monotonic() - started < 10
    assert SECRET not in str(caught.value) + caplog.text + repr(app)
    # One try, and no more behind the caller's back.
    assert shop.broker.proxy.accepted == 1
    assert shop.broker.proxy.connections <= 1


async def test_b28_a_user_without_rights_on_the_queues_is_told_which(shop: Shop):
    user, ctl = shop.namespace, shop.broker.node.ctl
    await asyncio.to_thread(ctl, "add_user", user, SECRET)
    await asyncio.to_thread(ctl, "set_permissions", user, "^$", ".*", ".*")
    with pytest.raises(AccessRefused, match="set_permissions") as caught:
        await shop.app(login=f"{user}:{SECRET}").open()
    assert shop.namespace in str(caught.value)
    assert "403" in str(caught.value)
