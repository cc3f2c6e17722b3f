"""AlarmEmitter: takes alarms from any thread in microseconds, and has them carried apart from everything else (A1)."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import os
import threading
import traceback
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, overload

from leveret.alarms.callback import AlarmCallback, Callback
from leveret.alarms.carrying import carrying, is_carrying
from leveret.alarms.conditions import Conditions
from leveret.alarms.line import Line, Parcel
from leveret.core.alarm import Alarm, Alert
from leveret.core.envelope import HOST
from leveret.ports import World

log = logging.getLogger("leveret.alarms")

#: Alerts, and messages of `publish`, that wait to be taken by the emitter's own thread. Past that the oldest goes.
MOST_WAITING: Final = 1000
#: Seconds that `close` gives what is still to be carried.
FLUSH_SECONDS: Final = 3.0
#: Seconds after a fault of ours until alarms are carried again.
_AGAIN_SECONDS: Final = 1.0
#: Faults of ours that wait to be logged.
_MOST_FAULTS: Final = 10

_LIVING: weakref.WeakSet[AlarmEmitter] = weakref.WeakSet()


class AlarmEmitter:
    """Tells people what they should know: never blocks, never raises, whatever the broker does.

    Made by `Leveret` (`app.alarms`) and by the sync face. Any thread may emit. One alarm a condition and window of
    300 s, with a count; a condition is a code about a thing. Each is a line of the logger `leveret.alarms` and a
    message on `<namespace>.alerts` with the key `alarm.<severity>.<code>`; while the broker is not to be reached it
    goes straight to the URLs of `[notify]`.

    Args:
        namespace: of the alerts exchange.
        world: clock and threads.
        line: made where alarms are carried, when the first one is: to the broker, or to people.
        inside: carry in a task of the loop that `start` is called in, and not in a thread of its own: for memory://,
            which lives in one loop, and for tests.

    Example:
        app.alarms.emit("feed_stale", "no prices for 30 s", {"feed": "eurex"})
        app.alarms.emit("disk_filling", "less than 10 % left on /data", severity="WARNING")
        app.alarms.resolved("feed_stale")
    """

    def __init__(
        self, namespace: str, *, world: World, line: Callable[[], Line], inside: bool = False
    ) -> None:
        self._namespace = namespace
        self._world = world
        self._make_line = line
        self._inside = inside
        self._callback: Callback | None = None
        self._begin()
        _LIVING.add(self)

    def _begin(self) -> None:
        """As new; also in the child of a fork, where no thread is left, and locks may be held by nobody."""
        # One that its holder may take again: a signal's handler may emit in the middle of an emit.
        self._lock = threading.RLock()
        self._conditions = Conditions(self._world.clock)
        self._alerts: deque[Alert] = deque()
        self._messages: deque[tuple[str, bytes]] = deque()
        self._faults: deque[BaseException] = deque(maxlen=_MOST_FAULTS)
        self._dropped = self._told_dropped = 0
        self._line: Line | None = None
        self._thread: threading.Thread | None = None
        self._task: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._woken: asyncio.Event | None = None
        #: Whether the carrying side was woken, and has not looked since.
        self._called = False
        self._closed = False

    def _begin_in_child(self) -> None:
        _LEFT_BEHIND.append((self._thread, self._loop, self._task, self._woken, self._line))
        if self._line is not None:
            self._line.discard()
        closed = self._closed
        self._begin()
        self._closed = closed

    def __repr__(self) -> str:
        return f"<AlarmEmitter {self._namespace}>"

    # ── Telling ───────────────────────────────────────────────────────────────────────────────────────────────────────

    @overload
    def emit(self, alarm: Alarm, /) -> None: ...

    @overload
    def emit(
        self,
        code: str,
        title: str,
        fields: Mapping[str, Any] | None = None,
        severity: str = "CRITICAL",
        *,
        about: str = "",
    ) -> None: ...

    def emit(
        self,
        code: str | Alarm,
        title: str = "",
        fields: Mapping[str, Any] | None = None,
        severity: str = "CRITICAL",
        *,
        about: str = "",
    ) -> None:
        """A condition holds, or something happened. Returns at once and never raises, whatever it is given.

        Args:
            code: which condition: a word for programs, part of the routing key.
            title: a sentence for people.
            fields: what else is known, as JSON carries it; anything else is told as text, long text is cut.
            severity: `CRITICAL` or `WARNING`.
            about: what it concerns; each thing has conditions of its own.
        """
        if is_carrying():
            return
        try:
            alarm = (
                code
                if isinstance(code, Alarm)
                else Alarm(code=code, title=title, about=about, fields=fields or {}, severity=severity)
            )
            with self._lock:
                alert = self._conditions.holds(alarm)
                if alert is None:
                    return
                self._put(self._alerts, alert)
            self._wake()
        except Exception as error:  # noqa: BLE001 - never raises; the line in the log is written where it may block
            self._faults.append(error)

    def resolved(self, code: str, about: str = "") -> None:
        """A condition has ended; told once, and only where it was told that it held. Never blocks, never raises."""
        # Asked after each success of many parts, and nearly always there is nothing: without the lock.
        if self._conditions.empty or is_carrying():
            return
        try:
            with self._lock:
                alert = self._conditions.over(code, about)
                if alert is None:
                    return
                self._put(self._alerts, alert)
            self._wake()
        except Exception as error:  # noqa: BLE001 - as above
            self._faults.append(error)

    def publish(self, routing_key: str, body: bytes) -> None:
        """Send a message of one's own to the alerts exchange, apart from everything else. Never blocks, never raises.

        Transient, not mandatory, tried once: it is dropped where the broker cannot take it within seconds, or more than
        1000 wait. Neither counted nor folded: what is one condition is for `emit`.

        Args:
            routing_key: at most 255 bytes.
            body: JSON, for `leveret notify` to show.
        """
        if is_carrying():
            return
        try:
            with self._lock:
                self._put(self._messages, (routing_key, body))
            self._wake()
        except Exception as error:  # noqa: BLE001 - as above
            self._faults.append(error)

    def listen(self, callback: Callback | None) -> None:
        """Have *callback* called with (code, title, fields) for each alarm that is told; None: no longer.

        It is called on a thread of its own, one call after another; what it raises is logged. Where it is slow, only
        the newest 1000 calls wait for it. What it emits itself is ignored.
        """
        self._callback = callback

    @property
    def dropped(self) -> int:
        """Alarms and messages that were dropped, because more waited than there is room for."""
        return self._dropped + self._conditions.forgotten

    # ── Coming and going ──────────────────────────────────────────────────────────────────────────────────────────────

    def start(self) -> None:
        """Carry in a task of the running loop, where that was asked for; a thread starts by itself when needed."""
        if self._inside and self._task is None and not self._closed:
            self._loop = asyncio.get_running_loop()
            self._woken = asyncio.Event()
            self._task = asyncio.create_task(self._go_on(self._woken), name="leveret alarms")

    def close(self) -> None:
        """Carry what is left, within 3 s, and end the thread. Idempotent; later alarms are ignored."""
        self._closed = True
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            self._call()
            thread.join(FLUSH_SECONDS)
        atexit.unregister(self.close)

    async def aclose(self) -> None:
        """As `close`, without holding up the loop."""
        self._closed = True
        task, self._task = self._task, None
        if task is not None:
            self._call()
            # By real time: a clock that a test moves may stand still.
            await asyncio.wait([task], timeout=FLUSH_SECONDS)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        if self._thread is not None:
            await asyncio.get_running_loop().run_in_executor(None, self.close)

    # ── Inside ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _put(self, waiting: deque[Any], one: object) -> None:
        if len(waiting) >= MOST_WAITING:
            waiting.popleft()
            self._dropped += 1
        waiting.append(one)

    def _wake(self) -> None:
        if self._closed or self._called:
            return
        if not self._inside and self._thread is None:
            with self._lock:
                if self._thread is None:
                    thread = threading.Thread(target=self._own_thread, name="leveret-alarms", daemon=True)
                    # Where the system has no thread left, the next alarm asks for one again.
                    thread.start()
                    self._thread = thread
                    atexit.register(self.close)
        self._called = True
        self._call()

    def _call(self) -> None:
        loop, woken = self._loop, self._woken
        if loop is not None and woken is not None:
            # The loop may be at its end; then nobody is left who could carry anything.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(woken.set)

    def _own_thread(self) -> None:
        async def main() -> None:
            self._woken = woken = asyncio.Event()
            self._loop = asyncio.get_running_loop()
            # All that happens in this thread.
            with carrying():
                await self._go_on(woken)

        asyncio.run(main())

    async def _go_on(self, woken: asyncio.Event) -> None:
        """Carry until closed, whatever happens."""
        while True:
            try:
                return await self._carry(woken)
            except Exception as error:  # noqa: BLE001 - a fault of ours: told with the next alarms, which go on
                self._faults.append(error)
            await self._world.clock.sleep(_AGAIN_SECONDS)

    async def _carry(self, woken: asyncio.Event) -> None:
        """Log, call back and hand to the line, until closed."""
        self._line = line = self._make_line()
        callback = AlarmCallback(self._world)
        running = asyncio.create_task(line.run(), name="leveret alerts line")
        clock = self._world.clock
        try:
            while True:
                alerts, messages, wait = self._take()
                for alert in alerts:
                    body = alert.body(namespace=self._namespace, host=HOST)
                    line.put(Parcel(alert.routing_key, body, is_alarm=True))
                    if self._callback is not None and alert.state == "holds":
                        callback.put(self._callback, alert)
                for routing_key, message in messages:
                    line.put(Parcel(routing_key, message, is_alarm=False))
                self._log(alerts)
                if self._closed:
                    break
                timer = None if wait is None else clock.call_later(wait, woken.set)
                try:
                    await woken.wait()
                finally:
                    if timer is not None:
                        timer.cancel()
                woken.clear()
            await line.flush()
        finally:
            callback.close()
            running.cancel()
            await asyncio.wait([running])
            await line.close()

    def _take(self) -> tuple[list[Alert], list[tuple[str, bytes]], float | None]:
        with self._lock:
            self._called = False
            for alert in self._conditions.due():
                self._put(self._alerts, alert)
            alerts, messages = list(self._alerts), list(self._messages)
            self._alerts.clear()
            self._messages.clear()
            wait = self._conditions.next_due
        return alerts, messages, wait

    def _log(self, alerts: Sequence[Alert]) -> None:
        try:
            with carrying():
                for alert in alerts:
                    _log(alert)
                while self._faults:
                    log.error("an alarm could not be told", exc_info=self._faults.popleft())
                if self._dropped > self._told_dropped:
                    self._told_dropped = self._dropped
                    log.warning("%d alarms were dropped: more came than could be carried", self._dropped)
        except Exception as error:  # noqa: BLE001 - a log handler of the user's; where it fails there is no log
            traceback.print_exception(error)


def _log(alert: Alert) -> None:
    extra = {"action": "alarm", "code": alert.code, "fields": dict(alert.fields)}
    times = f" ({alert.count} times since it began)" if alert.count > 1 else ""
    if alert.state == "resolved":
        about = alert.about or alert.title
        log.info("resolved %s: %s%s", alert.code, about, times, extra={**extra, "action": "resolved"})
        return
    level = logging.WARNING if alert.severity == "WARNING" else logging.CRITICAL
    log.log(level, "alarm %s: %s%s", alert.code, alert.title, times, extra=extra)


#: What runs in the parent: kept, for where it is collected it closes what the parent still uses.
_LEFT_BEHIND: list[object] = []


def _forked() -> None:
    for emitter in list(_LIVING):
        emitter._begin_in_child()  # noqa: SLF001 - of this class


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
