"""Webhooks: tell other people's servers what happened, however often they are down."""

import asyncio
import contextlib
import email.utils
import logging
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from leveret import Context, HardFailure, Leveret, Message, RetryPolicy, SoftFailure


@contextlib.asynccontextmanager
async def http_client(_app: Leveret) -> AsyncIterator[httpx.AsyncClient]:
    # No limit here: how many requests there are at once is the worker's concurrency.
    async with httpx.AsyncClient(limits=httpx.Limits(max_connections=None)) as client:
        yield client


app = Leveret("webhooks", broker="memory://", lifespan=http_client)  # on RabbitMQ: broker="amqp://…"


@dataclass
class Webhook:
    endpoint: dict[str, str]  # as the customer registered it: {"url": "https://…"}
    event: dict[str, Any]  # what happened; sent as JSON
    timeout: float = 10  # seconds until an answer


@app.worker("webhook.asked", retry=RetryPolicy(first_delay=1, max_delay=3600, max_attempts=12), prefetch=50)
async def deliver(hook: Webhook, ctx: Context) -> None:
    client: httpx.AsyncClient = ctx.state
    # The same key at every try: a receiver that has seen it takes the webhook for done.
    headers = {"Idempotency-Key": ctx.message_id or ""}
    try:
        answer = await client.post(
            hook.endpoint["url"], json=hook.event, headers=headers, timeout=hook.timeout
        )
    except httpx.TimeoutException as error:
        raise SoftFailure(f"no answer in {hook.timeout:g} s") from error
    except (httpx.UnsupportedProtocol, httpx.InvalidURL) as error:
        raise HardFailure(f"no address for a webhook: {error}") from error
    except httpx.TransportError as error:
        raise SoftFailure(f"connection failed: {error}") from error

    if answer.is_success:
        ctx.logger.info("delivered  %s at attempt %d", hook.event.get("type"), ctx.attempt)
        return
    said = f"{answer.status_code} {answer.reason_phrase}"
    pause = retry_after(answer)
    if answer.status_code in (429, 503) and pause is not None:
        # They ask for a pause, so they are alive: that costs none of the tries.
        raise SoftFailure(f"{said}, asked to wait {pause:g} s", retry_after=pause, counted=False)
    if answer.is_server_error or answer.status_code == 429:
        raise SoftFailure(said)
    raise HardFailure(said)


def retry_after(answer: httpx.Response) -> float | None:
    """The seconds that a Retry-After asks for, which may be a number or a date."""
    value = answer.headers.get("Retry-After", "")
    if value.isdecimal():
        return float(value)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except ValueError:
        return None


async def main(lines: list[bytes]) -> None:
    async with app:
        await app.publish_many(Message("webhook.asked", line) for line in lines)
        await app.run(until_idle=True)


if __name__ == "__main__":
    logging.basicConfig(format="%(message)s")
    logging.getLogger("leveret").setLevel(logging.INFO)
    asyncio.run(main(Path(sys.argv[1]).read_bytes().splitlines()))
