"""The plan: which webhooks are published, and how the endpoint will treat each. A seed gives the same one again."""

from __future__ import annotations

import json
import random
from typing import Final

from leveret.demo.endpoint import NONE

#: The share of webhooks whose endpoint is gone for good.
GONE: Final = 0.012
#: The chance of each further answer that is none of success, and how many there are at most for one webhook: with six
#: tries, two are left for a machine that is slow itself.
HICCUP: Final = 0.36
MOST_HICCUPS: Final = 3
#: What such an answer is, and how often.
HICCUPS: Final = {"503": 72, "429": 17, NONE: 11}
#: Seconds that an answer may take: short only where the plan has none, so that a slow machine does not time out.
SHORT: Final = 0.5
LONG: Final = 15.0


def plan(seed: int, count: int, url: str) -> list[bytes]:
    """What to publish, in order: *count* webhooks for the endpoint at *url*, one without a URL, one that is no JSON.

    Example:
        >>> plan(7, 1000, "http://h") == plan(7, 1000, "http://h"), len(plan(7, 1000, "http://h"))
        (True, 1002)
    """
    chance = random.Random(seed)
    bodies = [_webhook(number, _answers(chance), url) for number in range(1, count + 1)]
    # Early, so that the one that fails every time has spent its tries when the others end.
    bodies.insert(count // 8, _body({}, number=0, timeout=LONG))
    bodies.insert(count // 4, b'{"endpoint": {"url": "http://127.0.0.1/cut-o')
    return bodies


def _answers(chance: random.Random) -> list[str]:
    if chance.random() < GONE:
        return ["410"]
    answers: list[str] = []
    while len(answers) < MOST_HICCUPS and chance.random() < HICCUP:
        answers += chance.choices(list(HICCUPS), list(HICCUPS.values()))
    return [*answers, "200"]


def _webhook(number: int, answers: list[str], url: str) -> bytes:
    endpoint = {"url": f"{url}/{number}/{'/'.join(answers)}"}
    return _body(endpoint, number=number, timeout=SHORT if NONE in answers else LONG)


def _body(endpoint: dict[str, str], *, number: int, timeout: float) -> bytes:
    event = {"type": "order.paid", "order": number}
    return json.dumps({"endpoint": endpoint, "event": event, "timeout": timeout}).encode()
