"""What a process says of itself."""

from __future__ import annotations

import asyncio
import gc
import threading

from leveret.torture.child import figures


async def test_timers_that_were_cancelled_are_not_counted():
    before = figures()["timers"]
    timers = [asyncio.get_running_loop().call_later(3600, int) for _ in range(50)]
    counted = figures()["timers"]
    for timer in timers:
        timer.cancel()

    assert counted == before + 50
    assert figures()["timers"] == before


async def test_tasks_and_timers_of_loops_in_other_threads_are_counted():
    before = figures()
    begun, over = threading.Event(), threading.Event()

    async def work() -> None:
        timer = asyncio.get_running_loop().call_later(3600, int)
        begun.set()
        await asyncio.to_thread(over.wait)
        timer.cancel()

    thread = threading.Thread(target=asyncio.run, args=(work(),))
    thread.start()
    await asyncio.to_thread(begun.wait)
    during = figures()
    over.set()
    await asyncio.to_thread(thread.join)

    assert during["tasks"] == before["tasks"] + 1
    assert during["timers"] == before["timers"] + 1
    assert figures()["tasks"] == before["tasks"]


async def test_what_only_waits_for_the_collector_is_not_counted_in_a_soak():
    gc.collect()
    gc.disable()
    try:
        before = figures(collects=True)["objects"]
        for _ in range(1000):
            cycle: list[object] = []
            cycle.append(cycle)
        counted, collected = figures()["objects"], figures(collects=True)["objects"]
    finally:
        gc.enable()

    assert counted >= before + 1000
    assert collected < before + 500


async def test_threads_of_a_loops_own_pool_are_not_counted():
    before = figures()["threads"]
    over = threading.Event()
    pooled = [asyncio.create_task(asyncio.to_thread(over.wait)) for _ in range(3)]
    thread = threading.Thread(target=over.wait)
    thread.start()
    await asyncio.sleep(0)
    during = figures()["threads"]
    over.set()
    await asyncio.gather(*pooled, asyncio.to_thread(thread.join))

    assert during == before + 1
