"""The example's handler: what each answer of an endpoint means. A decorated function stays a function."""

from __future__ import annotations

import email.utils
import importlib.util
import time
import tomllib
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

from leveret import HardFailure, MissingExtra, SoftFailure
from leveret.demo import pipeline
from leveret.pipeline.context import Context

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "webhooks" / "webhooks.py"


@pytest.fixture(scope="module")
def example():
    return pipeline.webhooks()


@pytest.fixture
def deliver(example):
    """Runs the handler on an endpoint that answers so."""

    async def run(answer, *, endpoint=None):
        seen = []

        def respond(request):
            seen.append(request)
            if isinstance(answer, Exception):
                raise answer
            return answer

        ctx = SimpleNamespace(message_id="m-1", attempt=2, logger=SimpleNamespace(info=lambda *words: None))
        hook = example.Webhook(
            endpoint={"url": "http://h/1"} if endpoint is None else endpoint, event={"n": 1}
        )
        async with httpx.AsyncClient(transport=httpx.MockTransport(respond)) as client:
            ctx.state = client
            await example.deliver(hook, ctx)
        return seen

    return run


async def test_success_is_delivered_with_the_event_and_the_id_of_the_message(deliver):
    [request] = await deliver(httpx.Response(204))
    assert request.headers["Idempotency-Key"] == "m-1"
    assert request.content == b'{"n":1}'


@pytest.mark.parametrize("status", [500, 502, 503, 504, 429])
async def test_trouble_at_the_other_end_is_soft(deliver, status):
    with pytest.raises(SoftFailure, match=str(status)) as raised:
        await deliver(httpx.Response(status))
    assert (raised.value.counted, raised.value.retry_after) == (True, None)


@pytest.mark.parametrize("status", [429, 503])
async def test_a_pause_that_is_asked_for_is_kept_and_costs_no_try(deliver, status):
    with pytest.raises(SoftFailure, match=str(status)) as raised:
        await deliver(httpx.Response(status, headers={"Retry-After": "7"}))
    assert (raised.value.counted, raised.value.retry_after) == (False, 7)


async def test_a_retry_after_may_be_a_date(deliver):
    date = email.utils.formatdate(time.time() + 60, usegmt=True)
    with pytest.raises(SoftFailure) as raised:
        await deliver(httpx.Response(503, headers={"Retry-After": date}))
    assert 50 < raised.value.retry_after <= 60
    with pytest.raises(SoftFailure) as raised:
        await deliver(httpx.Response(503, headers={"Retry-After": "Mon, 01 Jan 2001 00:00:00 GMT"}))
    assert (raised.value.counted, raised.value.retry_after) == (False, 0)


async def test_a_retry_after_that_says_nothing_is_as_none(deliver):
    with pytest.raises(SoftFailure) as raised:
        await deliver(httpx.Response(503, headers={"Retry-After": "soon"}))
    assert (raised.value.counted, raised.value.retry_after) == (True, None)


@pytest.mark.parametrize("status", [400, 401, 404, 410, 301])
async def test_what_no_retry_can_mend_is_hard(deliver, status):
    with pytest.raises(HardFailure, match=str(status)):
        await deliver(httpx.Response(status))


@pytest.mark.parametrize(
    "error", [httpx.ReadTimeout("slow"), httpx.ConnectError("refused"), httpx.ReadError("cut")]
)
async def test_no_answer_and_no_connection_are_soft(deliver, error):
    with pytest.raises(SoftFailure) as raised:
        await deliver(error)
    assert raised.value.counted


@pytest.mark.parametrize("url", ["ftp://h/1", "no address", "http://h:port/"])
async def test_an_address_that_is_none_is_hard(example, url):
    async with httpx.AsyncClient(trust_env=False) as client:
        with pytest.raises(HardFailure, match="no address"):
            await example.deliver(
                example.Webhook(endpoint={"url": url}, event={}),
                SimpleNamespace(message_id="m", state=client),
            )


async def test_a_webhook_without_an_address_breaks_its_handler(deliver):
    with pytest.raises(KeyError, match="url"):
        await deliver(httpx.Response(200), endpoint={})


def test_the_demo_runs_the_example_as_it_stands_there(example):
    assert example.__file__ == str(EXAMPLE)
    assert example.deliver.__annotations__ == {"hook": example.Webhook, "ctx": Context, "return": None}


def test_the_wheel_carries_the_example_to_where_the_demo_looks_for_it():
    with (ROOT / "pyproject.toml").open("rb") as file:
        carried = tomllib.load(file)["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    there = carried[str(EXAMPLE.relative_to(ROOT).as_posix())]
    assert ROOT / "src" / there == Path(pipeline.__file__).with_name("webhooks.py")


def test_without_httpx_the_demo_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r'pip install "leveret\[demo\]"'):
        pipeline.webhooks()
