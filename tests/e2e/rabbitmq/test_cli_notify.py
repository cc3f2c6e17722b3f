"""`leveret notify` as a process of its own: from the alerts exchange to a webhook."""

from __future__ import annotations

import json

import pytest
from tests.webhook import Webhook


@pytest.fixture
def webhook(shop):
    with Webhook() as webhook:
        shop.environ["LEVERET_NOTIFY__URLS"] = webhook.url
        yield webhook


def told(shop, code: str, state: str = "holds") -> None:
    body = json.dumps(
        {"code": code, "title": "no room on /data", "severity": "CRITICAL", "state": state, "count": 3}
    )
    shop.channel.exchange_declare(shop.queue("alerts"), "topic", durable=True)
    shop.channel.basic_publish(shop.queue("alerts"), f"alarm.CRITICAL.{code}", body.encode())


def test_alarms_reach_people_also_those_that_came_while_nobody_carried_them(shop, webhook):
    notify = shop.start("notify")
    notify.wait_for(r"alerts\.notify on amqp://\S+ → json://\*\*\*\.  Ready")
    told(shop, "disk_full")
    assert "disk_full holds" in webhook.wait_for(1)[0]
    assert notify.stop() == 0

    told(shop, "disk_full", "resolved")
    shop.until_ready("alerts.notify", 1)
    webhook.status = 503
    notify = shop.start("notify")
    notify.wait_for(r"json://\*\*\*: refused \(.*503.*\); again in 1 s")
    webhook.status = 200
    webhook.wait_for(3)
    assert "disk_full resolved" in webhook.titles[-1]
    notify.wait_for("sent in")
    assert notify.stop() == 0
    assert shop.ready("alerts.notify") == 0
    assert "SECRET" not in notify.told


def test_the_alarms_of_an_app_reach_people_through_the_broker(shop, webhook):
    notify = shop.start("notify")
    notify.wait_for("Ready")
    worker = shop.start("run")
    worker.wait_for("Ready")
    shop.channel.basic_publish("", shop.queue("retry"), b"no envelope at all")
    for _ in range(102):
        shop.channel.basic_publish("", shop.queue("events.dlq"), b"dead")
    title = webhook.wait_for(1)[0]
    assert title == f"WARNING {shop.namespace}: dead_letters_growing holds"
    assert notify.stop() == 0
    assert worker.stop() == 0
