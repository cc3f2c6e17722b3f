from __future__ import annotations

import subprocess

import pytest

import leveret
from leveret.cli import bench, main


@pytest.fixture
def started(monkeypatch):
    """What `leveret bench` starts, instead of measuring for minutes."""
    calls = []

    def run(command, **options):
        calls.append((command, options))
        return subprocess.CompletedProcess(command, 1)

    monkeypatch.setattr(bench.subprocess, "run", run)
    return calls


def leave(arguments):
    with pytest.raises(SystemExit) as left:
        main(arguments)
    return left.value.code


def test_it_runs_the_benchmarks_of_its_checkout_and_ends_as_they_do(started):
    assert leave(["bench", "publish_confirmed", "--json", "--broker", "amqp://there"]) == 1
    [(command, options)] = started
    assert command[1:] == ["-m", "benchmarks", "--json", "publish_confirmed"]
    assert (options["cwd"] / "benchmarks" / "publish_confirmed.py").exists()
    assert options["env"]["LEVERET_TEST_AMQP_URL"] == "amqp://there"


def test_elsewhere_it_says_that_it_needs_a_checkout(started, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(leveret, "__file__", str(tmp_path / "site-packages" / "leveret" / "__init__.py"))
    assert leave(["bench"]) == 2
    assert started == []
    assert "from a checkout" in capsys.readouterr().err


@pytest.mark.parametrize(
    "flag", ["--config=a.toml", "--store=memory://", "--namespace=shop", "--broker=memory://"]
)
def test_a_flag_that_would_change_nothing_is_refused(started, flag, capsys):
    assert leave(["bench", flag]) == 2
    assert started == []
    assert flag.split("=")[0] in capsys.readouterr().err
