"""What a node's log says of features that RabbitMQ gives up: none may be used, but by a test that means to.

From 3.13 on the broker warns of such a use in its log, once a day for each feature; before, it says nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from leveret.torture.node import Node

#: How each such line begins, after its time.
_BEGINNING = "Deprecated features: "
#: The broker holds lines back for two seconds, unless told to write.
_WRITE = "[catch rabbit_logger_std_h:filesync(maps:get(id, Each)) || Each <- logger:get_handler_config()]."
#: It remembers what it has warned of; without this the next use would go unseen.
_FORGET = (
    "[persistent_term:erase(Key) || {{rabbit_deprecated_features, _} = Key, _} <- persistent_term:get()]."
)
#: Lines of uses that were meant. Each of them bears a time of its own.
_meant: set[str] = set()


def warnings_in(node: Node) -> list[str]:
    """The lines in the running node's log that warn of a use that nobody meant."""
    node.evaluate(_WRITE)
    return [line for line in node.log.splitlines() if _BEGINNING in line and line not in _meant]


@contextmanager
def used_on_purpose(node: Node) -> Iterator[None]:
    """Inside, something is used that RabbitMQ gives up, and that is no fault."""
    before = warnings_in(node)
    yield
    _meant.update(line for line in warnings_in(node) if line not in before)
    node.evaluate(_FORGET)


def nothing_given_up_was_used(node: Node) -> None:
    """Fail where the node's log warns of something that nobody meant to use."""
    found = warnings_in(node)
    assert not found, "the broker warns of what later versions refuse:\n" + "\n".join(found)
