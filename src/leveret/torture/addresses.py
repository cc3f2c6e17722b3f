"""Addresses: where the broker and the store of a run are, which of them are ours, and how proxies stand before them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import urlsplit

from leveret.core.urls import parse_broker
from leveret.torture.cluster import Cluster
from leveret.torture.node import Node

#: Where PostgreSQL listens if its URL does not say.
_POSTGRES = 5432


class Stoppable(Protocol):
    """A server of ours, which can be stopped and killed, and started again on the same data."""

    def start(self) -> None:
        """Start it, and return once it answers."""

    def stop(self) -> None:
        """Have it end its connections and stop."""

    def kill(self) -> None:
        """Kill it, as `kill -9` does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Brokers:
    """The broker of a run.

    Attributes:
        url: of all its nodes.
        nodes: those that are ours; none: it is somebody's, and nothing is done to it.
        cluster: of them, where there are three.
    """

    url: str
    nodes: Sequence[Node] = ()
    cluster: Cluster | None = None

    @property
    def addresses(self) -> Sequence[tuple[str, int]]:
        """Host and port of each node."""
        return parse_broker(self.url, "--broker").nodes

    def behind(self, ports: Sequence[int]) -> str:
        """Its URL, with proxies on these ports of this machine in the place of its nodes."""
        scheme, _, rest = self.url.partition("://")
        login, at, rest = rest.rpartition("@")
        _, slash, vhost = rest.partition("/")
        hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
        return f"{scheme}://{login}{at}{hosts}{slash}{vhost}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreServer:
    """A PostgreSQL server that keeps the store of a run.

    Attributes:
        url: of it.
        server: where it is ours; None: it is somebody's, and nothing is done to it.
    """

    url: str
    server: Stoppable | None = None

    @property
    def address(self) -> tuple[str, int]:
        """Its host and port."""
        parts = urlsplit(self.url)
        return parts.hostname or "127.0.0.1", parts.port or _POSTGRES

    def behind(self, port: int) -> str:
        """Its URL, with a proxy on this port of this machine in its place."""
        parts = urlsplit(self.url)
        login, at, _ = parts.netloc.rpartition("@")
        return parts._replace(netloc=f"{login}{at}127.0.0.1:{port}").geturl()
