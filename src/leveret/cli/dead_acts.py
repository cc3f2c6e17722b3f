"""`leveret dead replay|edit|discard|restore|export|import`: what people do about dead letters. Nothing here deletes."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from leveret.cli import exits
from leveret.cli.options import Common, Doing, Ids, Which, command

if TYPE_CHECKING:
    from leveret.cli.acts import Chosen
    from leveret.cli.looking import Look
    from leveret.core.dead_letter import LetterState
    from leveret.dead_letters.browse import DeadLetters
    from leveret.retry.asking import ActReport

DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say how many; nothing is changed.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask before changing what a filter has chosen.")]


def add_to(group: typer.Typer) -> None:
    """Declare the acts in the group `dead`."""
    command(group, "replay")(replay)
    command(group, "edit")(edit)
    command(group, "discard")(discard)
    command(group, "restore")(restore)
    command(group, "export")(export)
    command(group, "import")(import_)


async def replay(
    ids: Ids = None,
    rate: Annotated[
        float | None, typer.Option("--rate", metavar="N", help="So many letters a second at most.")
    ] = None,
    stop_after: Annotated[
        int | None,
        typer.Option("--stop-after", metavar="N", min=1, help="Stop once so many of them have died again."),
    ] = None,
    keep_attempts: Annotated[
        bool, typer.Option("--keep-attempts", help="Go on counting attempts, instead of beginning at 1.")
    ] = False,
    rpc: Annotated[
        bool,
        typer.Option("--rpc", help="Also RPC requests, whose callers have given up; with ids only."),
    ] = False,
    *,
    which: Which,
    doing: Doing,
    common: Common,
) -> int:
    """Publish dead letters again.

    Each goes to the queue that failed it, else to where it was first published. The act is written into
    the store and done by the running keeper; ask for it twice, and each letter is still published once. Ends with
    exit code 6 where something is left: the same again goes on with it.
    """
    from leveret.cli.acts import Lying, choose, perform, with_broker
    from leveret.cli.looking import looking, refuse_memory_broker
    from leveret.core.errors import ConfigError

    words = which.words()
    if rate is not None and not 0 < rate < float("inf"):
        raise ConfigError(f"--rate {rate:g}: expected more than 0 letters a second")
    if rpc and not ids:
        raise ConfigError("--rpc takes ids: requests whose callers gave up are replayed one by one")
    async with looking(common) as look:
        if doing.here:
            # Told before anybody is asked to agree to it.
            refuse_memory_broker(look.config, "dead replay --here")
        among = Lying(look, ("dead",))
        chosen = await choose(look, among, ids or [], words)

        def ask(nudge: Callable[[], object]) -> Awaitable[ActReport]:
            return _letters(look, chosen.namespace, nudge).replay(
                chosen.ids,
                rate=rate,
                reset_attempts=not keep_attempts,
                stop_after=stop_after,
                rpc=rpc,
                progress=_telling(look),
                **words,
            )

        return await perform(
            look,
            chosen,
            among,
            doing,
            verb="dead.replay",
            lease="keeper",
            question=_question(chosen, rate),
            ask=ask,
            here=lambda: with_broker(look, chosen.namespace),
        )


def _question(chosen: Chosen, rate: float | None) -> str:
    from leveret.cli.words import counted, safe, span

    to = safe(chosen.places[0]) if len(chosen.places) == 1 else f"{len(chosen.places)} queues"
    pace = f" at {rate:g}/s, about {span(chosen.count / rate)}" if rate is not None else ""
    return f"replay {counted(chosen.count, 'letter')} to {to}{pace}"


def _telling(look: Look) -> Callable[[ActReport], object]:
    """Tells how far a replay is, once a second at most."""
    told_at = look.world.clock.monotonic()

    def tell(report: ActReport) -> None:
        nonlocal told_at
        if not report.finished and look.world.clock.monotonic() - told_at >= 1.0:
            told_at = look.world.clock.monotonic()
            look.console.note(f"published {report.done} of {report.asked}, dead again {report.dead_again}")

    return tell


async def edit(
    id: Annotated[str, typer.Argument(metavar="ID", help="A message id or letter id, or its ending.")],
    payload: Annotated[
        str,
        typer.Argument(metavar="PAYLOAD", help="The new payload as JSON; - reads it from standard input."),
    ],
    *,
    common: Common,
) -> None:
    """Give a dead letter another payload. The old one stays, as a discarded letter."""
    from leveret.cli import records
    from leveret.cli.acts import Lying, the_one
    from leveret.cli.looking import looking
    from leveret.cli.publish import payload_of

    text = sys.stdin.read() if payload == "-" else payload
    value: Any = payload_of(text, "PAYLOAD")
    async with looking(common) as look:
        row = await the_one(look, Lying(look, ("dead",)), id)
        letter = await _letters(look, row.namespace).edit(row.id, value)
        if look.console.json:
            look.console.record(records.letter(letter))
        else:
            look.console.result(f"edited {letter.id}")
            look.console.note(f"Again: leveret dead replay {letter.id[-6:]}")


async def discard(
    ids: Ids = None, dry_run: DryRun = False, yes: Yes = False, *, which: Which, common: Common
) -> int:
    """Put dead letters aside; restore brings them back."""
    return await _set_aside("discard", ("dead",), ids or [], which, common, dry_run=dry_run, yes=yes)


async def restore(
    ids: Ids = None, dry_run: DryRun = False, yes: Yes = False, *, which: Which, common: Common
) -> int:
    """Bring discarded letters back."""
    return await _set_aside("restore", ("discarded",), ids or [], which, common, dry_run=dry_run, yes=yes)


async def _set_aside(
    verb: str,
    states: tuple[LetterState, ...],
    ids: list[str],
    which: Which,
    common: Common,
    *,
    dry_run: bool,
    yes: bool,
) -> int:
    """Discard or restore: a change in the store alone, which needs nobody else."""
    from leveret.cli.acts import Lying, choose
    from leveret.cli.looking import looking
    from leveret.cli.words import counted

    words = which.words()
    async with looking(common) as look:
        console = look.console
        chosen = await choose(look, Lying(look, states), ids, words)
        question = f"{verb} {counted(chosen.count, 'letter')} of {chosen.namespace}"
        if dry_run:
            if console.json:
                console.record(
                    {"act": f"dead.{verb}", "namespace": chosen.namespace, "would_change": chosen.count}
                )
            else:
                console.result(f"{question}; nothing was done (--dry-run)")
            return exits.DONE
        if chosen.by_words and (refused := console.agreed(question, yes=yes)) is not None:
            return refused
        letters = _letters(look, chosen.namespace)
        done = await (letters.discard if verb == "discard" else letters.restore)(chosen.ids, **words)
        if console.json:
            console.record(
                {"act": f"dead.{verb}", "namespace": chosen.namespace, "asked": chosen.count, "done": done}
            )
        else:
            console.result(f"{verb.removesuffix('e')}ed {done} of {chosen.count}")
        return exits.DONE if done == chosen.count else exits.PART


async def export(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="The JSON Lines file to write.")],
    *,
    which: Which,
    common: Common,
) -> None:
    """Write dead letters with their bodies to a file."""
    from leveret.cli.looking import looking
    from leveret.cli.words import counted
    from leveret.core.errors import ConfigError

    words = which.words()
    async with looking(common) as look:
        letters = _letters(look, await look.one_namespace())
        try:
            written = await letters.export(path, **words)
        except OSError as error:
            raise ConfigError(f"{path} cannot be written: {error.strerror}") from None
        if look.console.json:
            look.console.record({"act": "dead.export", "file": str(path), "done": written})
        else:
            look.console.result(f"{counted(written, 'letter')} written to {path}")


async def import_(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="A file that `leveret dead export` wrote.")],
    *,
    common: Common,
) -> None:
    """Keep the letters of an exported file.

    Those that are there already stay as they are.
    """
    from leveret.cli.looking import looking
    from leveret.cli.words import counted
    from leveret.core.errors import BadPayload, ConfigError

    async with looking(common) as look:
        letters = _letters(look, await look.one_namespace())
        try:
            new = await letters.import_(path)
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
        except UnicodeDecodeError as error:
            raise BadPayload(f"{path} is no UTF-8: {error}. Nothing was imported.") from None
        if look.console.json:
            look.console.record({"act": "dead.import", "file": str(path), "done": new})
        else:
            look.console.result(f"{counted(new, 'letter')} new in {look.store.display}")


def _letters(look: Look, namespace: str, nudge: Callable[[], object] = lambda: None) -> DeadLetters:
    from leveret.dead_letters.browse import DeadLetters

    return DeadLetters(look.store, look.world, namespace, nudge=nudge)
