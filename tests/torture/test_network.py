"""Networks of our own: packets are lost one way at a time, and nothing is left behind. It takes root."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from leveret.torture.network import Network, unavailable

#: Answers with whom it hears; a host that listens.
LISTENS = """
import socket, sys
inbox = socket.socket(type=socket.SOCK_DGRAM)
inbox.bind((sys.argv[1], 7000))
print("ready", flush=True)
while True:
    print(inbox.recvfrom(100)[0].decode(), flush=True)
"""
SENDS = """
import socket, sys
socket.socket(type=socket.SOCK_DGRAM).sendto(sys.argv[2].encode(), (sys.argv[1], 7000))
"""


#: Opens a network, and stays.
OPENS = """
import time
from leveret.torture.network import Network
Network(hosts=1).open()
print("open", flush=True)
time.sleep(600)
"""


def need_networks():
    """Skip the test where no network can be made; in CI, which runs as root, that is a failure."""
    reason = unavailable()
    if reason is not None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(reason)


def ip(*arguments):
    return subprocess.run(["ip", *arguments], capture_output=True, text=True, check=True).stdout


def namespaces():
    return {line.split()[0] for line in ip("netns", "list").splitlines()}


def ours(names, pid):
    return {name for name in names if name.startswith(f"leveret-{pid}-")}


class Host:
    """A host that listens, and says what it has heard."""

    def __init__(self, network, number):
        self.network, self.number = network, number
        command = [*network.enter(number), sys.executable, "-c", LISTENS, network.addresses[number]]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout.readline() == "ready\n"

    def hears(self, sender, word):
        """Whether *word* arrives before what is sent after it by the host itself."""
        enter = [] if sender is None else self.network.enter(sender)
        for entered, said in ((enter, word), (self.network.enter(self.number), "end")):
            command = [*entered, sys.executable, "-S", "-c", SENDS, self.network.addresses[self.number], said]
            subprocess.run(command, check=True)
        heard = []
        while (line := self._process.stdout.readline().strip()) != "end":
            heard.append(line)
        return word in heard

    def end(self):
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()


@pytest.fixture
def hosts():
    need_networks()
    with Network(hosts=2) as network:
        hosts = [Host(network, number) for number in range(2)]
        yield hosts
        for host in hosts:
            host.end()


def test_all_hear_all_and_are_heard_from_outside(hosts):
    first, second = hosts
    assert first.hears(1, "hello")
    assert second.hears(0, "hello")
    assert first.hears(None, "hello")


def test_what_is_lost_one_way_arrives_the_other_way_until_it_is_healed(hosts):
    first, second = hosts
    first.network.lose(sender=0, receiver=1)
    assert not second.hears(0, "lost")
    assert first.hears(1, "kept")
    assert second.hears(None, "kept")
    first.network.heal()
    assert second.hears(0, "healed")


def test_we_can_be_cut_from_one_host_alone(hosts):
    first, second = hosts
    first.network.lose(sender=None, receiver=0)
    assert not first.hears(None, "lost")
    assert second.hears(None, "kept")
    assert first.hears(1, "kept")
    first.network.heal()
    assert first.hears(None, "healed")


def test_a_network_is_gone_when_it_is_closed():
    need_networks()
    before = ip("-brief", "address")
    with Network(hosts=2):
        assert len(ours(namespaces(), os.getpid())) == 3
        assert ip("-brief", "address") != before
    assert not ours(namespaces(), os.getpid())
    assert ip("-brief", "address") == before


def test_what_a_killed_process_left_behind_is_removed_by_the_next_and_what_lives_is_left_alone():
    need_networks()
    command = [sys.executable, "-c", OPENS]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE) as left,
        subprocess.Popen(command, stdout=subprocess.PIPE) as lives,
    ):
        assert left.stdout.readline() == lives.stdout.readline() == b"open\n"
        left.kill()
        left.wait()
        assert ours(namespaces(), left.pid)
        with Network(hosts=1):
            assert not ours(namespaces(), left.pid)
            assert ours(namespaces(), lives.pid)
        lives.kill()
    with Network(hosts=1):
        assert not ours(namespaces(), lives.pid)


def test_two_networks_share_no_address():
    need_networks()
    with Network(hosts=1) as one, Network(hosts=1) as other:
        assert one.addresses != other.addresses
        routes = [route["dst"] for route in json.loads(ip("-json", "route"))]
        assert len(routes) == len(set(routes))


def test_no_network_is_made_where_every_one_of_the_range_is_in_use(monkeypatch):
    need_networks()
    network = Network(hosts=1)
    run = network._run
    taken = json.dumps([{"dst": "default"}, {"dst": "198.0.0.0/8"}])
    monkeypatch.setattr(network, "_run", lambda *words: taken if "route" in words else run(*words))
    with pytest.raises(RuntimeError, match="in use on this machine"):
        network.open()
    assert not ours(namespaces(), os.getpid())


def test_where_we_are_not_root_the_reason_is_told(monkeypatch):
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    assert unavailable() == "networks of our own take Linux and root"
