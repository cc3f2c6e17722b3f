"""The front door: opening and closing."""

import asyncio

from leveret import Leveret


async def test_two_opens_at_once_are_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    app = Leveret("shop", broker="memory://shared-door")
    await asyncio.gather(app.open(), app.open())
    parts = app._open.parts
    await app.open()
    assert app._open.parts is parts
    await app.close()


def test_an_app_may_be_opened_in_one_loop_after_the_other(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    app = Leveret("shop", broker="memory://shared-door")

    async def once() -> None:
        await asyncio.gather(app.open(), app.open())
        await app.close()

    asyncio.run(once())
    asyncio.run(once())
    assert app._open is None
