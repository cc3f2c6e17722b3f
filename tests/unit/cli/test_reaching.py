"""Waiting for a broker that does not answer yet."""

from __future__ import annotations

import asyncio

import pytest

from leveret.cli import reaching
from leveret.cli.console import Console
from leveret.cli.options import Common
from leveret.core.errors import AccessRefused, BrokerUnreachable


class Broker:
    """A transport whose tries end as told; after the last one it hangs."""

    display = "amqp://shop:***@rabbit-1"

    def __init__(self, *ends: Exception | None) -> None:
        self.ends = list(ends)
        self.tries = 0

    async def open(self) -> None:
        self.tries += 1
        if not self.ends:
            await asyncio.get_running_loop().create_future()
        if (end := self.ends.pop(0)) is not None:
            raise end


@pytest.fixture(autouse=True)
def hurried(monkeypatch):
    monkeypatch.setattr(reaching, "_FIRST", 0.0)


@pytest.fixture
def console():
    return Console(Common(no_color=True))


async def test_a_broker_that_comes_up_is_reached_and_the_waiting_told_once(console, capsys):
    broker = Broker(BrokerUnreachable("nobody answers"), BrokerUnreachable("nobody answers"), None)
    await reaching.reach(broker, console, patience=None)
    assert broker.tries == 3
    assert (
        capsys.readouterr().err.count("does not answer yet, trying again until it does: nobody answers") == 1
    )


async def test_a_broker_that_answers_at_once_is_worth_no_word(console, capsys):
    await reaching.reach(Broker(None), console)
    assert capsys.readouterr().err == ""


async def test_what_is_given_up_ends_with_what_the_last_try_came_to(console):
    with pytest.raises(BrokerUnreachable, match=r"gave up after 0\.01 s\. nobody answers"):
        await reaching.reach(Broker(BrokerUnreachable("nobody answers")), console, patience=0.01)
    with pytest.raises(
        BrokerUnreachable, match=r"gave up after 0\.01 s\. no answer from amqp://shop:\*\*\*@rabbit-1"
    ):
        await reaching.reach(Broker(), console, patience=0.01)


async def test_who_is_refused_does_not_try_again(console, capsys):
    broker = Broker(AccessRefused("Login was refused"))
    with pytest.raises(AccessRefused, match="Login was refused"):
        await reaching.reach(broker, console, patience=None)
    assert (broker.tries, capsys.readouterr().err) == (1, "")
