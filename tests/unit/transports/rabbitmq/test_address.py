"""What a connection asks its broker for (T1)."""

from __future__ import annotations

import pytest

from leveret.core.urls import parse_broker
from leveret.transports.rabbitmq.address import _parameters


@pytest.mark.parametrize(("query", "seconds"), [("", 30), ("?heartbeat=5", 5)])
def test_the_heartbeat_is_30_s_unless_the_url_says_otherwise(query, seconds):
    url = parse_broker(f"amqp://shop:secret@rabbit-1{query}", "a test")
    [(host, port)] = url.nodes

    asked = _parameters(url, host, port, None, "publishes")

    assert (asked.heartbeat, asked.host, asked.port) == (seconds, "rabbit-1", 5672)
    # Shown in the broker's list of connections.
    assert "secret" not in str(asked.client_properties)
