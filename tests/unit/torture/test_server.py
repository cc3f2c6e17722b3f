"""Server processes on a leash, and the words where a server is not installed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.unit.torture.endings import until_it_ends

from leveret.core.errors import ConfigError
from leveret.torture import network, node, postgres
from leveret.torture.network import Network
from leveret.torture.node import Node, find_rabbitmq
from leveret.torture.postgres import find_postgres
from leveret.torture.server import Leashed

#: Says its number, and stays.
STAYS = [sys.executable, "-c", "import os, time; print(os.getpid(), flush=True); time.sleep(600)"]
#: Starts such a process on a leash, says that process's number, and stays as well.
STARTS_ONE = """
import sys, time
from pathlib import Path
from leveret.torture.server import Leashed
out = Path(sys.argv[1])
server = Leashed(sys.argv[2:], out=out)
server.until(lambda: out.read_text().endswith("\\n"), seconds=60, what="it")
print(out.read_text(), flush=True)
time.sleep(600)
"""


def said(out: Path) -> bool:
    return out.read_text().endswith("\n")


@pytest.fixture
def stays(tmp_path):
    server = Leashed(STAYS, out=tmp_path / "out")
    server.until(lambda: said(tmp_path / "out"), seconds=60, what="it")
    yield server
    server.kill()


def test_a_server_ends_with_the_process_that_started_it_also_when_that_is_killed(tmp_path):
    command = [sys.executable, "-c", STARTS_ONE, tmp_path / "out", *STAYS]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        pid = int(starter.stdout.readline())
        starter.kill()
    until_it_ends(pid)


def test_a_server_that_is_killed_has_ended_with_all_that_it_started(stays, tmp_path):
    assert not stays.ended
    stays.kill()
    assert stays.ended
    until_it_ends(int((tmp_path / "out").read_text()))


def test_a_server_that_ends_by_itself_has_ended(stays, tmp_path):
    os.kill(int((tmp_path / "out").read_text()), signal.SIGTERM)
    stays.wait()
    assert stays.ended


def test_a_server_that_does_not_come_up_is_told_with_its_last_words(tmp_path):
    server = Leashed(["/bin/sh", "-c", "echo the disk is full; exit 1"], out=tmp_path / "out")
    with pytest.raises(RuntimeError, match=r"the shop's server ended: the disk is full"):
        server.until(lambda: False, seconds=60, what="the shop's server")


def test_a_server_that_stays_silent_is_given_up_after_its_time_and_killed(stays):
    begun = time.monotonic()
    with pytest.raises(RuntimeError, match=r"it does not answer after 0\.1 s"):
        stays.until(lambda: False, seconds=0.1, what="it")
    assert time.monotonic() - begun < 30
    assert stays.ended


def test_where_no_rabbitmq_is_installed_the_words_say_how_to_get_one(monkeypatch, tmp_path):
    with pytest.raises(ConfigError, match=r"apt-get install rabbitmq-server.*--broker"):
        Node(tmp_path, root=tmp_path)
    monkeypatch.setattr(node, "_DEBIAN", Path("no/such/folder"))
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ConfigError, match="no RabbitMQ server in /"):
        find_rabbitmq()


def test_a_rabbitmq_that_is_no_debians_is_found_on_the_path(monkeypatch, tmp_path):
    monkeypatch.setattr(node, "_DEBIAN", Path("no/such/folder"))
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "rabbitmq-server").touch(mode=0o755)
    assert find_rabbitmq() == tmp_path


def test_where_no_postgresql_is_installed_the_words_say_how_to_get_one(monkeypatch):
    monkeypatch.setattr(postgres, "_DEBIAN", Path("/no/such/folder"))
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ConfigError, match=r"apt-get install postgresql.*--store"):
        find_postgres()


def test_where_there_is_no_ip_the_words_say_how_to_get_it(monkeypatch):
    monkeypatch.setattr(network.shutil, "which", lambda *_, **__: None)
    with pytest.raises(ConfigError, match="apt-get install iproute2"):
        Network(hosts=1)
