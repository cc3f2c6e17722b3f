"""The process is killed (kill -9) where the store is at work: every row is whole, and the next process goes on."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.torture.killed_app import messages

from leveret.core import handover
from leveret.core.dead_letter import DeadLetter
from leveret.core.message import unwrap
from leveret.core.properties import Properties
from leveret.core.retry_entry import Filter, RetryEntry
from leveret.runtime.world import SystemClock
from leveret.stores.sqlite import SqliteStore

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
ALL_STATES = ("dead", "claimed", "replayed", "discarded")

#: Each point, and the arrival that is struck: not the first one, so that the store holds something by then.
STRIKES = [
    (handover.STORED, 9),
    (handover.TAKEN_WHEN_DUE, 5),
    (handover.REPUBLISH_CONFIRMED, 7),
    (handover.KEEPER_STORED, 4),
    (handover.REPLAY_CLAIMED, 1),
    (handover.REPLAY_CONFIRMED, 3),
]


def run(store: Path, ledger: Path, point: str, nth: int) -> int:
    """Run the app in a process of its own; the exit code, negative for a signal."""
    done = subprocess.run(
        [sys.executable, HERE / "killed_app.py", store, ledger, point, str(nth)],
        check=False,
        cwd=store.parent,
        capture_output=True,
        timeout=60,
        text=True,
    )
    assert done.returncode in {0, -signal.SIGKILL}, done.stderr
    return done.returncode


async def rows(path: Path) -> tuple[list[RetryEntry], list[DeadLetter]]:
    """Every row of the store, whole, through the store's own door."""
    store = SqliteStore(path, clock=SystemClock())
    await store.open(create=False)
    check = await store.check()
    assert check["integrity"] == "ok"
    listed, _ = await store.entries(Filter(namespace="shop"), limit=1000)
    entries = [await store.entry("shop", entry.retry_id) for entry in listed]
    found, _ = await store.letters(Filter(namespace="shop"), limit=1000, states=ALL_STATES)
    letters = [await store.letter("shop", letter.id) for letter in found]
    await store.close()
    with sqlite3.connect(path) as raw:
        assert raw.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert raw.execute("SELECT count(*) FROM retry").fetchone() == (len(entries),)
        assert raw.execute("SELECT count(*) FROM dead_letter").fetchone() == (len(letters),)
    raw.close()
    assert None not in entries
    assert None not in letters
    return [e for e in entries if e is not None], [one for one in letters if one is not None]


def is_whole(row: RetryEntry | DeadLetter) -> None:
    """The row has the very bytes that were published, and properties that say the same."""
    assert row.body is not None
    body, properties, _ = unwrap(row.body, Properties(row.properties))
    message = messages()[body]
    assert properties.message_id == row.message_id == message.id
    assert properties.type == row.type == message.type
    assert {name: properties.header(name) for name in message.headers} == dict(message.headers)
    assert row.retry_id


def events(ledger: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in ledger.read_text().splitlines()]


def nothing_that_was_stored_is_missing(
    told: list[dict[str, Any]], entries: list[RetryEntry], letters: list[DeadLetter]
) -> None:
    """What was stored is in the store, but for what the broker has confirmed since: that died with the broker."""
    newest = {
        event["message_id"]: event["event"]
        for event in told
        if event["event"] in {handover.STORED, handover.REPUBLISH_CONFIRMED}
    }
    waiting = {id_ for id_, point in newest.items() if point == handover.STORED}
    assert waiting <= {entry.message_id for entry in entries}
    died = {event["message_id"] for event in told if event["event"] == handover.KEEPER_STORED}
    assert died <= {letter.message_id for letter in letters}


@pytest.mark.parametrize(("point", "nth"), STRIKES, ids=[point for point, _ in STRIKES])
async def test_after_a_kill_every_row_is_whole_and_goes_on(point: str, nth: int, tmp_path: Path):
    path, ledger = tmp_path / "leveret.db", tmp_path / "ledger.jsonl"

    assert run(path, ledger, point, nth) == -signal.SIGKILL, f"{point} was not reached {nth} times"

    entries, letters = await rows(path)
    assert entries or letters
    for row in (*entries, *letters):
        is_whole(row)
    nothing_that_was_stored_is_missing(events(ledger), entries, letters)

    assert run(path, ledger, "none", 0) == 0

    entries_after, letters_after = await rows(path)
    assert entries_after == []
    assert {letter.id for letter in letters} <= {letter.id for letter in letters_after}
    for letter in letters_after:
        is_whole(letter)
    second = [event for event in events(ledger) if event["second"] and event["event"] in {"start", "done"}]
    for entry in entries:
        # Its next run has the number that follows, and the retry id it was stored with.
        ids = {entry.retry_id} if entry.kind == "soft-failure" else {None, entry.retry_id}
        runs = [
            event for event in second
            if event["message_id"] == entry.message_id and event["attempt"] == entry.attempt + 1
        ]  # fmt: skip
        assert runs, f"{entry.message_id} was not run again"
        if entry.kind == "soft-failure":
            assert {event["retry_id"] for event in runs} == ids
        done = any(event["event"] == "done" for event in second if event["message_id"] == entry.message_id)
        died = any(letter.message_id == entry.message_id for letter in letters_after)
        assert done != died, f"{entry.message_id} is to be done or dead, and nothing else"
    if point in {handover.REPLAY_CLAIMED, handover.REPLAY_CONFIRMED}:
        assert "claimed" in {letter.state for letter in letters}
    for letter in letters:
        now = next(one for one in letters_after if one.id == letter.id)
        assert now.state in {"dead", "replayed"}, "a claimed letter was forgotten"
        if letter.state == "claimed":
            assert now.state == "replayed"
            # Nobody can know whether it had been published when the process died.
            assert [replay.outcome for replay in now.replays] == ["maybe twice"]
            assert [e for e in second if e["event"] == "done" and e["message_id"] == letter.message_id]
