"""Publishing before and after a fork, from parent and child, and at the very end (T8, B27)."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import textwrap

import pytest
from tests.sync_scene import SyncScene


@pytest.fixture
async def scene(broker):
    async with SyncScene(broker) as scene:
        yield scene


async def run(program: str, *arguments: str) -> list[dict]:
    """What a program of its own prints, a JSON object a line."""

    def call() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", textwrap.dedent(program), *arguments],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip

    done = await asyncio.to_thread(call)
    assert not done.returncode, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


async def test_parent_and_child_publish_before_and_after_a_fork_over_connections_of_their_own(scene):
    queue = scene.queue("all")
    program = """
        import json, os, sys, threading
        from leveret.sync import RabbitMQTransport

        transport = RabbitMQTransport(sys.argv[1], namespace=sys.argv[2], timeout=5)
        transport.publish_event("a.b", {"who": "parent before"})
        child = os.fork()
        who = "parent" if child else "child"
        threads = [
            threading.Thread(target=transport.publish_event, args=("a.b", {"who": f"{who} {number}"}))
            for number in range(10)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if not child:
            transport.close()
            os._exit(0)
        ended = os.waitpid(child, 0)[1]
        # The child has said goodbye on its own connections, and on none of its parent's.
        transport.publish_event("a.b", {"who": "parent after"})
        print(json.dumps({"child": ended, "renewals": transport._line.renewals, "health": transport.health().value}))
    """
    [told] = await run(program, scene.url(), scene.namespace)

    assert told == {"child": 0, "renewals": 0, "health": "connected"}
    wanted = {f"{who} {number}" for who in ("parent", "child") for number in range(10)}
    wanted |= {"parent before", "parent after"}
    published = [payload["who"] for _, payload in scene.take(queue)]
    assert sorted(published) == sorted(wanted)
    # A publishing and a consuming one for each of the two; the parent has made none anew.
    assert scene.broker.proxy.accepted == 4


async def test_a_pool_of_forked_processes_publishes_through_app_sync(scene):
    queue = scene.queue("all", "order.*")
    program = """
        import json, multiprocessing, os, sys
        from leveret import Leveret

        app = Leveret(sys.argv[2], broker=sys.argv[1], store="memory://")

        def publish(number):
            app.sync.publish("order.placed", {"n": number})
            return os.getpid()

        if __name__ == "__main__":
            publish(0)
            with multiprocessing.get_context("fork").Pool(3) as pool:
                pids = set(pool.map(publish, range(1, 31), chunksize=1))
            publish(31)
            print(json.dumps({"others": os.getpid() not in pids}))
    """
    [told] = await run(program, scene.url(), scene.namespace)

    assert told == {"others": True}
    assert sorted(payload["n"] for _, payload in scene.take(queue)) == list(range(32))


async def test_it_works_in_atexit_and_in_del_and_after_close_it_says_so(scene):
    queue = scene.queue("all")
    program = """
        import atexit, json, sys
        from leveret.sync import RabbitMQTransport, TransportUnavailableError

        transport = RabbitMQTransport(sys.argv[1], namespace=sys.argv[2], timeout=5)
        closed = RabbitMQTransport(sys.argv[1], namespace=sys.argv[2], timeout=5)

        class Dies:
            def __del__(self):
                transport.publish_event("a.b", {"from": "del"})

        def last():
            transport.publish_event("a.b", {"from": "atexit"})
            closed.publish_event("a.b", {"from": "another"})
            closed.close()
            try:
                closed.publish_event("a.b", {"from": "closed"})
            except TransportUnavailableError as error:
                print(json.dumps({"closed": str(error)}))

        atexit.register(last)
        transport.publish_event("a.b", {"from": "main"})
        closed.publish_event("a.b", {"from": "main, another"})
        dies = Dies()
        del dies
    """
    [told] = await run(program, scene.url(), scene.namespace)

    assert "was closed" in told["closed"]
    published = sorted(payload["from"] for _, payload in scene.take(queue))
    assert published == ["another", "atexit", "del", "main", "main, another"]
