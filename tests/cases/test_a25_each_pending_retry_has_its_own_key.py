"""A25: two workers that fail one message, and two messages under one id, never overwrite each other's retry.

One message of a fanout exchange reaches `bill` and `ship`; both fail softly, for 5 s and for 9 s. There are two rows,
each comes back to the worker that failed it, at its own time. The same without a message id, and with one id that two
different messages bear.
"""

from __future__ import annotations

from collections import Counter

import pytest
from tests.cases.scene import foreign, from_outside

from leveret import Context, Leveret, RMQExchangeConfig, SoftFailure
from leveret.testing import TestLeveret

WAITS = {"bill": 5, "ship": 9}


@pytest.mark.parametrize(
    "messages",
    [
        [foreign(b'{"order": 1}', message_id="o-1")],
        [foreign(b'{"order": 1}')],
        [foreign(b'{"order": 1}', message_id="same"), foreign(b'{"order": 2}', message_id="same")],
        # Nothing at all tells these two apart.
        [foreign(b'{"order": 1}'), foreign(b'{"order": 1}')],
    ],
    ids=["one message", "without an id", "one id on two messages", "twins without an id"],
)
async def test_a25_each_comes_back_to_the_worker_that_failed_it_at_its_own_time(messages):
    app = Leveret("shop", exchange=RMQExchangeConfig("shop.events", type="fanout"))
    back = []

    def fail_once(worker: str):
        async def handle(ctx: Context) -> None:
            if ctx.attempt == 1:
                raise SoftFailure(f"not now, says {worker}", retry_after=WAITS[worker])
            back.append((round(t.clock.monotonic(), 3), worker, ctx.body))

        return handle

    for worker in WAITS:
        app.worker(name=worker)(fail_once(worker))

    async with TestLeveret(app) as t:
        await from_outside(t.broker, *messages)
        await t.advance()
        waiting = t.waiting()
        assert Counter((entry.worker, entry.due_in, entry.reason) for entry in waiting) == Counter(
            {(name, wait, f"not now, says {name}"): len(messages) for name, wait in WAITS.items()}
        )
        assert len({entry.key for entry in waiting}) == 2 * len(messages)
        await t.advance(seconds=20)
        assert Counter(back) == Counter(
            (wait, name, message.body) for name, wait in WAITS.items() for message in messages
        )
        assert t.waiting() == []
