"""`leveret dead`: what died, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from leveret.cli import dead_acts
from leveret.cli.options import Common, Limit, Which, command

if TYPE_CHECKING:
    from leveret.cli.looking import Look
    from leveret.core.dead_letter import DeadLetter, LetterState
    from leveret.core.retry_entry import Filter

#: Rows that are read at once for a long listing.
_PAGE = 500

State = Literal["dead", "claimed", "replayed", "discarded"]


def add_to(cli: typer.Typer) -> None:
    """Declare the group."""
    group = typer.Typer(help="What died, and why.", no_args_is_help=True)
    command(group, "list")(list_)
    command(group, "groups")(groups)
    command(group, "show")(show)
    dead_acts.add_to(group)
    cli.add_typer(group, name="dead")


async def list_(
    *,
    which: Which,
    state: Annotated[
        State,
        typer.Option("--state", metavar="STATE", help="dead, claimed (by a replay), replayed, or discarded."),
    ] = "dead",
    limit: Limit = 50,
    common: Common,
) -> None:
    """List dead letters, the newest first."""
    from leveret.cli import records
    from leveret.cli.looking import looking
    from leveret.cli.words import short_ids
    from leveret.core.retry_entry import Filter

    words = which.words()
    async with looking(common) as look:
        console = look.console
        wanted = Filter(namespace=look.namespace, **words)
        rows = await _listed(look, wanted, limit, (state,))
        if console.json:
            for letter in rows:
                console.record(records.letter(letter))
            return
        await look.show_head()
        shorts = short_ids([(letter.message_id, letter.id) for letter in rows])
        now = look.world.clock.now()
        if rows:
            console.table(
                ["died", "worker", "message", "type", "tried", "replays", "reason"],
                [_row(letter, short, now) for letter, short in zip(rows, shorts, strict=True)],
                right=("tried", "replays"),
            )
        total = await look.store.count_letters(wanted, states=(state,))
        more = f" More: --limit {total}" if total > len(rows) else ""
        console.head(f"{len(rows)} of {total} {state}.{more}{_hint(state, shorts)}")
        if state == "dead" and not console.quiet:
            from leveret.cli.broker import unkept

            if words_of_it := await unkept(look.config, look.world, await look.namespaces()):
                console.head(words_of_it)


async def groups(*, which: Which, common: Common) -> None:
    """List what dead letters died of, the most frequent first.

    A group has the same worker, the same exception, and the same reason but for its numbers and ids.
    """
    from leveret.cli import records
    from leveret.cli.looking import looking
    from leveret.cli.words import clock, counted
    from leveret.core.retry_entry import Filter

    words = which.words()
    async with looking(common) as look:
        console = look.console
        found = await look.store.groups(Filter(namespace=look.namespace, **words))
        if console.json:
            for group in found:
                console.record(records.group(group))
            return
        await look.show_head()
        now = look.world.clock.now()
        if found:
            console.table(
                ["letters", "worker", "first", "last", "group", "reason"],
                [
                    [
                        str(group.count), group.worker or "–", clock(group.first_died_at, now=now),
                        clock(group.last_died_at, now=now), group.fingerprint, group.reason,
                    ]
                    for group in found
                ],
                right=("letters",),
            )  # fmt: skip
        letters = sum(group.count for group in found)
        console.head(f"{counted(letters, 'dead letter')} in {counted(len(found), 'group')}.")


async def show(
    id: Annotated[str, typer.Argument(metavar="ID", help="A message id or letter id, or its ending.")],
    *,
    common: Common,
) -> None:
    """Show one dead letter: reason, body, traceback, replays."""
    from leveret.cli import records
    from leveret.cli.looking import looking
    from leveret.cli.shown import show_content, show_fields
    from leveret.cli.words import clock, holder
    from leveret.dead_letters.replay import place

    async with looking(common) as look:
        letter = await _found(look, id)
        console = look.console
        if console.json:
            console.record(records.letter(letter))
            return
        await look.show_head()
        now = look.world.clock.now()
        origin = f"exchange {letter.exchange or '(default)'}, key {letter.routing_key}"
        show_fields(
            console,
            [
                ("message", letter.message_id or "has no id"),
                ("letter", letter.id),
                ("type", letter.type),
                ("worker", letter.worker),
                ("died", clock(letter.died_at, now=now)),
                ("ending", letter.ending),
                ("reason", letter.reason),
                ("exception", letter.error),
                ("tried", str(letter.attempts)),
                ("first failed", clock(letter.first_failed_at, now=now) if letter.first_failed_at else ""),
                ("on", holder(letter.host)),
                ("origin", origin),
                ("replay to", place(letter)),
                ("state", letter.state),
                ("died before", letter.first_letter),
            ],
        )
        for done in letter.replays:
            console.result(
                f" replayed       {clock(done.at, now=now)} to {done.to}: {done.outcome} (replay {done.replay_id})"
            )
        show_content(console, letter.body or b"", letter.properties, letter.traceback)
        if letter.state == "dead":
            console.head(f"Again: leveret dead replay {id}")


async def _found(look: Look, id: str) -> DeadLetter:
    """The letter that *id* names; where a message died more than once, the one that lies there now."""
    from leveret.core.errors import NotFound
    from leveret.core.retry_entry import Filter

    lying, _ = await look.store.letters(
        Filter(namespace=look.namespace, ids=(id,)), limit=2, states=("dead",)
    )
    name = lying[0].id if len(lying) == 1 else id
    letter = await look.store.letter(look.namespace, name)
    if letter is None:
        raise NotFound(f"no dead letter lies under {id!r} in {look.store.display}")
    return letter


async def _listed(
    look: Look, wanted: Filter, limit: int, states: tuple[LetterState, ...]
) -> list[DeadLetter]:
    rows: list[DeadLetter] = []
    after: str | None = None
    while len(rows) < limit:
        page, after = await look.store.letters(
            wanted, limit=min(_PAGE, limit - len(rows)), after=after, states=states
        )
        rows += page
        if after is None:
            break
    return rows


def _row(letter: DeadLetter, short: str, now: float) -> list[str]:
    from leveret.cli.words import clock

    replays = str(len(letter.replays)) if letter.replays else "–"
    return [
        clock(letter.died_at, now=now), letter.worker or "–", short, letter.type, str(letter.attempts), replays,
        letter.reason or letter.ending,
    ]  # fmt: skip


def _hint(state: str, shorts: list[str]) -> str:
    if not shorts:
        return ""
    if state == "dead":
        return f"   Why: leveret dead show {shorts[0]}   Again: leveret dead replay {shorts[0]}"
    if state == "discarded":
        return f"   Back: leveret dead restore {shorts[0]}"
    return f"   Why: leveret dead show {shorts[0]}"
