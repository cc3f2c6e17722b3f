"""Network: hosts in network namespaces of our own, and links between them that lose everything in silence.

Each host has a namespace with one interface; a switch in one more namespace joins them. We stand on that switch too, by
one interface outside of all of them, so that what runs here reaches every host by its address. Nothing else is routed
there, and no other traffic is touched. It takes Linux, root and `ip` (iproute2).

A link is cut one way at a time: the sender is told a hardware address for the receiver that nobody has, so its packets
leave, and nobody takes them. Neither side sees its interface go down, a reset, or an ICMP message: as in a network that
is cut somewhere in the middle.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from ipaddress import IPv4Network, ip_network
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from leveret.core.errors import ConfigError

#: For tests of networks (RFC 2544), so neither in the internet nor, as a rule, in anybody's company.
_RANGE: Final = IPv4Network("198.18.0.0/15")
#: Nobody's.
_NOWHERE: Final = "02:00:00:00:00:00"
#: Of all namespaces of ours: with the process that made them, so that what it left behind can be told.
_OURS: Final = re.compile(r"leveret-(\d+)-\d+-")
_NUMBERS: Final = itertools.count(1)


def unavailable() -> str | None:
    """Why no network can be made here, in a sentence; None where it can."""
    if sys.platform != "linux" or os.getuid() != 0:
        return "networks of our own take Linux and root"
    try:
        with Network(hosts=1):
            return None
    except (ConfigError, RuntimeError) as error:
        return f"no network can be made here: {error}"


class Network:
    """Hosts on one switch, each with a network namespace of its own. Open it, or use it in a `with` block.

    When it opens it removes what processes that are gone have left behind.

    Args:
        hosts: how many.

    Raises:
        ConfigError: `ip` is not installed; says what to do.
        RuntimeError: on opening, where the system refuses; with what it says.

    Example:
        ```
        with Network(hosts=2) as network:
            subprocess.Popen([*network.enter(0), "some-server"])
            network.lose(sender=0, receiver=1)  # 0 hears 1, 1 does not hear 0
            network.heal()
        ```
    """

    def __init__(self, hosts: int) -> None:
        found = shutil.which("ip", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
        if found is None:
            raise ConfigError(
                "there is no `ip` here to make networks with. Install iproute2 (Debian: apt-get install iproute2)"
            )
        self._ip = found
        number = next(_NUMBERS)
        self._names = f"leveret-{os.getpid()}-{number}-"
        #: An interface's name has 15 characters at most.
        self._interface = f"lv{os.getpid()}-{number}"
        self._hosts = range(hosts)
        self._lost: set[tuple[int | None, int | None]] = set()
        #: Of each host.
        self.addresses: tuple[str, ...] = ()
        self._our_address = ""

    def open(self) -> None:
        """Make it."""
        self._remove_leftovers()
        subnet = self._free_subnet()
        self._our_address = str(subnet[1])
        self.addresses = tuple(str(subnet[11 + host]) for host in self._hosts)
        switch = f"{self._names}switch"
        try:
            self._run("netns", "add", switch)
            self._run("-n", switch, "link", "add", "switch", "type", "bridge")
            self._run("-n", switch, "link", "set", "switch", "up")
            for host in self._hosts:
                self._run("netns", "add", self._name(host))
                self._run("-n", self._name(host), "link", "set", "lo", "up")
                self._plug_in(switch, host, f"{self.addresses[host]}/{subnet.prefixlen}")
            self._plug_in(switch, None, f"{self._our_address}/{subnet.prefixlen}")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Remove it. What still runs in it is cut off."""
        self._lost.clear()
        # The other end of our interface is in a namespace that lives on for as long as something runs in it.
        if Path("/sys/class/net", self._interface).exists():
            self._run("link", "delete", self._interface)
        for name in self._namespaces():
            if name.startswith(self._names):
                self._run("netns", "delete", name)

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def enter(self, host: int) -> list[str]:
        """What a command is begun with to run on that host."""
        return ["nsenter", f"--net=/run/netns/{self._name(host)}", "--"]

    def lose(self, *, sender: int | None, receiver: int | None) -> None:
        """From now on, until `heal`, lose all that *sender* sends to *receiver*. None: what runs here, outside."""
        to = self._our_address if receiver is None else self.addresses[receiver]
        self._run(
            *self._at(sender),
            "neigh",
            "replace",
            to,
            "lladdr",
            _NOWHERE,
            "nud",
            "permanent",
            "dev",
            self._port(sender),
        )
        self._lost.add((sender, receiver))

    def heal(self) -> None:
        """Lose nothing any more."""
        for sender, receiver in self._lost:
            to = self._our_address if receiver is None else self.addresses[receiver]
            self._run(*self._at(sender), "neigh", "delete", to, "dev", self._port(sender))
        self._lost.clear()

    def _name(self, host: int) -> str:
        return f"{self._names}host-{host + 1}"

    def _at(self, host: int | None) -> tuple[str, ...]:
        return () if host is None else ("-n", self._name(host))

    def _port(self, host: int | None) -> str:
        return self._interface if host is None else "eth0"

    def _plug_in(self, switch: str, host: int | None, address: str) -> None:
        at, port = self._at(host), self._port(host)
        plug = "ours" if host is None else f"host-{host + 1}"
        self._run(*at, "link", "add", port, "type", "veth", "peer", "name", plug, "netns", switch)
        self._run("-n", switch, "link", "set", plug, "master", "switch", "up")
        self._run(*at, "address", "add", address, "dev", port)
        self._run(*at, "link", "set", port, "up")

    def _run(self, *arguments: str) -> str:
        done = subprocess.run([self._ip, *arguments], capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def _namespaces(self) -> list[str]:
        return [line.split()[0] for line in self._run("netns", "list").splitlines()]

    def _remove_leftovers(self) -> None:
        for name in self._namespaces():
            maker = _OURS.match(name)
            if maker and not Path("/proc", maker[1]).exists():
                self._run("netns", "delete", name)

    def _free_subnet(self) -> IPv4Network:
        """256 addresses that no interface and no route of this machine knows."""
        used = [
            ip_network(route["dst"], strict=False)
            for route in json.loads(self._run("-json", "-4", "route", "show", "table", "all"))
            if route["dst"] != "default"
        ]
        subnets = list(_RANGE.subnets(new_prefix=24))
        # Two processes that look at the same time begin at different ones.
        begin = os.getpid() % len(subnets)
        for subnet in subnets[begin:] + subnets[:begin]:
            if not any(subnet.overlaps(other) for other in used):
                return subnet
        raise RuntimeError(f"every network in {_RANGE} is in use on this machine")
