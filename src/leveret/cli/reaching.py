"""Connecting: a broker that does not answer yet is waited for, by `run` for ever, by other commands for ten seconds."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Final

from leveret.core.errors import BrokerUnreachable

if TYPE_CHECKING:
    from leveret.cli.console import Console
    from leveret.ports import Transport, World
    from leveret.runtime.config import RuntimeConfig

#: Seconds after which a command that a person waits for gives up.
GIVE_UP: Final = 10.0
#: Seconds between two tries: at first, and at most. A broker that boots should not be held up by those who wait.
_FIRST, _MOST = 0.25, 2.0


async def reach(transport: Transport, console: Console, *, patience: float | None = GIVE_UP) -> None:
    """Open *transport*, and say so once where that takes more than one try.

    Args:
        transport: to open.
        console: where it is said.
        patience: seconds until it is given up; None: never.

    Raises:
        BrokerUnreachable: nobody answered in that time; with what the last try came to.
        AccessRefused: the broker does not let us in, which waiting would not change.
    """
    last: BrokerUnreachable | None = None
    wait = _FIRST
    try:
        async with asyncio.timeout(patience):
            while True:
                try:
                    await transport.open()
                except BrokerUnreachable as error:
                    if last is None:
                        until = "until it does" if patience is None else f"for {patience:g} s"
                        console.warning(
                            f"{transport.display} does not answer yet, trying again {until}: {error}"
                        )
                    last = error
                else:
                    return
                await asyncio.sleep(wait)
                wait = min(2 * wait, _MOST)
    except TimeoutError:
        why = str(last) if last is not None else f"no answer from {transport.display}"
        raise BrokerUnreachable(f"gave up after {patience:g} s. {why}") from last


@contextlib.asynccontextmanager
async def connected(config: RuntimeConfig, world: World, console: Console) -> AsyncIterator[Transport]:
    """A connection to the broker of *config* within the block.

    Raises:
        ConfigError: no broker is named.
        BrokerError: it is not to be reached in ten seconds, or does not let us in.
    """
    from leveret.runtime.wiring import make_transport

    transport = make_transport(config.require_broker(), world)
    await reach(transport, console)
    try:
        yield transport
    finally:
        await transport.close()
