from __future__ import annotations

import pytest

from leveret.cli import exits
from leveret.core.errors import (
    RpcRemoteError,
    RpcTimeoutError,
    RpcUnknownError,
    RpcUnreachableError,
    TransportUnavailableError,
)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RpcUnreachableError(), 5),
        (RpcUnknownError(), 3),
        (TransportUnavailableError(), 3),
        (RpcTimeoutError(), 1),
        (RpcRemoteError(), 1),
    ],
)
def test_each_outcome_of_a_call_has_its_exit_code(error, code):
    assert exits.of(error) == code


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("price", "[1"), "PAYLOAD is no JSON"),
        (("price", "{}", "--timeout", "0"), "--timeout=0"),
        (("price", "{}", "--timeout", "nan"), "--timeout=nan"),
        (("a b",), "channel name"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_is_connected(leveret, arguments, words):
    ended = leveret("rpc", "call", *arguments, "--broker", "amqp://127.0.0.1:1", "--namespace", "shop")
    assert (ended.code, ended.out) == (2, "")
    assert words in ended.err


def test_a_memory_broker_lives_inside_one_process(leveret):
    ended = leveret("rpc", "call", "price", "--broker", "memory://", "--namespace", "shop")
    assert ended.code == 2
    assert "one process" in ended.err
