"""What RabbitMQ and pika say when something goes wrong, in leveret's exceptions and with the broker's own words."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from typing import Final

from pika import exceptions

from leveret.core.errors import AccessRefused, BrokerError, BrokerUnreachable

#: With these the broker closes a connection over something that was sent on it: syntax, frames, its own fault.
#: Where publishes were in flight, one of them may be the culprit.
SENDERS_FAULT: Final = frozenset({501, 502, 503, 504, 505, 540, 541})
#: With these the broker refuses to let somebody in: access refused, vhost not found, not allowed.
_NOT_LET_IN: Final = frozenset({402, 403, 530})

_MAKE_A_USER: Final = """\
 Not tried again.
  It says so for a wrong password and an unknown user alike; and "guest" may log in from the broker's own machine \
only. Make a user of your own:
  rabbitmqctl add_user shop; rabbitmqctl set_permissions shop '^shop\\.' '^(shop\\.|amq\\.default$)' '^shop\\.'"""


class Gone(Exception):
    """A channel or connection ended under a call.

    Attributes:
        code: the broker's reply code, where the broker closed it with one.
        words: the broker's, or what happened.
        whole: whether the whole connection ended.
    """

    def __init__(self, words: str, *, code: int | None = None, whole: bool = False) -> None:
        super().__init__(words)
        self.words = words
        self.code = code
        self.whole = whole

    @property
    def about_a_publish(self) -> bool:
        """Whether one of the publishes in flight may have caused it."""
        return self.code is not None and (not self.whole or self.code in SENDERS_FAULT)


def channel_gone(reason: BaseException | None) -> Gone:
    """Why pika says that a channel closed."""
    if isinstance(reason, exceptions.ChannelClosedByBroker):
        return Gone(f"{reason.reply_code} {reason.reply_text}", code=reason.reply_code)
    if isinstance(reason, exceptions.ChannelClosed):
        return Gone("the channel was closed")
    return connection_gone(reason)


def connection_gone(reason: BaseException | None) -> Gone:
    """Why pika says that a connection closed."""
    if isinstance(reason, exceptions.ConnectionClosedByBroker):
        return Gone(f"{reason.reply_code} {reason.reply_text}", code=reason.reply_code, whole=True)
    if isinstance(reason, exceptions.ConnectionClosed):
        return Gone("the connection was closed", whole=True)
    if isinstance(reason, exceptions.AMQPHeartbeatTimeout):
        return Gone("nothing came from the broker for longer than the heartbeat allows", whole=True)
    return Gone(f"the connection was lost ({_words(reason)})", whole=True)


def not_connected(
    node: str, user: str, vhost: str, *, tls: bool, reason: BaseException | None
) -> BrokerError:
    """Why no connection could be made to one node.

    Args:
        node: host:port.
        user: who tried to log in.
        vhost: where to.
        tls: whether the connection was to be encrypted.
        reason: what pika gave.
    """
    for error in _causes(reason):
        if isinstance(error, exceptions.ConnectionClosedByBroker) and error.reply_code in _NOT_LET_IN:
            hint = _MAKE_A_USER if error.reply_code == 403 else " Not tried again."
            return AccessRefused(
                f'RabbitMQ at {node} does not let "{user}" in on vhost "{vhost}": {error.reply_text.rstrip(".")}.'
                f"{hint}"
            )
        if isinstance(error, exceptions.ConnectionClosedByBroker):
            return BrokerUnreachable(
                f"RabbitMQ at {node} ended the connection while it was being made: {error.reply_code} "
                f"{error.reply_text}"
            )
        if isinstance(error, ssl.SSLError):
            said = error.verify_message if isinstance(error, ssl.SSLCertVerificationError) else _words(error)
            return AccessRefused(
                f"no TLS with {node}: {said}. RabbitMQ speaks it on a port of its own, usually 5671; cacertfile= names "
                "the authority that signed its certificate, server_name_indication= the name that stands in it"
            )
    said = _words(reason)
    hint = "" if tls else " (where it listens for TLS only, write amqps://)"
    if any(
        isinstance(
            error,
            (exceptions.StreamLostError, exceptions.IncompatibleProtocolError, exceptions.InvalidFrameError),
        )
        for error in _causes(reason)
    ):
        return BrokerUnreachable(
            f"{node} took the connection and ended it before RabbitMQ answered: {said}. Is that RabbitMQ, and is it "
            f"up{hint}?"
        )
    return BrokerUnreachable(f"nobody answers at {node}: {said}. Is RabbitMQ running there?")


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """*error* and all that pika wrapped into it, the innermost first."""
    if error is None:
        return
    inner = [*getattr(error, "exceptions", ()), getattr(error, "exception", None), *error.args]
    for each in inner:
        if isinstance(each, BaseException):
            yield from _causes(each)
    if error.__cause__ is not None:
        yield from _causes(error.__cause__)
    yield error


def _words(reason: BaseException | None) -> str:
    """The innermost cause in a few words."""
    innermost = next(_causes(reason), None)
    if innermost is None:
        return "no reason given"
    if isinstance(innermost, OSError) and innermost.strerror:
        return innermost.strerror
    return str(innermost) or type(innermost).__name__
