"""RabbitMQ nodes of a test session's own, with TLS, ended with it; or a broker that is there.

`LEVERET_TEST_RABBITMQ_ROOT` names a folder with another RabbitMQ, `LEVERET_TEST_AMQP_URL` a broker that is there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from leveret.core.errors import ConfigError
from leveret.core.urls import BrokerUrl, parse_broker
from leveret.torture import node as private
from leveret.torture.server import free_port

#: A folder with another Debian in it (see scripts/rabbitmq-4), whose RabbitMQ the nodes are of; default: this one's.
ROOT = Path(os.environ.get("LEVERET_TEST_RABBITMQ_ROOT") or "/")
_TLS = """\
listeners.ssl.default = 127.0.0.1:{port}
ssl_options.cacertfile = {folder}/cert.pem
ssl_options.certfile = {folder}/cert.pem
ssl_options.keyfile = {folder}/key.pem
"""


class NamedBroker:
    """A broker that others use as well, `LEVERET_TEST_AMQP_URL`: it is spoken to by AMQP alone, and never harmed."""

    def __init__(self, url: str) -> None:
        self.address = parse_broker(url, "LEVERET_TEST_AMQP_URL")
        if self.address.scheme != "amqp":
            raise pytest.UsageError(
                f"LEVERET_TEST_AMQP_URL is {self.address}: tests put a proxy before it, so it has to be amqp://"
            )


class Node(private.Node):
    """A RabbitMQ node of our own that speaks TLS as well, on another port."""

    def __init__(self, folder: Path, config: str = "") -> None:
        self.tls_port = free_port()
        _make_certificate(folder)
        # The folder, as the node sees it.
        seen = "/" / folder.relative_to(ROOT)
        super().__init__(folder, root=ROOT, config=_TLS.format(port=self.tls_port, folder=seen) + config)

    @property
    def address(self) -> BrokerUrl:
        """Its address, as leveret reads it."""
        return parse_broker(self.url, "the test")

    @property
    def certificate(self) -> Path:
        """What it shows on its TLS port: for localhost, signed by itself."""
        return self.folder / "cert.pem"


def _make_certificate(folder: Path) -> None:
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=DNS:localhost", "-keyout", folder / "key.pem", "-out", folder / "cert.pem"],
        check=True, capture_output=True,
    )  # fmt: skip


def installed() -> bool:
    """Whether nodes can be started here."""
    try:
        private.find_rabbitmq(ROOT)
    except ConfigError:
        return False
    return shutil.which("openssl") is not None


def need_rabbitmq() -> None:
    """Skip the test where no RabbitMQ can be had; in CI that is a failure, and where a folder was named for it."""
    if not installed():
        if ROOT.name:
            pytest.fail(
                f"LEVERET_TEST_RABBITMQ_ROOT: no RabbitMQ in {ROOT}. Get one: scripts/rabbitmq-4 {ROOT} trixie"
            )
        if os.environ.get("CI"):
            pytest.fail("needs RabbitMQ: make services")
        pytest.skip("needs RabbitMQ: make services")


def named_broker() -> NamedBroker | None:
    """The broker that gentle tests use instead of a node of their own, if there is one."""
    url = os.environ.get("LEVERET_TEST_AMQP_URL")
    return NamedBroker(url) if url else None


@contextmanager
def node_folder() -> Iterator[Path]:
    """A folder that nodes can write in, gone afterwards."""
    need_rabbitmq()
    folder = Path(tempfile.mkdtemp(prefix="leveret-rabbitmq-", dir=ROOT / "tmp" if ROOT.name else None))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def running_node(config: str = "") -> Iterator[Node]:
    """A node that runs, with *config* besides, and is gone afterwards with all its data."""
    with node_folder() as folder:
        node = Node(folder, config)
        try:
            node.start()
            # It answers before it has booted, and until then 4.0 loses what goes to the address of a direct reply: the
            # node is not yet among those that it looks for the address on.
            node.ctl("await_startup")
            yield node
        finally:
            node.end()
