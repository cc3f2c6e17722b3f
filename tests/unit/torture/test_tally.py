"""What a record comes to while it is written, and what there was too little of in it to show anything."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from leveret.proof.record import Answer, Answered, AnyEvent, Asked, Began, Ended, write_all
from leveret.torture.tally import Tally

TAKERS = {"order.placed": ("charge",), "receipt.made": ("post",), "vault.entry": ("vault",)}


def published(subject: str, type: str, answer: Answer, by: str = "producer-1 1") -> Iterator[AnyEvent]:
    yield Asked(at=1.0, by=by, subject=subject, type=type, message_id=subject)
    yield Answered(at=1.1, by=by, subject=subject, answer=answer)


def done(subject: str, worker: str, *results: tuple[str, str]) -> Iterator[AnyEvent]:
    run = f"{worker} {subject}"
    yield Began(
        at=1.2, by="w", run=run, worker=worker, subject=subject, message_id=subject, attempt=1, step=0
    )
    yield Ended(at=1.3, by="w", run=run, outcome="done", results=results)


def idle(folder: Path, *events: Iterator[AnyEvent], early: bool = False) -> tuple[list[str], list[str]]:
    write_all(folder / "record.jsonl", (event for each in events for event in each))
    tally = Tally(folder / "record.jsonl")
    tally.read()
    tally.close()
    return tally.idle(TAKERS, early=early)


ORDER = (
    *published("o1", "order.placed", "accepted"),
    *done("o1", "charge", ("receipt.made", "o1")),
    *done("o1", "post"),
)
VAULT = (*published("o2", "vault.entry", "accepted"), *done("o2", "vault"))


def test_a_run_in_which_all_had_something_to_do_says_nothing(tmp_path: Path):
    assert idle(tmp_path, iter(ORDER), iter(VAULT)) == ([], [])


@pytest.mark.parametrize("early", [False, True])
def test_a_run_whose_producer_had_nothing_accepted_fails_whatever_a_daemon_had(tmp_path: Path, early: bool):
    wrong, _ = idle(
        tmp_path, published("o1", "order.placed", "unknown"), published("t1", "tick", "accepted", "daemon-1 1"),
        early=early,
    )  # fmt: skip

    assert wrong == ["nothing that a producer published was accepted, of 1 publishes"]


def test_a_run_that_was_ended_before_anything_was_published_says_so(tmp_path: Path):
    assert idle(tmp_path, early=False)[0] == [
        "nothing that a producer published was accepted, of 0 publishes"
    ]
    (tmp_path / "record.jsonl").unlink()

    wrong, rightly = idle(tmp_path, early=True)

    assert wrong == []
    assert rightly[0] == "nothing that a producer published was accepted, of 0 publishes"


@pytest.mark.parametrize("early", [False, True])
def test_a_run_in_which_a_worker_began_on_nothing_that_there_was_for_it_fails(tmp_path: Path, early: bool):
    returned = done("o1", "charge", ("receipt.made", "o1"))
    wrong, rightly = idle(
        tmp_path, published("o1", "order.placed", "accepted"), returned, iter(VAULT), early=early
    )

    assert (wrong, rightly) == (["post had no run, though there was receipt.made for it"], [])


def test_a_run_too_short_for_what_is_rare_says_so_and_a_longer_one_without_it_fails(tmp_path: Path):
    told = "vault had no run: there was no vault.entry in {} publishes"

    assert idle(tmp_path, iter(ORDER)) == ([], [told.format(1)])
    (tmp_path / "record.jsonl").unlink()
    many = [published(f"m{number}", "order.placed", "accepted") for number in range(2000)]
    assert idle(tmp_path, iter(ORDER), *many) == ([told.format(2001)], [])
