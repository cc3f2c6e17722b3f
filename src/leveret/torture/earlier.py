"""Workers of the shop as an earlier release of leveret runs them, beside those of today.

It is started as a script by that release's interpreter, so it knows nothing of this package but its own file, and says
nothing that release 0.2.0 did not understand. It writes its part of the record by hand: what it begins and ends, and
what it has in hand meanwhile.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import random
import signal
import sys
import threading
import time
from itertools import count
from typing import Any

from leveret import Context, HardFailure, Leveret, Message, RetryPolicy, SoftFailure


class Shop:
    """The workers of one life.

    Args:
        told: as `leveret.torture.process.Told` has it.
    """

    def __init__(self, told: dict[str, Any]) -> None:
        self.by: str = told["by"]
        self._namespace: str = told["namespace"]
        self._takes: float = told["takes"]
        self._record = os.open(told["record"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._numbers = count(1)
        self.app = Leveret(
            told["namespace"],
            broker=told["broker"],
            store=told["store"],
            # As the shop of today has it.
            retry=RetryPolicy(first_delay=0.2, factor=2, max_delay=2.0, max_attempts=4),
            queue_type=told["queue_type"],
        )
        self._declare()

    def _declare(self) -> None:
        app = self.app

        @app.worker("order.placed", prefetch=20, concurrency=10)
        async def charge(order: dict[str, Any], ctx: Context) -> Message:
            subject = order["subject"]
            await self._handle(order, ctx, [("receipt.made", subject)])
            return Message("receipt.made", {"subject": subject, "fate": order["fate"]})

        @app.worker("order.placed", prefetch=20, concurrency=10)
        async def audit(order: dict[str, Any], ctx: Context) -> None:
            await self._handle(order, ctx, [])

        @app.worker("receipt.made", prefetch=20, concurrency=10)
        async def post(order: dict[str, Any], ctx: Context) -> None:
            await self._handle(order, ctx, [])

    def _note(self, what: str, **more: Any) -> None:
        """Write a line of the record, as `leveret.proof.record` reads it; where it does not get there, end."""
        line = {"what": what, "at": time.clock_gettime(time.CLOCK_BOOTTIME), "by": self.by, **more}
        words = json.dumps(line).encode() + b"\n"
        try:
            written = os.write(self._record, words)
        except OSError as error:
            sys.stderr.write(f"{error}\n")
            os._exit(1)
        if written != len(words):
            sys.stderr.write(
                f"the record took {written} of the {len(words)} bytes of a line: is its disk full?\n"
            )
            os._exit(1)

    async def _handle(self, order: dict[str, Any], ctx: Context, results: list[tuple[str, str]]) -> None:
        """Say what the order says that its handler says."""
        number = next(self._numbers)
        headers, subject, run = ctx.properties.headers, order["subject"], f"{self.by}#{number}"
        step = headers.get("leveret-failure", 0)
        # Before it begins nothing can become of it that would be seen.
        self._note("taken", delivery=run, queue=f"{self._namespace}.{ctx.worker}", subject=subject)
        self._note(
            "began", run=run, worker=ctx.worker, subject=subject, message_id=ctx.message_id, attempt=ctx.attempt,
            step=step, retry_id=ctx.retry_id, replayed=headers.get("leveret-replays", 0),
        )  # fmt: skip
        words = order["fate"].get(ctx.worker) or ["done"]
        word, _, seconds = words[min(step, len(words) - 1)].partition(":")
        if word == "deadly":
            self._note(
                "struck", fault=f"deadly {self.by}", kind="deadly message", target=self.by, process=True
            )
            os.kill(os.getpid(), signal.SIGKILL)
        await asyncio.sleep(random.expovariate(1 / self._takes))
        outcome = word if word in {"done", "hard"} else "soft"
        again_in = float(seconds) if seconds else None
        # What it publishes now and acks after that is not seen from here: all of it stays in hand for the ledger.
        if outcome != "done":
            self._note(
                "sent", publish=run, exchange="", routing_key=f"{self._namespace}.retry", subject=subject
            )
        for type, result in results if outcome == "done" else ():
            self._note(
                "sent", publish=run, exchange=f"{self._namespace}.events", routing_key=type, subject=result
            )
        self._note(
            "ended", run=run, outcome=outcome, again_in=again_in, counted=word != "busy",
            results=results if outcome == "done" else [],
        )  # fmt: skip
        match word:
            case "soft":
                raise SoftFailure("the shop says: not yet", retry_after=again_in)
            case "busy":
                raise SoftFailure("the shop says: busy", retry_after=again_in, counted=False)
            case "hard":
                raise HardFailure("the shop says: never")
            case "raise":
                raise KeyError("something that nobody foresaw")

    async def live(self) -> None:
        """Open the app, say that it is ready, and work until asked to stop."""
        # No command comes before it is ready, but the end of its input may.
        threading.Thread(target=_obey, daemon=True).start()
        while True:
            try:
                await self.app.open()
            except Exception as error:  # noqa: BLE001 - broker or store may be away; it tries until they are back
                sys.stderr.write(f"{self.by} cannot be opened yet: {error}\n")
                await asyncio.sleep(0.5)
            else:
                break
        async with self.app:
            sys.stdout.write("{}\n")
            sys.stdout.flush()
            await self.app.run(retry_worker=False, keeper=False)


def _obey() -> None:
    """Answer every command; none of them concerns it. When the input ends, so does the process."""
    for _ in sys.stdin:
        sys.stdout.write("{}\n")
        sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    # PR_SET_PDEATHSIG, as in leveret.torture.child, and what follows.
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != int(sys.argv[2]):
        os._exit(1)
    asyncio.run(Shop(json.loads(sys.argv[1])).live())
