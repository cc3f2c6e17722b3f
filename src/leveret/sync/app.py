"""SyncApp: `app.sync`, for Flask, Django and scripts: publish and call without an event loop of one's own."""

from __future__ import annotations

import asyncio
import copy
import os
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping
from concurrent.futures import Future, wait
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar

from leveret.core.errors import LeveretError, TransportUnavailableError
from leveret.core.message import Message
from leveret.core.seconds import Seconds
from leveret.sync.portal import Portal, inherited

if TYPE_CHECKING:
    from leveret.app import Leveret

R = TypeVar("R")

#: Seconds between looks whether a loop that is not ours still runs.
_LOOK: Final = 0.5


class SyncApp:
    """What an app offers to threads: a connection of its own, opened at the first use, on a thread of its own.

    Any thread may use it; it works after a `fork` (gunicorn's preload, multiprocessing) with a connection of the
    child's own, in `atexit`, in `__del__`, and inside somebody else's event loop, which it holds up like any other
    blocking call.

    An app that is open on `memory://` in this process is used itself: what lives in one loop is reached nowhere else.

    Args:
        app: whose settings, workers and names it has.

    Example:
        ```
        @flask.post("/orders")
        def order():
            return {"id": app.sync.publish("order.placed", flask.request.json)}
        ```
    """

    def __init__(self, app: Leveret) -> None:
        self._app: Final = app
        self._portal: Final = Portal("leveret-sync", owner="app.sync", forked=self._forked)
        #: The same app once more, whose open half belongs to the portal's loop alone; made there, at the first use.
        self._twin: Leveret | None = None

    def _forked(self) -> None:
        twin, self._twin = self._twin, None
        inherited(twin)
        opened = None if twin is None else twin._open  # noqa: SLF001 - this is the other half of an app
        if opened is not None:
            opened.parts.transport.discard()

    def __repr__(self) -> str:
        return f"<sync face of {self._app!r}>"

    def publish(
        self,
        type: str | Message,
        payload: Any = None,
        /,
        *,
        id: str | None = None,
        headers: Mapping[str, Any] | None = None,
        correlation_id: str | None = None,
        priority: int | None = None,
        expiration: Seconds | None = None,
        delay: Seconds | None = None,
        at: datetime | None = None,
        mandatory: bool = True,
        timeout: Seconds | None = None,
    ) -> str:
        """As `Leveret.publish`: returns the message's id once the broker has it.

        Raises:
            LeveretError: as `Leveret.publish` and `Leveret.open` say; or it was called on its own I/O thread.
            TransportUnavailableError: `close` was called before, or the interpreter is ending.

        Example:
            app.sync.publish("order.placed", {"id": 1})
        """
        return self._run(
            lambda app: app.publish(
                type,
                payload,
                id=id,
                headers=headers,
                correlation_id=correlation_id,
                priority=priority,
                expiration=expiration,
                delay=delay,
                at=at,
                mandatory=mandatory,
                timeout=timeout,
            )
        )

    def publish_many(self, messages: Iterable[Message], /, *, timeout: Seconds | None = None) -> list[str]:
        """As `Leveret.publish_many`. The messages are taken on this thread, before the first one goes out.

        Raises:
            PublishFailures: some were not confirmed.
            LeveretError: as `publish` has it.
        """
        given = list(messages)
        return self._run(lambda app: app.publish_many(given, timeout=timeout))

    def call(
        self,
        channel: str,
        payload: Any = None,
        /,
        *,
        correlation_id: str | None = None,
        timeout: Seconds | None = None,
    ) -> dict[str, Any]:
        """As `Leveret.call`: sends a request, and returns its answer.

        Raises:
            LeveretError: as `Leveret.call` and `Leveret.open` say; or it was called on its own I/O thread.
            TransportUnavailableError: as `publish` has it.

        Example:
            app.sync.call("price", {"id": 1}, timeout=2)
        """
        return self._run(
            lambda app: app.call(channel, payload, correlation_id=correlation_id, timeout=timeout)
        )

    def close(self) -> None:
        """Disconnect, within some seconds. Idempotent; nobody has to: at the end of the process it goes with it."""
        self._portal.close(self._farewell())

    async def _farewell(self) -> None:
        if self._twin is not None:
            await self._twin.close()

    def _run(self, work: Callable[[Leveret], Coroutine[Any, Any, R]]) -> R:
        loop = self._shared_loop()
        if loop is not None:
            return _result(asyncio.run_coroutine_threadsafe(work(self._app), loop), loop)

        async def opened() -> R:
            twin = self._twin
            if twin is None:
                twin = self._twin = copy.copy(self._app)
                twin._open = twin._opening = None  # noqa: SLF001
            await twin.open()
            return await work(twin)

        return self._portal.call(opened())

    def _shared_loop(self) -> asyncio.AbstractEventLoop | None:
        """The loop in which the app itself is open on a broker in memory; None where there is none.

        Raises:
            LeveretError: the app is open in this thread's own loop, which would stand still.
        """
        app = self._app
        opened, opening = app._open, app._opening  # noqa: SLF001
        if opened is None or opening is None or not opening[0].is_running():
            return None
        if opened.pid != os.getpid():
            # Its loop runs in the process that this one was forked off.
            return None
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:
            here = None
        loop = opening[0]
        if here is loop:
            raise LeveretError(
                "app.sync was called on the event loop in which the app is open: nothing else would run there until it "
                "has its answer. Nothing was sent. Here, await app.publish(...) or app.call(...); in a plain def, "
                "app.sync works"
            )
        in_memory = opened.plan.config.broker is None or opened.plan.config.broker.scheme == "memory"
        return loop if in_memory else None


def _result(answer: Future[R], loop: asyncio.AbstractEventLoop) -> R:
    """What comes of it on a loop that is somebody else's, and may end meanwhile.

    Raises:
        TransportUnavailableError: it has.
    """
    while not wait((answer,), timeout=_LOOK).done:
        if not loop.is_running():
            raise TransportUnavailableError(
                "the event loop in which the app is open has ended before an answer came. Unknown what came of it"
            )
    return answer.result()


_making: Final = threading.Lock()


def sync_face(app: Leveret) -> SyncApp:
    """The sync face of *app*, the same one each time."""
    with _making:
        found = app._sync  # noqa: SLF001
        if found is None:
            found = app._sync = SyncApp(app)  # noqa: SLF001
        return found
