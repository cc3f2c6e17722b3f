"""`leveret torture`: a shop on a real broker, struck while it works, and accounted for at the end."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Self

import typer

from leveret.cli.exits import DONE, WRONG
from leveret.cli.options import Common, command
from leveret.core.errors import ConfigError

if TYPE_CHECKING:
    from leveret.cli.console import Console
    from leveret.torture.setting import Outcome, Setting

#: What asks for the end.
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


def add_to(cli: typer.Typer) -> None:
    """Declare `torture`."""
    command(cli, "torture")(torture)


async def torture(
    minutes: Annotated[
        float,
        typer.Option("--minutes", metavar="M", min=0.1, help="So long is there load and are there faults."),
    ] = 10.0,
    seed: Annotated[
        int | None,
        typer.Option(
            "--seed", metavar="N", help="The same faults and orders again; default: new ones each time."
        ),
    ] = None,
    every: Annotated[
        str,
        typer.Option("--every", metavar="SECONDS", help="From one fault to the next; 5-40: between so many."),
    ] = "10",
    rate: Annotated[
        float, typer.Option("--rate", metavar="N", min=1.0, help="Messages published a second.")
    ] = 300.0,
    soft: Annotated[
        float,
        typer.Option(
            "--soft", metavar="SHARE", min=0.0, max=1.0, help="Of them fails softly, at each worker."
        ),
    ] = 0.05,
    hard: Annotated[
        float, typer.Option("--hard", metavar="SHARE", min=0.0, max=1.0, help="Of them fails hard, likewise.")
    ] = 0.005,
    faults: Annotated[
        str,
        typer.Option("--faults", metavar="NAMES", help="Only these, with commas between them; all; or none."),
    ] = "all",
    cluster: Annotated[
        bool, typer.Option("--cluster", help="Three brokers of its own, clustered, with quorum queues.")
    ] = False,
    postgres: Annotated[
        bool, typer.Option("--postgres", help="A PostgreSQL server of its own as store, struck as well.")
    ] = False,
    soak: Annotated[
        bool,
        typer.Option(
            "--soak",
            help="Also fail where memory, files, threads, … of a process keep growing; from 16 minutes on.",
        ),
    ] = False,
    beside: Annotated[
        Path | None,
        typer.Option(
            "--beside",
            metavar="FOLDER",
            help="Also workers of an earlier release; scripts/release makes such a folder.",
        ),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option("--report", metavar="FOLDER", help="Where record and report go; default: a new folder."),
    ] = None,
    *,
    common: Common,
) -> int:
    """Run a shop's processes on a real RabbitMQ, strike them, the network, the broker and the store, and count.

    Without --broker it starts brokers of its own, and without --store a file. The plan is printed first; Ctrl+C ends
    the load early, and what there is then is judged; a second one ends all. Exit code 1 if a message is lost or any
    rule is broken.
    """
    from leveret.cli.console import Console
    from leveret.torture.setting import Setting

    if common.config is not None:
        raise ConfigError(f"--config {common.config}: the torture reads no settings. Leave it out")
    console = Console(common)
    setting = Setting(
        minutes=minutes,
        seed=secrets.randbelow(10_000) if seed is None else seed,
        every=_seconds(every),
        rate=rate,
        soft=soft,
        hard=hard,
        faults=tuple(name.strip() for name in faults.split(",")),
        cluster=cluster,
        postgres=postgres,
        broker=common.broker,
        store=common.store,
        namespace=common.namespace or f"torture-{secrets.token_hex(3)}",
        beside=beside,
        soak=soak,
        folder=report,
    )
    outcome = await _run(setting, console)
    _tell(setting, outcome, console)
    return DONE if outcome.passed else WRONG


def _seconds(every: str) -> tuple[float, float]:
    """What `--every` says."""
    least, _, most = every.partition("-")
    try:
        told = float(least), float(most or least)
    except ValueError:
        told = (0.0, 0.0)
    if not 1.0 <= told[0] <= told[1] < 1e6:
        raise ConfigError(
            f"--every {every}: expected seconds, 1 or more, such as 10, or 5-40 for between 5 and 40"
        )
    return told


class _Signals:
    """Ctrl+C and SIGTERM within a block: a first one asks for the end, a second one cancels the task that entered.

    A third one does not wait for what is cleaned up; what was started ends with this process.
    """

    def __init__(self) -> None:
        from leveret.runtime.runner import ONE_SIGNAL

        self.asked: Final = asyncio.Event()
        #: The exit code of what the last one has ended.
        self.code = 0
        self._loop: Final = asyncio.get_running_loop()
        self._task: Final = asyncio.current_task()
        self._at_once: Final = ONE_SIGNAL
        self._last = float("-inf")
        self._counted = 0

    @property
    def cancelled(self) -> bool:
        """Whether there was a second one."""
        return self._counted > 1

    def __enter__(self) -> Self:
        for number in _SIGNALS:
            self._loop.add_signal_handler(number, self._received, number)
        return self

    def __exit__(self, *_: object) -> None:
        for number in _SIGNALS:
            self._loop.remove_signal_handler(number)

    def _received(self, number: int) -> None:
        # One Ctrl+C may come more than once, from the terminal and from who started us.
        if self._loop.time() - self._last < self._at_once:
            return
        self._last = self._loop.time()
        self._counted += 1
        self.code = 128 + number
        if self._counted == 1:
            self.asked.set()
        elif self._counted == 2 and self._task is not None:
            self._task.cancel()
        else:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(self.code)


async def _run(setting: Setting, console: Console) -> Outcome:
    """Run it, and judge it. While it is judged nothing runs that was started, and a signal ends it as any program."""
    from leveret.torture.setting import Stopped, judged, play

    with _Signals() as signals:
        try:
            played = await play(setting, say=console.note, asked_to_stop=signals.asked)
        except Stopped as stopped:
            console.warning(str(stopped))
            raise typer.Exit(signals.code) from None
        except asyncio.CancelledError:
            if not signals.cancelled:
                raise
            console.warning("second signal: all that was started is ended, and nothing is judged")
            raise typer.Exit(signals.code) from None
    console.note("judging")
    return judged(setting, played)


def _tell(setting: Setting, outcome: Outcome, console: Console) -> None:
    """What it came to."""
    for life in outcome.lives:
        console.note(life)
    for trouble in outcome.troubles:
        console.warning(trouble)
    for fault in outcome.verdict.faults:
        console.warning(str(fault))
    console.note(f"record and report are in {outcome.folder}")
    if console.json:
        console.record(_record(setting, outcome))
        return
    style = "ok" if outcome.passed else "fault"
    console.result(f"{outcome.struck} faults, seed {setting.seed}    {outcome.verdict.line()}", style)


def _record(setting: Setting, outcome: Outcome) -> dict[str, Any]:
    return {
        "date": outcome.date,
        "command": setting.command,
        "seeds": setting.seed,
        "versions": outcome.versions,
        **outcome.verdict.as_json(),
        "troubles": list(outcome.troubles),
        **({"lives": list(outcome.lives)} if setting.soak else {}),
    }
