"""`leveret rpc call`: one request, and its answer."""

from __future__ import annotations

from typing import Annotated

import typer

from leveret.cli.options import Common, command


def add_to(cli: typer.Typer) -> None:
    """Declare the group."""
    group = typer.Typer(help="Requests that are answered.", no_args_is_help=True)
    command(group, "call")(call)
    cli.add_typer(group, name="rpc")


async def call(
    queue: Annotated[
        str,
        typer.Argument(
            metavar="QUEUE",
            help="Who is called: a queue, or without a dot a channel of the namespace, such as price.",
        ),
    ],
    payload: Annotated[str, typer.Argument(metavar="PAYLOAD", help="A JSON object.")] = "{}",
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="S", help="Seconds to wait; nobody starts on it after that.")
    ] = 5.0,
    *,
    common: Common,
) -> None:
    """Send a request to a queue, and show its answer.

    Ends with exit code 5 where nobody serves the queue, 1 where no answer came in time or the answer is an error, 3
    where the broker cannot be reached, or the connection went meanwhile: then the request may have been obeyed, or not.
    """
    import json

    from leveret.cli.console import Console
    from leveret.cli.looking import refuse_memory_broker
    from leveret.cli.publish import payload_of
    from leveret.cli.reaching import connected
    from leveret.cli.words import safe
    from leveret.core.errors import ConfigError
    from leveret.rpc.client import RpcClient, patience
    from leveret.rpc.endpoint import rpc_queue
    from leveret.runtime.world import system_world

    asked = payload_of(payload, "PAYLOAD")
    try:
        patience(timeout, "--timeout")
    except ValueError as error:
        raise ConfigError(str(error)) from None
    config = common.settings()
    refuse_memory_broker(config, "rpc call")
    # A queue's own name says its namespace.
    name = rpc_queue(queue, "" if "." in queue else config.require_namespace())
    console, world = Console(common), system_world()
    async with connected(config, world, console) as transport:
        answer = await RpcClient(transport, world).ask(name, asked, timeout=timeout)
    if console.json:
        console.record({"answer": answer.payload, "by": answer.by, "seconds": round(answer.seconds, 6)})
        return
    said = safe(json.dumps(answer.payload, ensure_ascii=False))
    by = f"by {safe(answer.by)} " if answer.by else ""
    console.result(f"{said}    answered {by}in {answer.seconds * 1000:.1f} ms")
