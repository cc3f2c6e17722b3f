"""`leveret rpc call`, answered by a `leveret run` that serves a channel."""

from __future__ import annotations

import json
import re

SERVING = """
from leveret import Leveret

app = Leveret()

@app.rpc("intent", prefetch=1, single=True)
async def intent(order: dict) -> dict:
    if order.get("bad"):
        raise ValueError("market closed")
    return {"accepted": True}
"""


def test_a_call_from_the_shell_is_answered_and_each_way_of_no_answer_has_its_exit_code(shop):
    (shop.folder / "shop.py").write_text(SERVING)
    running = shop.start("run")
    running.wait_for(rf"intent\s+{shop.namespace}\.intent\.req\s+1\s+yes")
    running.wait_for("Ready")

    ended = shop("rpc", "call", "intent", '{"id": 1}')
    assert ended.code == 0, ended.err
    by = rf"\S+/{running.process.pid}"
    assert re.fullmatch(rf'{{"accepted": true}}    answered by {by} in \d+\.\d ms\n', ended.out)

    (told,) = shop("rpc", "call", shop.queue("intent.req"), "--json").records
    assert (told["answer"], 0 < told["seconds"] < 5) == ({"accepted": True}, True)
    assert re.fullmatch(by, told["by"])

    ended = shop("rpc", "call", "intent", json.dumps({"bad": True}))
    assert (ended.code, ended.out) == (1, "")
    assert "RpcRemoteError" in ended.err
    assert "ValueError: market closed" in ended.err

    ended = shop("rpc", "call", "nobody")
    assert (ended.code, "RpcUnreachableError" in ended.err) == (5, True)
    assert running.stop() == 0

    ended = shop("rpc", "call", "intent", "--timeout", "0.2")
    assert (ended.code, "RpcTimeoutError" in ended.err) == (1, True)
