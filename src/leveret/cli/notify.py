"""`leveret notify`: carries alarms to people."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Annotated

import typer

from leveret.cli import exits
from leveret.cli.options import Common, command

if TYPE_CHECKING:
    from leveret.alarms.notify import Notifier
    from leveret.cli.console import Console
    from leveret.runtime.config import RuntimeConfig


def add_to(cli: typer.Typer) -> None:
    """Declare `notify`."""
    command(cli, "notify")(notify)


async def notify(
    test: Annotated[
        bool, typer.Option("--test", help="Send one alarm to each address and say what became of it.")
    ] = False,
    *,
    common: Common,
) -> int:
    """Carry alarms to people: Telegram, Slack, mail, webhooks and whatever else Apprise knows.

    The addresses are the urls of [notify]: LEVERET_NOTIFY__URLS, or a file that LEVERET_NOTIFY__URLS_FILE names. Alarms
    wait in the queue NAMESPACE.alerts.notify while this is not running. Ctrl+C or SIGTERM stops; a broker that is not
    up yet is waited for. With --test the exit code is 1 where one address was not told.
    """
    from leveret.cli.console import Console
    from leveret.cli.logs import show_log
    from leveret.cli.looking import refuse_memory_broker

    config = common.settings()
    console = Console(common)
    for warning in config.warnings:
        console.warning(warning)
    notifier = _notifier(config)
    if test:
        return await _test(notifier, config, console)
    refuse_memory_broker(config, "notify")
    config.require_namespace()
    show_log(config.log, quiet=common.quiet, as_json=common.json)
    await _serve(notifier, config, console)
    return exits.DONE


def _notifier(config: RuntimeConfig) -> Notifier:
    from leveret.alarms.notify import hear_reasons
    from leveret.core.errors import ConfigError
    from leveret.runtime.wiring import make_notifier

    if not config.notify.urls:
        raise ConfigError(
            "nobody is named who could be told of alarms. Name them in one of: LEVERET_NOTIFY__URLS=URL,URL · "
            'LEVERET_NOTIFY__URLS_FILE=FILE · urls = ["URL"] under [notify] in leveret.toml. '
            "URL is tgram://TOKEN/CHAT, slack://…, mailto://…, json://HOST/PATH and so on"
        )
    hear_reasons()
    return make_notifier(config.notify)


async def _test(notifier: Notifier, config: RuntimeConfig, console: Console) -> int:
    from leveret.core.alarm import Alarm, alert, read_alert
    from leveret.core.envelope import HOST

    now = time.time()
    example = alert(
        Alarm(
            code="test",
            title="this is a test: alarms reach you here",
            fields={"sent_by": "leveret notify --test"},
            severity="WARNING",
        ),
        state="holds",
        count=1,
        first=now,
        last=now,
    )
    told = read_alert(
        example.routing_key, example.body(namespace=config.namespace or "(no namespace)", host=HOST)
    )
    answers = await asyncio.gather(
        *(asyncio.to_thread(notifier.send, number, told) for number in range(len(notifier.shown)))
    )
    if console.json:
        for sent in answers:
            console.record(
                {"to": sent.to, "sent": not sent.why, "seconds": round(sent.seconds, 3), "why": sent.why}
            )
    else:
        console.result(" · ".join(map(str, answers)), "fault" if any(sent.why for sent in answers) else "ok")
    return exits.WRONG if any(sent.why for sent in answers) else exits.DONE


async def _serve(notifier: Notifier, config: RuntimeConfig, console: Console) -> None:
    from leveret.alarms.notify_service import NotifyService
    from leveret.cli.reaching import reach
    from leveret.core.topology import Names
    from leveret.runtime.runner import on_signals
    from leveret.runtime.wiring import make_transport
    from leveret.runtime.world import system_world

    world = system_world()
    asked = asyncio.Event()
    transport = make_transport(config.require_broker(), world)
    service = NotifyService(Names(config.require_namespace()), transport, notifier, world=world)

    async def begin() -> None:
        await reach(transport, console, patience=None)
        await service.start()
        told = ", ".join(notifier.shown)
        if console.json:
            console.record({"event": "ready", "queue": service.queue, "to": list(notifier.shown)})
        console.note(f" {service.queue} on {transport.display} → {told}.  Ready; Ctrl+C stops.")

    async with on_signals(asked.set, wanted=True):
        beginning = asyncio.ensure_future(begin())
        stop = asyncio.ensure_future(asked.wait())
        try:
            await asyncio.wait({beginning, stop}, return_when=asyncio.FIRST_COMPLETED)
            if beginning.done():
                beginning.result()
                await stop
        finally:
            beginning.cancel()
            stop.cancel()
            await asyncio.wait({beginning, stop})
            await service.stop()
            await transport.close()
