"""`leveret retry-worker` and `leveret keeper`: one service of a namespace, without any worker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from leveret.cli.options import Common, command

if TYPE_CHECKING:
    from leveret.runtime.config import RuntimeConfig


def add_to(cli: typer.Typer) -> None:
    """Declare both."""
    command(cli, "retry-worker")(retry_worker)
    command(cli, "keeper")(keeper)


async def retry_worker(
    rate: Annotated[
        str | None,
        typer.Option(
            "--rate",
            metavar="N",
            help="Overdue messages a second after a pause; none is no limit. [LEVERET_RETRY_WORKER__OVERDUE_RATE]",
        ),
    ] = None,
    *,
    common: Common,
) -> None:
    """Keep what failed softly in a namespace until it is due.

    Stands by while another process does. `leveret run` does this beside its workers. Needs a broker that several
    processes can reach.
    """
    await _serve(
        common.settings({"retry_worker.overdue_rate": rate}),
        common,
        "retry-worker",
        retry_worker=True,
        keeper=False,
    )


async def keeper(*, common: Common) -> None:
    """Move dead letters of a namespace into the store.

    Also of a namespace that no `leveret run` looks after; `leveret run` does this beside its workers. Needs a broker
    that several processes can reach.
    """
    await _serve(common.settings(), common, "keeper", retry_worker=False, keeper=True)


async def _serve(
    config: RuntimeConfig, common: Common, name: str, *, retry_worker: bool, keeper: bool
) -> None:
    from leveret.app import Leveret
    from leveret.cli.logs import show_log
    from leveret.cli.looking import refuse_memory_broker
    from leveret.cli.run import serve

    refuse_memory_broker(config, name)
    config.require_namespace()
    show_log(config.log, quiet=common.quiet, as_json=common.json)
    await serve(Leveret(config=config), common, workers=[], retry_worker=retry_worker, keeper=keeper)
