from __future__ import annotations

import json
from collections import Counter

import pytest

from leveret.demo.plan import LONG, MOST_HICCUPS, SHORT, plan


def webhooks(seed, count):
    """Each webhook's answers and timeout, without the two odd ones."""
    found = []
    for body in plan(seed, count, "http://h"):
        try:
            read = json.loads(body)
        except ValueError:
            continue
        if "url" in read["endpoint"]:
            found.append((read["endpoint"]["url"].removeprefix("http://h/").split("/")[1:], read["timeout"]))
    return found


def test_a_seed_gives_the_same_plan_again_and_another_seed_another():
    assert plan(7, 200, "http://h") == plan(7, 200, "http://h")
    assert plan(7, 200, "http://h") != plan(8, 200, "http://h")


@pytest.mark.parametrize("count", [1, 2, 60, 1000])
def test_one_body_is_no_json_and_one_has_no_url(count):
    bodies = plan(7, count, "http://h")
    assert len(bodies) == count + 2 == len(set(bodies))
    assert len(webhooks(7, count)) == count
    assert sum(body.startswith(b'{"endpoint": {}') for body in bodies) == 1


def test_every_webhook_ends_with_success_or_is_gone():
    for answers, _ in webhooks(7, 1000):
        assert answers == ["410"] or (answers[-1] == "200" and len(answers) <= MOST_HICCUPS + 1)


def test_only_webhooks_that_get_no_answer_have_little_patience():
    for answers, timeout in webhooks(7, 1000):
        assert timeout == (SHORT if "none" in answers else LONG)


def test_a_thousand_webhooks_meet_every_kind_of_answer():
    answers = Counter(answer for each, _ in webhooks(7, 1000) for answer in each)
    assert answers["200"] > 950
    assert answers["503"] > answers["429"] > answers["none"] > answers["410"] > 0
