"""`leveret simulate`: the real core on virtual time, struck by faults, and a ledger at the end."""

from __future__ import annotations

import platform
import shlex
import time
from typing import Annotated

import typer

from leveret import __version__
from leveret.cli.exits import DONE, WRONG
from leveret.cli.options import Common, command
from leveret.core.errors import ConfigError


def add_to(cli: typer.Typer) -> None:
    """Declare `simulate`."""
    command(cli, "simulate")(simulate)


def simulate(
    seed: Annotated[
        int, typer.Option("--seed", metavar="S", help="Of the first run; the next one has the next seed.")
    ] = 0,
    runs: Annotated[
        int, typer.Option("--runs", metavar="N", min=1, help="So many, each from its own seed.")
    ] = 1,
    messages: Annotated[
        int, typer.Option("--messages", metavar="M", min=1, help="So many are published in each run.")
    ] = 1000,
    faults: Annotated[
        str,
        typer.Option(
            "--faults", metavar="NAMES", help="Which may strike: all, none, or names with commas between."
        ),
    ] = "all",
    jobs: Annotated[
        int | None,
        typer.Option(
            "--jobs", metavar="N", min=1, help="Processes that share the runs; default: one a processor."
        ),
    ] = None,
    *,
    common: Common,
) -> int:
    """Check the promise without a server: workers, retry workers and keepers on one clock that a seed drives.

    Publishes, kills, cuts, outages and everything else that varies come from the seed: the same seed is the same run.
    A seed that fails is cut down to the few messages and faults that it takes, and told as a story; exit code 1.
    """
    from leveret.cli.console import Console
    from leveret.simulate.batch import STORIES, run_many, story_of
    from leveret.simulate.faults import names_of

    for flag, given in (
        ("--config", common.config),
        ("--broker", common.broker),
        ("--store", common.store),
        ("--namespace", common.namespace),
    ):
        if given is not None:
            raise ConfigError(
                f"{flag} {given}: a simulation has a broker and a store of its own. Leave it out"
            )
    try:
        chosen = names_of(faults)
    except ValueError as error:
        raise ConfigError(f"--faults {faults}: {error}") from None
    console = Console(common)
    with console.progress("simulated", runs) as bar:
        tally = run_many(
            range(seed, seed + runs), messages=messages, faults=chosen, jobs=jobs, advanced=bar.advance
        )
    words = f"--messages {messages} --faults {shlex.quote(faults)}"
    if common.json:
        console.record(
            {
                "date": time.strftime("%Y-%m-%d"),
                "command": f"leveret simulate --seed {seed} --runs {runs} {words}",
                "seeds": str(seed) if runs == 1 else f"{seed}–{seed + runs - 1}",
                "versions": {"leveret": __version__, "Python": platform.python_version()},
                **tally.as_json(),
            }
        )
        return WRONG if tally.failed else DONE
    for failing in sorted(tally.failed)[:STORIES]:
        console.result(f"seed {failing}: {tally.failed[failing][0]}")
        for line in story_of(failing, messages=messages, faults=chosen):
            console.result(f"  {line}")
        console.result(f"  Again: leveret simulate --seed {failing} {words}")
    if len(tally.failed) > STORIES:
        console.result(f"failed too: {', '.join(map(str, sorted(tally.failed)[STORIES:]))}")
    console.result(tally.line())
    return WRONG if tally.failed else DONE
