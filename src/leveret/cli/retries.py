"""`leveret retries`: what waits, and what people do about it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from leveret.cli.options import Common, Doing, Ids, Limit, Which, command

if TYPE_CHECKING:
    from leveret.cli.looking import Look
    from leveret.core.retry_entry import RetryEntry
    from leveret.retry.asking import ActReport
    from leveret.retry.browse import Retries

    Asking = Callable[[Retries, tuple[str, ...], Mapping[str, Any]], Awaitable[ActReport]]

#: Rows that are read at once for a long listing.
_PAGE = 500


def add_to(cli: typer.Typer) -> None:
    """Declare the group."""
    group = typer.Typer(help="What waits for its next try.", no_args_is_help=True)
    command(group, "list")(list_)
    command(group, "show")(show)
    command(group, "now")(now)
    command(group, "cancel")(cancel)
    command(group, "reschedule")(reschedule)
    command(group, "hold")(hold)
    command(group, "release")(release)
    command(group, "move")(move)
    cli.add_typer(group, name="retries")


async def list_(*, which: Which, limit: Limit = 50, common: Common) -> None:
    """List what waits, the next due first."""
    from leveret.cli import records
    from leveret.cli.looking import looking
    from leveret.cli.words import counted, short_ids
    from leveret.core.retry_entry import Filter

    words = which.words()
    async with looking(common) as look:
        console = look.console
        wanted = Filter(namespace=look.namespace, **words)
        rows = await _listed(look, wanted, limit)
        if console.json:
            for entry in rows:
                console.record(records.retry(entry))
            return
        await look.show_head()
        shorts = short_ids([(entry.message_id, entry.retry_id) for entry in rows])
        if rows:
            console.table(
                ["due in", "worker", "message", "type", "tried", "reason"],
                [_row(entry, short) for entry, short in zip(rows, shorts, strict=True)],
            )
        total = await look.store.count_entries(wanted)
        overdue = await look.store.count_entries(wanted, overdue=True)
        late = f"{overdue} overdue" if overdue else "none overdue"
        hint = f"   At once: leveret retries now {shorts[0]}" if rows else ""
        more = f" More: --limit {total}" if total > len(rows) else ""
        if rows or words:
            console.head(f"{len(rows)} of {total} waiting, {late}.{more}{hint}")
        else:
            console.head(f"{counted(0, 'message')} waiting")


async def show(
    id: Annotated[str, typer.Argument(metavar="ID", help="A message id or retry id, or its ending.")],
    *,
    common: Common,
) -> None:
    """Show one waiting message: why, until when, and its body."""
    from leveret.cli import records
    from leveret.cli.acts import Waiting, the_one
    from leveret.cli.looking import looking
    from leveret.cli.shown import show_content, show_fields
    from leveret.cli.words import clock, span
    from leveret.core.errors import NotFound

    async with looking(common) as look:
        row = await the_one(look, Waiting(look), id)
        entry = await look.store.entry(row.namespace, row.id)
        if entry is None:
            raise NotFound(f"{id} went while it was looked up: it is published, or was cancelled")
        if look.console.json:
            look.console.record(records.retry(entry))
            return
        await look.show_head()
        now = look.world.clock.now()
        place = entry.queue
        if entry.through_exchange or not place:
            place = f"exchange {entry.exchange}, key {entry.routing_key}"
        show_fields(
            look.console,
            [
                ("message", entry.message_id or "has no id"),
                ("retry id", entry.retry_id),
                ("type", entry.type),
                ("worker", entry.worker),
                ("goes to", place),
                ("due", f"{clock(entry.due_at, now=now)}, {_due(entry)}"),
                ("tried", _tried(entry)),
                ("reason", entry.reason),
                ("state", f"{entry.state}: {entry.state_reason}" if entry.state_reason else entry.state),
                ("first failed", clock(entry.first_failed_at, now=now) if entry.first_failed_at else ""),
                ("last failed", _ago(entry.failed_at, now, clock, span)),
                ("on", entry.host),
            ],
        )
        show_content(look.console, entry.body or b"", entry.properties, entry.traceback)


async def now(ids: Ids = None, *, which: Which, doing: Doing, common: Common) -> int:
    """Let these be published at once."""
    return await _act("now", ids, which, doing, common, lambda r, ids, words: r.now(ids, **words))


async def cancel(ids: Ids = None, *, which: Which, doing: Doing, common: Common) -> int:
    """Let these end in the dead letters, as `cancelled`."""
    return await _act("cancel", ids, which, doing, common, lambda r, ids, words: r.cancel(ids, **words))


async def reschedule(
    ids: Ids = None,
    at: Annotated[
        str | None,
        typer.Option(
            "--at",
            metavar="TIME",
            help="Due at this time: ISO 8601, or 18:00 of today.",
        ),
    ] = None,
    after: Annotated[
        float | None, typer.Option("--after", metavar="SECONDS", help="Due so many seconds from now.")
    ] = None,
    *,
    which: Which,
    doing: Doing,
    common: Common,
) -> int:
    """Let these be due at another time."""
    from leveret.cli.words import moment
    from leveret.core.errors import ConfigError
    from leveret.core.seconds import seconds

    if (at is None) == (after is None):
        raise ConfigError("leveret retries reschedule needs --at TIME or --after SECONDS, one of them")
    when: dict[str, Any] = {}
    if at is not None:
        when["at"] = moment(at, "--at")
    else:
        try:
            when["after"] = seconds(after, "--after")
        except ValueError as error:
            raise ConfigError(str(error)) from None
    return await _act(
        "reschedule", ids, which, doing, common, lambda r, ids, words: r.reschedule(ids, **when, **words)
    )


async def hold(ids: Ids = None, *, which: Which, doing: Doing, common: Common) -> int:
    """Keep these from being due until they are released."""
    return await _act("hold", ids, which, doing, common, lambda r, ids, words: r.hold(ids, **words))


async def release(ids: Ids = None, *, which: Which, doing: Doing, common: Common) -> int:
    """Let held ones go again, each at its time."""
    return await _act("release", ids, which, doing, common, lambda r, ids, words: r.release(ids, **words))


async def move(
    ids: Ids = None,
    to: Annotated[
        str | None, typer.Option("--to", metavar="QUEUE", help="The queue's whole name, such as shop.charge.")
    ] = None,
    *,
    which: Which,
    doing: Doing,
    common: Common,
) -> int:
    """Let these go to another queue, where theirs is gone."""
    from leveret.core.errors import ConfigError
    from leveret.core.properties import check_short

    if not to:
        raise ConfigError(
            "leveret retries move needs --to QUEUE, the queue's whole name, such as shop.charge"
        )
    queue = check_short(to, "--to")
    return await _act("move", ids, which, doing, common, lambda r, ids, words: r.move(ids, to=queue, **words))


async def _act(
    name: str, ids: list[str] | None, which: Which, doing: Doing, common: Common, do: Asking
) -> int:
    from leveret.cli.acts import Waiting, choose, perform, store_alone
    from leveret.cli.looking import looking
    from leveret.cli.words import counted
    from leveret.retry.browse import Retries

    words = which.words()
    async with looking(common) as look:
        among = Waiting(look)
        chosen = await choose(look, among, ids or [], words)

        def ask(nudge: Callable[[], object]) -> Awaitable[ActReport]:
            retries = Retries(look.store, look.world, chosen.namespace, nudge=nudge)
            return do(retries, chosen.ids, words)

        return await perform(
            look,
            chosen,
            among,
            doing,
            verb=f"retries.{name}",
            lease="retry",
            question=f"{name} {counted(chosen.count, among.one, among.many)} of {chosen.namespace}",
            ask=ask,
            here=lambda: store_alone(look, chosen.namespace),
        )


async def _listed(look: Look, wanted: Any, limit: int) -> list[RetryEntry]:
    rows: list[RetryEntry] = []
    after: str | None = None
    while len(rows) < limit:
        page, after = await look.store.entries(wanted, limit=min(_PAGE, limit - len(rows)), after=after)
        rows += page
        if after is None:
            break
    return rows


def _row(entry: RetryEntry, short: str) -> list[str]:
    reason = entry.reason or ("published with a delay" if entry.kind == "delayed" else "")
    if not entry.counted:
        reason += " (not counted)"
    return [_due(entry), entry.worker or "–", short, entry.type, _tried(entry), reason]


def _due(entry: RetryEntry) -> str:
    from leveret.cli.words import span

    if entry.state == "held":
        return "held"
    if entry.state == "blocked":
        return "queue gone"
    return span(entry.due_in) if entry.due_in > 0 else f"{span(-entry.due_in)} late"


def _tried(entry: RetryEntry) -> str:
    return f"{entry.attempt} of {entry.max_attempts}" if entry.max_attempts else str(entry.attempt)


def _ago(at: float, now: float, clock: Callable[..., str], span: Callable[[float], str]) -> str:
    return f"{clock(at, now=now)}, {span(max(0.0, now - at))} ago" if at else ""
