"""Ledger: every message that was published, and where it ended. What ended nowhere is lost."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """Each published message once: delivered, else dead, else waiting, else lost."""

    published: int
    delivered: int
    dead: int
    waiting: int
    lost: int
    #: Delivered ones that were delivered more than once.
    twice: int

    def __str__(self) -> str:
        return (
            f"accounted: published={self.published} delivered={self.delivered} dead={self.dead} "
            f"waiting={self.waiting} lost={self.lost}"
        )


def account(
    published: Sequence[str],
    taken: Mapping[str, int],
    dead: Collection[str],
    waiting: Collection[str],
    *,
    on_the_way: int = 0,
) -> Ledger:
    """Account for every message.

    Args:
        published: ids, by the publisher's own list.
        taken: how often the endpoint took which id, by its own list.
        dead: ids among the dead letters.
        waiting: ids in the retry store.
        on_the_way: messages that the broker or a worker has; which ones, they do not say. They wait.

    Example:
        >>> print(account(["a", "b", "c"], {"a": 1}, {"b"}, set()))
        accounted: published=3 delivered=1 dead=1 waiting=0 lost=1
    """
    ids = set(published)
    delivered = {id for id in ids if taken.get(id)}
    buried = ids.intersection(dead) - delivered
    stored = ids.intersection(waiting) - delivered - buried
    missing = len(ids) - len(delivered) - len(buried) - len(stored)
    on_the_way = min(on_the_way, missing)
    return Ledger(
        published=len(ids),
        delivered=len(delivered),
        dead=len(buried),
        waiting=len(stored) + on_the_way,
        lost=missing - on_the_way,
        twice=sum(taken[id] > 1 for id in delivered),
    )
