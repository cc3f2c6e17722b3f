"""B12: no queue is neither durable nor exclusive, no prefetch is a channel's, and the broker calls nothing deprecated.

From 3.13 on RabbitMQ warns of such things in its log. That is looked at here, and after all tests that a node was for;
and on 4 once with a node that is told to refuse them.
"""

from __future__ import annotations

import asyncio

import pytest
from pika.exceptions import ConnectionClosedByBroker
from tests.cases.rabbitmq.shop import Shop
from tests.e2e.shell import Shell
from tests.rabbitmq_log import nothing_given_up_was_used
from tests.rabbitmq_node import running_node
from tests.rabbitmq_scene import harness_of, needs_version, until

from leveret import HardFailure, SoftFailure

#: What RabbitMQ 4 gives up: refused, as a later version does. A setting that a version does not know is passed over.
REFUSED = "".join(
    f"deprecated_features.permit.{feature} = false\n"
    for feature in (
        "transient_nonexcl_queues",
        "global_qos",
        "management_metrics_collection",
        "ram_node_type",
    )
)


async def test_b12_whatever_an_app_and_its_command_line_declare_lasts_or_is_somebodys_own(
    shop: Shop, tmp_path
):
    node = shop.broker.node
    app = shop.app()
    ran = []

    @app.worker("order.placed")
    async def charge(kind: bytes) -> None:
        ran.append(kind)
        if kind == b"soft" and ran.count(kind) == 1:
            raise SoftFailure("503")
        if kind == b"hard":
            raise HardFailure("410")

    @app.worker("order.shipped", queue_type="quorum")
    async def ship(kind: bytes) -> None:
        ran.append(kind)

    shell = Shell(tmp_path)
    where = ("--broker", shop.url(proxied=False), "--namespace", shop.namespace)
    try:
        async with app, app.running(), asyncio.timeout(60):
            shell.start("tail", *where)
            for kind in (b"good", b"soft", b"hard"):
                await app.publish("order.placed", kind)
            await app.publish("order.shipped", b"late", delay=0.1)
            await until(lambda: sorted(ran) == [b"good", b"hard", b"late", b"soft", b"soft"])
            rows: list[list[str]] = []
            while not any(name.startswith(shop.name("tail.")) for name, *_ in rows):
                listed = await asyncio.to_thread(
                    node.ctl, "list_queues", "--no-table-headers", "name", "durable", "exclusive"
                )
                rows = [row.split("\t") for row in listed.splitlines() if row.startswith(shop.namespace)]
            assert len(rows) == 7
            assert [row for row in rows if "true" not in row[1:]] == []
            if shop.broker.version < (4,):
                # Later ones do not list it, and warn of it.
                channels = [""]
                # In the place of one that is just being closed the tool prints a fault of its own.
                while not all(each.isdigit() for each in channels):
                    listed = await asyncio.to_thread(
                        node.ctl, "list_channels", "--no-table-headers", "global_prefetch_count"
                    )
                    channels = listed.split()
                assert set(channels) == {"0"}
    finally:
        shell.clean_up()
    await asyncio.to_thread(nothing_given_up_was_used, node)


async def test_b12_on_4_a_node_that_refuses_all_that_is_given_up_takes_all_that_an_app_does(
    shop: Shop, tmp_path
):
    needs_version(shop.broker, 4, why="its node can be told to refuse what later ones have no more")
    with running_node(REFUSED) as node:
        async with harness_of(node) as harness:
            with pytest.raises(ConnectionClosedByBroker, match="541"), harness.channel() as channel:
                channel.queue_declare("lasts-not-and-is-nobodys")
            strict = Shop(harness, tmp_path)
            app = strict.app()
            ran = []

            @app.worker("order.placed")
            async def charge(kind: bytes) -> None:
                ran.append(kind)
                if kind == b"soft" and ran.count(kind) == 1:
                    raise SoftFailure("503")
                if kind == b"hard":
                    raise HardFailure("410")

            @app.worker("order.shipped", queue_type="quorum")
            async def ship(kind: bytes) -> None:
                ran.append(kind)

            @app.rpc("price")
            async def price() -> dict[str, int]:
                return {"cents": 500}

            async with app, app.running(), asyncio.timeout(60):
                for kind in (b"good", b"soft", b"hard"):
                    await app.publish("order.placed", kind)
                await app.publish("order.shipped", b"late", delay=0.1)
                assert await app.call("price") == {"cents": 500}
                await until(lambda: sorted(ran) == [b"good", b"hard", b"late", b"soft", b"soft"])
                while not (dead := await app.dead_letters.list()):  # noqa: ASYNC110 - nobody tells
                    await asyncio.sleep(0.02)
                await app.dead_letters.replay(dead[0].id)
                await until(lambda: ran.count(b"hard") == 2)
