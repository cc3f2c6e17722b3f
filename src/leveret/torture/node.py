"""RabbitMQ nodes of our own: on free ports, with data, cookie and epmd of their own, gone with us."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from leveret.core.errors import ConfigError
from leveret.torture.server import Leashed, free_port

#: Where Debian keeps the scripts that run as whoever calls them; those on the path change to the user rabbitmq.
_DEBIAN: Final = Path("usr/lib/rabbitmq/bin")
#: Seconds for a node to come up, to stop, and for its command line tool. It is up in 6 s; a busy machine takes longer.
_PATIENCE: Final = 90.0
#: Two schedulers that sleep when idle: several nodes and their clients share a machine.
_MODEST: Final = "+S 2:2 +sbwt none +sbwtdcpu none +sbwtdio none"
#: The least RabbitMQ may use before it blocks publishers: it uses more before anybody connects.
_STARVED: Final = "1MB"
_CONFIG: Final = """\
loopback_users = none
log.console = false
disk_free_limit.absolute = 50MB
vm_memory_high_watermark.relative = 0.4
"""


def find_rabbitmq(root: Path = Path("/")) -> Path:
    """The folder with RabbitMQ's scripts, as seen from within *root*.

    Raises:
        ConfigError: there is none; says what to do.
    """
    if (root / _DEBIAN / "rabbitmq-server").exists():
        return "/" / _DEBIAN
    found = shutil.which("rabbitmq-server") if root == Path("/") else None
    if found is None:
        raise ConfigError(
            f"there is no RabbitMQ server in {root} to start a node of our own from. Install one (Debian: apt-get "
            "install rabbitmq-server), or name a broker that runs: --broker amqp://…"
        )
    return Path(found).parent


def _entering(root: Path, enter: Sequence[str]) -> list[str]:
    """What a command is begun with to run in that network and that Debian.

    Another one's /proc, which Erlang reads, is mounted for the process that is started, and goes with it.
    """
    return [*enter, *([] if root == Path("/") else ["unshare", "--mount-proc", f"--root={root}"])]


class Epmd:
    """Erlang's name server, by which nodes of one host find each other.

    Args:
        folder: where its output lies.
        root, enter: as for `Node`.
        address: it listens on.
        port: it listens on; nodes look for each other's at their own one's.
    """

    def __init__(self, folder: Path, *, root: Path, address: str, enter: Sequence[str], port: int) -> None:
        self.port: Final = port
        self._out = folder / "epmd.out"
        self._command = [*_entering(root, enter), "epmd", "-port", str(self.port), "-address", address]
        self._process: Leashed | None = None

    def start(self) -> None:
        """Start it, unless it runs."""
        if self._process is None or self._process.ended:
            self._process = Leashed(self._command, out=self._out)

    def end(self) -> None:
        """Kill it, if it runs."""
        if self._process is not None:
            self._process.kill()


class Node:
    """A RabbitMQ node of our own. It may be killed, stopped, started again on the same data, paused and starved.

    Everything it writes lies in its folder. It ends with the process that started it, however that ends. All calls
    block until what they say is so.

    Args:
        folder: an empty one, inside *root*.
        root: a folder with another Debian in it, whose RabbitMQ is run; by default this one's.
        address: it listens on, for clients and for other nodes.
        enter: what a command is begun with to run in the network of that address.
        name: before the `@` of its name; by default made of its port.
        cookie: the secret that it shares with the other nodes of a cluster; by default one of its own.
        epmd: of its host; by default one of its own, which ends with it.
        config: further lines of rabbitmq.conf.

    Raises:
        ConfigError: no RabbitMQ is installed.

    Example:
        ```
        node = Node(folder)
        node.start()
        node.url
        node.kill()
        node.start()
        node.end()
        ```
    """

    def __init__(
        self,
        folder: Path,
        *,
        root: Path = Path("/"),
        address: str = "127.0.0.1",
        enter: Sequence[str] = (),
        name: str | None = None,
        cookie: str | None = None,
        epmd: Epmd | None = None,
        config: str = "",
    ) -> None:
        self.port: Final = free_port()
        self.host: Final = address
        self.name: Final = f"{name or f'leveret-{self.port}'}@{address}"
        self.folder: Final = folder
        self._scripts = find_rabbitmq(root)
        self._enter = _entering(root, enter)
        self._own_epmd = epmd is None
        self._epmd = epmd or Epmd(folder, root=root, address=address, enter=enter, port=free_port())
        self._server: Leashed | None = None
        # The folder, as the node sees it.
        seen = "/" / folder.relative_to(root)
        (folder / "rabbitmq.conf").write_text(_CONFIG + config)
        (folder / "plugins").write_text("[].\n")
        # Erlang asks for this machine's own name, and where no resolver can be reached that takes it seconds each time.
        (folder / "inetrc").write_text(
            f'{{host, {{127,0,0,1}}, ["localhost", "{socket.gethostname()}"]}}.\n{{lookup, [file]}}.\n'
        )
        # Erlang keeps its cookie in the home folder, and writes one where there is none.
        if cookie is not None:
            (folder / ".erlang.cookie").write_text(cookie)
            (folder / ".erlang.cookie").chmod(0o400)
        interface = "{" + address.replace(".", ",") + "}"
        self._environment = {
            "PATH": f"{os.environ['PATH']}:/usr/sbin:/usr/bin:/sbin:/bin",
            "LANG": "C.UTF-8",
            "HOME": str(seen),
            "ERL_INETRC": str(seen / "inetrc"),
            "ERL_EPMD_PORT": str(self._epmd.port),
            "ERL_EPMD_ADDRESS": address,
            # Erlang would start one that is on no leash, where our own was ended a moment ago.
            "ERL_FLAGS": "-start_epmd false",
            # Names with an address need nobody who knows names.
            "RABBITMQ_USE_LONGNAME": "true",
            "RABBITMQ_NODENAME": self.name,
            "RABBITMQ_NODE_IP_ADDRESS": address,
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_MNESIA_BASE": str(seen / "data"),
            "RABBITMQ_LOG_BASE": str(seen / "log"),
            "RABBITMQ_PID_FILE": str(seen / "pid"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(seen / "plugins"),
            "RABBITMQ_CONFIG_FILE": str(seen / "rabbitmq.conf"),
            "RABBITMQ_CONF_ENV_FILE": str(seen / "none"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": f"{_MODEST} -kernel inet_dist_use_interface {interface}",
            # The command line tool is an Erlang machine too, and starts once a call.
            "RABBITMQ_CTL_ERL_ARGS": "+S 1:1 +sbwt none",
        }

    @property
    def url(self) -> str:
        """Its address, as `amqp://`."""
        return f"amqp://guest:guest@{self.host}:{self.port}"

    @property
    def pid(self) -> int:
        """The process of the node itself."""
        return int((self.folder / "pid").read_text())

    @property
    def runs(self) -> bool:
        """Whether it was started, and has not ended."""
        return self._server is not None and not self._server.ended

    @property
    def log(self) -> str:
        """All that it has logged."""
        return "".join(path.read_text(errors="replace") for path in (self.folder / "log").glob("*.log"))

    def start(self) -> None:
        """Start it, on the data that is there, and wait until it speaks AMQP.

        Raises:
            RuntimeError: it ended, or does not answer in time. A node of a cluster answers once most of them run.
        """
        self._epmd.start()
        # Until the node has written it, there is none: that of a node that was killed names nobody, or somebody else.
        (self.folder / "pid").unlink(missing_ok=True)
        self._server = Leashed(
            [*self._enter, self._scripts / "rabbitmq-server"],
            out=self.folder / "out",
            environment=self._environment,
        )
        self.until_it_answers()

    def until_it_answers(self) -> None:
        """Wait until it speaks AMQP."""
        if self._server is None:
            raise RuntimeError(f"the RabbitMQ node in {self.folder} was not started")
        self._server.until(self._answers, seconds=_PATIENCE, what=f"the RabbitMQ node in {self.folder}")

    def _answers(self) -> bool:
        try:
            with socket.create_connection((self.host, self.port), timeout=2) as probe:
                probe.sendall(b"AMQP\x00\x00\x09\x01")
                return probe.recv(1) == b"\x01"
        except OSError:
            return False

    def kill(self) -> None:
        """Kill it, as `kill -9` does."""
        if self._server is None:
            return
        if not self._server.ended and (self.folder / "pid").exists():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            # The script that started it waits for its end.
            self._server.wait()
        self._server.kill()

    def stop(self) -> None:
        """Have it end its connections, write what it holds, and stop."""
        if self._server is not None and not self._server.ended:
            os.kill(self.pid, signal.SIGTERM)
            self._server.wait(_PATIENCE)

    def restart(self) -> None:
        """Stop it gently, and start it on the same data."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """Stop it where it stands; connections stay open, and nothing is answered."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on after `pause`."""
        os.kill(self.pid, signal.SIGCONT)

    def end(self) -> None:
        """Kill all that was started for it."""
        self.kill()
        if self._own_epmd:
            self._epmd.end()

    def alarm(self, *, on: bool) -> None:
        """Have it find that it uses too much memory, so that it blocks who publishes; or that it does not."""
        self.ctl("set_vm_memory_high_watermark", *(("absolute", _STARVED) if on else ("0.4",)))

    def version(self) -> str:
        """RabbitMQ's version, such as `3.10.8`."""
        return self.ctl("version").strip()

    def ctl(self, *arguments: str, seconds: float = _PATIENCE) -> str:
        """What `rabbitmqctl` says.

        Raises:
            RuntimeError: it failed, with all that it says; or it took longer than so many seconds.
        """
        told = f"rabbitmqctl {' '.join(arguments)}"
        try:
            done = subprocess.run(
                [*self._enter, self._scripts / "rabbitmqctl", "--quiet", *arguments],
                env=self._environment, capture_output=True, text=True, timeout=seconds, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"{told}: it says nothing for {seconds:g} s") from None
        if done.returncode:
            raise RuntimeError(f"{told}: {done.stdout}{done.stderr}")
        return done.stdout

    def evaluate(self, erlang: str) -> str:
        """The value of an Erlang expression in the node."""
        return self.ctl("eval", erlang).strip()
