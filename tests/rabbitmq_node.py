"""RabbitMQ nodes of a test session's own: on free ports, with data, cookie and epmd of their own, ended with it.

`LEVERET_TEST_RABBITMQ_ROOT` names a folder with another RabbitMQ, `LEVERET_TEST_AMQP_URL` a broker that is there.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from leveret.core.urls import BrokerUrl, parse_broker

#: A folder with another Debian in it (see scripts/rabbitmq-4), whose RabbitMQ the nodes are of; default: this one's.
_ROOT = Path(os.environ.get("LEVERET_TEST_RABBITMQ_ROOT") or "/")
#: Where Debian keeps the scripts that run as whoever calls them; those on the path change to the user rabbitmq.
_SCRIPTS = Path("/usr/lib/rabbitmq/bin")
#: What enters that Debian. Its /proc, which Erlang reads, is mounted for the process that is started, and goes with it.
_ENTER = ["unshare", "--mount-proc", f"--root={_ROOT}"] if _ROOT.name else []
#: A node is up in 6 s here; a busy machine takes longer.
_PATIENCE = 90.0
#: Two schedulers that sleep when idle: several nodes and the tests share the machine.
_MODEST = "+S 2:2 +sbwt none +sbwtdcpu none +sbwtdio none"
_CONFIG = """\
loopback_users = none
log.console = false
disk_free_limit.absolute = 50MB
listeners.ssl.default = 127.0.0.1:{tls_port}
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


