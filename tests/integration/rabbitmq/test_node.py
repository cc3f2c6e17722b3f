"""Where no RabbitMQ can be had, tests that need one are skipped by name; in CI they fail."""

from __future__ import annotations

import pytest
from tests import rabbitmq_node


@pytest.mark.parametrize(("ci", "outcome"), [(None, pytest.skip.Exception), ("true", pytest.fail.Exception)])
def test_a_test_that_needs_rabbitmq_says_how_to_get_it(monkeypatch, ci, outcome):
    monkeypatch.setattr(rabbitmq_node, "installed", lambda: False)
    if ci is None:
        monkeypatch.delenv("CI", raising=False)
    else:
        monkeypatch.setenv("CI", ci)
    with pytest.raises(outcome, match="needs RabbitMQ: make services"):
        rabbitmq_node.need_rabbitmq()
