"""B12: no queue is neither durable nor exclusive, no prefetch is a channel's, and the broker calls nothing deprecated.

From 3.13 on RabbitMQ warns of such things in its log; 4.3 refuses the prefetch, and the queue where it is told to.
"""

from __future__ import annotations

import asyncio

from tests.cases.rabbitmq.shop import Shop
from tests.e2e.shell import Shell
from tests.rabbitmq_scene import until

from leveret import HardFailure, SoftFailure


async def test_b12_whatever_an_app_and_its_command_line_declare_lasts_or_is_somebodys_own(
    shop: Shop, tmp_path
):
    node = shop.broker.node
    # Other tests declare queues behind leveret's back that this broker warns of.
    before = node.log.count("is deprecated")
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
    assert node.log.count("is deprecated") == before
