"""From a broker's URL to an open connection: parameters, TLS, and one node after the other."""

from __future__ import annotations

import os
import ssl
from typing import Final

import pika
from pika.connection import Parameters

from leveret.core.errors import AccessRefused, BrokerError, BrokerUnreachable, ConfigError
from leveret.core.urls import BrokerUrl
from leveret.transports.rabbitmq.connection import RawConnection, connect
from leveret.transports.rabbitmq.errors import not_connected

#: Seconds; where the URL does not say otherwise.
HEARTBEAT: Final = 30
#: Seconds until a node that does not answer is given up, where the URL does not say otherwise.
_CONNECT: Final = 5.0


async def connect_to(url: BrokerUrl, purpose: str) -> RawConnection:
    """A connection to the first node of *url* that lets us in.

    Args:
        url: where to.
        purpose: what it is for, shown in the broker's list of connections.

    Raises:
        ConfigError: a TLS file cannot be read.
        BrokerUnreachable: nobody answers, at none of the nodes.
        AccessRefused: one of them does not let us in, and none of the others does.
    """
    tls = _tls(url)
    errors: list[BrokerError] = []
    for host, port in url.nodes:
        try:
            return await connect(_parameters(url, host, port, tls, purpose))
        except Exception as error:  # noqa: BLE001 - whatever it is that pika gives, it says why there is no connection
            node = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            errors.append(not_connected(node, url.user, url.vhost, tls=tls is not None, reason=error))
    refused = next((error for error in errors if isinstance(error, AccessRefused)), None)
    if refused is not None:
        raise refused
    raise BrokerUnreachable(" ".join(map(str, errors)))


def _parameters(url: BrokerUrl, host: str, port: int, tls: ssl.SSLContext | None, purpose: str) -> Parameters:
    patience = _CONNECT if url.connection_timeout is None else url.connection_timeout / 1000
    return pika.ConnectionParameters(
        host=host,
        port=port,
        virtual_host=url.vhost,
        credentials=pika.PlainCredentials(url.user, url.password),
        heartbeat=HEARTBEAT if url.heartbeat is None else url.heartbeat,
        ssl_options=None if tls is None else pika.SSLOptions(tls, url.server_name_indication or host),
        connection_attempts=1,
        retry_delay=0,
        socket_timeout=patience,
        # TCP, TLS and login together.
        stack_timeout=2 * patience,
        client_properties={"product": "leveret", "connection_name": f"leveret {purpose} ({os.getpid()})"},
    )


def _tls(url: BrokerUrl) -> ssl.SSLContext | None:
    if url.scheme != "amqps":
        return None
    what, path = "cacertfile", url.cacertfile
    try:
        context = ssl.create_default_context(cafile=url.cacertfile)
        if url.certfile is not None:
            what, path = "certfile", url.certfile
            context.load_cert_chain(url.certfile, url.keyfile)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"{url}: its option {what} names {path}, which cannot be read: {error.strerror or error}"
        ) from error
    if url.verify == "verify_none":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