class Node:
    """A RabbitMQ node of our own. It may be killed, stopped, started again on the same data, and starved of memory."""

    def __init__(self, folder: Path) -> None:
        self.port = _free_port()
        self.tls_port = _free_port()
        self._folder = folder
        self._epmd: subprocess.Popen[bytes] | None = None
        self._server: subprocess.Popen[bytes] | None = None
        _make_certificate(folder)
        # The folder, as the node sees it.
        seen = "/" / folder.relative_to(_ROOT)
        (folder / "rabbitmq.conf").write_text(_CONFIG.format(tls_port=self.tls_port, folder=seen))
        (folder / "plugins").write_text("[].\n")
        epmd_port = str(_free_port())
        self._environment = {
            "PATH": f"{os.environ['PATH']}:/usr/sbin:/usr/bin:/sbin:/bin",
            "LANG": "C.UTF-8",
            # Erlang keeps its cookie in the home folder, and writes one where there is none.
            "HOME": str(seen),
            "ERL_EPMD_PORT": epmd_port,
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"leveret-{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(_free_port()),
            "RABBITMQ_MNESIA_BASE": str(seen / "data"),
            "RABBITMQ_LOG_BASE": str(seen / "log"),
            "RABBITMQ_PID_FILE": str(seen / "pid"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(seen / "plugins"),
            "RABBITMQ_CONFIG_FILE": str(seen / "rabbitmq.conf"),
            "RABBITMQ_CONF_ENV_FILE": str(seen / "none"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": _MODEST,
            # The command line tool is an Erlang machine too, and starts once a call.
            "RABBITMQ_CTL_ERL_ARGS": "+S 1:1 +sbwt none",
        }

    @property
    def url(self) -> str:
        """Its address."""
        return f"amqp://guest:guest@127.0.0.1:{self.port}"

    @property
    def address(self) -> BrokerUrl:
        """Its address, as leveret reads it."""
        return parse_broker(self.url, "the test")

    @property
    def certificate(self) -> Path:
        """What it shows on its TLS port: for localhost, signed by itself."""
        return self._folder / "cert.pem"

    @property
    def pid(self) -> int:
        """The process of the node itself."""
        return int((self._folder / "pid").read_text())

    @property
    def log(self) -> str:
        """All that it has logged."""
        return "".join(path.read_text(errors="replace") for path in (self._folder / "log").glob("*.log"))

    def start(self) -> None:
        """Start it, on the data that is there, and wait until it speaks AMQP."""
        if self._epmd is None:
            port = self._environment["ERL_EPMD_PORT"]
            self._epmd = subprocess.Popen(
                [*_ENTER, "epmd", "-port", port, "-address", "127.0.0.1"],
                env=self._environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        with (self._folder / "out").open("ab") as out:
            self._server = subprocess.Popen(
                [*_ENTER, _SCRIPTS / "rabbitmq-server"],
                env=self._environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True,
            )  # fmt: skip
        self.until_it_answers()

    def until_it_answers(self) -> None:
        """Wait until it speaks AMQP."""
        until = time.monotonic() + _PATIENCE
        while not self._answers():
            ended = self._server is not None and self._server.poll() is not None
            if ended or time.monotonic() > until:
                raise RuntimeError(
                    f"the RabbitMQ node in {self._folder} does not answer: {(self._folder / 'out').read_text()[-2000:]}"
                )
            time.sleep(0.1)

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=2) as probe:
                probe.sendall(b"AMQP\x00\x00\x09\x01")
                return probe.recv(1) == b"\x01"
        except OSError:
            return False

    def kill(self) -> None:
        """Kill it, as `kill -9` does."""
        os.kill(self.pid, signal.SIGKILL)
        if self._server is not None:
            self._server.wait(30)
        self._server = None

    def end(self) -> None:
        """Kill all that was started for it."""
        if self._server is not None and self._server.poll() is None:
            try:
                self.kill()
            except (OSError, ValueError):
                os.killpg(self._server.pid, signal.SIGKILL)
                self._server.wait(30)
        if self._epmd is not None:
            self._epmd.kill()
            self._epmd.wait(30)

    def ctl(self, *arguments: str) -> str:
        """What `rabbitmqctl` says."""
        done = subprocess.run(
            [*_ENTER, _SCRIPTS / "rabbitmqctl", "--quiet", *arguments],
            env=self._environment, capture_output=True, text=True, timeout=_PATIENCE, check=False,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"rabbitmqctl {' '.join(arguments)}: {done.stdout}{done.stderr}")
        return done.stdout

    def evaluate(self, erlang: str) -> str:
        """The value of an Erlang expression in the node."""
        return self.ctl("eval", erlang).strip()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _make_certificate(folder: Path) -> None:
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=DNS:localhost", "-keyout", folder / "key.pem", "-out", folder / "cert.pem"],
        check=True, capture_output=True,
    )  # fmt: skip


def installed() -> bool:
    """Whether nodes can be started here."""
    scripts = _ROOT / _SCRIPTS.relative_to("/")
    return (scripts / "rabbitmq-server").exists() and shutil.which("openssl") is not None


def need_rabbitmq() -> None:
    """Skip the test where no RabbitMQ can be had; in CI that is a failure, and where a folder was named for it."""
    if not installed():
        if _ENTER:
            pytest.fail(
                f"LEVERET_TEST_RABBITMQ_ROOT: no RabbitMQ in {_ROOT}. Get one: scripts/rabbitmq-4 {_ROOT} trixie"
            )
        if os.environ.get("CI"):
            pytest.fail("needs RabbitMQ: make services")
        pytest.skip("needs RabbitMQ: make services")


def named_broker() -> NamedBroker | None:
    """The broker that gentle tests use instead of a node of their own, if there is one."""
    url = os.environ.get("LEVERET_TEST_AMQP_URL")
    return NamedBroker(url) if url else None


@contextmanager
def running_node() -> Iterator[Node]:
    """A node that runs, and is gone afterwards with all its data."""
    need_rabbitmq()
    folder = Path(tempfile.mkdtemp(prefix="leveret-rabbitmq-", dir=_ROOT / "tmp" if _ENTER else None))
    node = Node(folder)
    try:
        node.start()
        yield node
    finally:
        node.end()
        shutil.rmtree(folder, ignore_errors=True)
