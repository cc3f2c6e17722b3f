"""Runs the tests for RabbitMQ on each version that leveret is proved on, with classic and with quorum queues.

    make matrix                                        # 3.10, 4.0 and 4.3, each with both types of queues
    make matrix ARGS="4.3 --queue-type quorum"         # one of six
    make matrix ARGS="--short 4.3"                     # what CI has time for, with quorum queues

A version that is not installed is unpacked once by scripts/rabbitmq-4, which takes root, debootstrap and a mirror of
Debian. It exits with 1 where a test failed, and with 3 where a version cannot be had.
"""
# ruff: noqa: INP001, S314, S603, S607, T201  no package, but a script: it runs what it names, reads what it has written, prints

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
#: The release of Debian that has each version, and the folder it is unpacked into where it is not this one's.
SUITES = {"3.10": "bookworm", "4.0": "trixie", "4.3": "sid"}
FOLDERS = "/var/tmp/leveret-rabbitmq-"  # noqa: S108 - outlives a restart; the script that fills it looks what lies there
TYPES = ("classic", "quorum")
ALL = (
    "tests/contracts/test_rabbitmq_transport.py",
    "tests/integration/rabbitmq",
    "tests/cases/rabbitmq",
    "tests/torture/rabbitmq",
    "tests/e2e/rabbitmq",
)
#: The cases whose 4.x half differs, what a version may refuse, and one scene of torture.
SHORT = (
    *(
        f"tests/cases/rabbitmq/test_{case}_*"
        for case in ("a01", "a04", "a05", "a10", "a20", "b07", "b12", "b22", "d12")
    ),
    "tests/contracts/test_rabbitmq_transport.py",
    "tests/integration/rabbitmq/test_declaring.py",
    "tests/integration/rabbitmq/test_consuming.py",
    "tests/integration/rabbitmq/test_app_suspects.py",
    "tests/torture/rabbitmq/test_deadly_message.py",
)
#: Quorum queues have changed with each version; the cases that differ for classic ones name them.
SHORT_TYPES = ("quorum",)
#: How the broker's log names the use of something that it gives up; see tests/rabbitmq_log.py.
GIVEN_UP = "Deprecated features: "
#: Seconds that getting a version may take; it takes one to one and a half minutes, and for a mirror that is away
#: debootstrap would wait for very long. Whoever has a slow line runs scripts/rabbitmq-4 beforehand.
PATIENCE = 180.0
#: What scripts/rabbitmq-4 has failed to get, or what it needs.
CANNOT = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What came of the tests on one version with one type of queues."""

    version: str
    queue_type: str
    passed: int
    skipped: int
    failed: int
    seconds: float
    #: Lines of the broker's log that warn of a use that no test meant.
    given_up: int
    exit: int

    @property
    def cells(self) -> tuple[str, ...]:
        """As the table has it."""
        numbers = (self.passed, self.skipped, self.failed, self.seconds, self.given_up)
        return (self.version, self.queue_type, *(f"{number:.0f}" for number in numbers))


def main() -> int:
    """Run what is asked for, and print a table of it."""
    parser = argparse.ArgumentParser(
        prog="make matrix ARGS=…", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument(
        "versions", nargs="*", metavar="VERSION", help=f"of {', '.join(SUITES)}; default: all"
    )
    parser.add_argument(
        "--queue-type", choices=TYPES, help="default: one run with each; with --short, quorum queues"
    )
    parser.add_argument(
        "--short", action="store_true", help="the tests whose outcome depends on the version most"
    )
    asked = parser.parse_args()
    unknown = [version for version in asked.versions if version not in SUITES]
    if unknown:
        parser.error(f"{', '.join(unknown)}: not a version that is known here; {', '.join(SUITES)} are")
    roots = {version: _root(version) for version in asked.versions or SUITES}
    types = (asked.queue_type,) if asked.queue_type else SHORT_TYPES if asked.short else TYPES
    rows = [_run(root, queue_type, short=asked.short) for root in roots.values() for queue_type in types]
    _show(rows)
    return int(any(row.exit or row.given_up for row in rows))


def _root(version: str) -> str:
    """The folder whose RabbitMQ is of that version: `/`, or one that is unpacked where it is missing."""
    if _installed("/").startswith(f"{version}."):
        return "/"
    root, suite = FOLDERS + version, SUITES[version]
    if not in_time([HERE / "rabbitmq-4", root, suite], PATIENCE):
        others = " ".join(each for each in SUITES if each != version)
        print(
            f"RabbitMQ {version} cannot be had here, see above. It comes from Debian {suite}; getting it takes root, "
            f'debootstrap and a mirror. The others: make matrix ARGS="{others}"',
            file=sys.stderr,
        )
        sys.exit(CANNOT)
    if not (there := _installed(root)).startswith(f"{version}."):
        print(
            f"Debian {suite} had {there or 'no RabbitMQ'} when {root} was made, not {version}",
            file=sys.stderr,
        )
    return root


def in_time(command: Sequence[str | Path], seconds: float) -> bool:
    """Whether a command ends well within so many seconds; otherwise nothing that it has started goes on."""
    with subprocess.Popen(command, start_new_session=True) as running:
        try:
            return running.wait(seconds) == 0
        except subprocess.TimeoutExpired:
            print(f"{command[0]} takes longer than {seconds:g} s, and is ended", file=sys.stderr)
            return False
        finally:
            if running.returncode is None:
                os.killpg(running.pid, signal.SIGTERM)


def _installed(root: str) -> str:
    """The version of the Debian package in that folder; empty where there is none."""
    asked = subprocess.run(
        ["dpkg-query", f"--root={root}", "--show", "--showformat=${Version}", "rabbitmq-server"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return asked.stdout.partition("-")[0]


def _run(root: str, queue_type: str, *, short: bool) -> Row:
    version = _installed(root)
    print(f"\nRabbitMQ {version}, {queue_type} queues\n", flush=True)
    environment = {
        **os.environ,
        "CI": "true",
        "LEVERET_TEST_RABBITMQ_ROOT": "" if root == "/" else root,
        "LEVERET_TEST_QUEUE_TYPE": queue_type,
    }
    tests = [str(path) for pattern in (SHORT if short else ALL) for path in sorted(HERE.parent.glob(pattern))]
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results.xml"
        ended = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadfile", f"--junit-xml={results}", *tests],
            cwd=HERE.parent, env=environment, check=False,
        )  # fmt: skip
        found = ET.parse(results).getroot() if results.exists() else ET.Element("none")
    return row(
        found, version=version, queue_type=queue_type, seconds=time.monotonic() - began, exit=ended.returncode
    )


def row(found: ET.Element, *, version: str, queue_type: str, seconds: float, exit: int) -> Row:
    """What pytest wrote down, counted."""
    cases = list(found.iter("testcase"))
    faults = [[*case.iter("failure"), *case.iter("error")] for case in cases]
    failed = sum(bool(each) for each in faults)
    skipped = sum(case.find("skipped") is not None for case in cases)
    return Row(
        version=version,
        queue_type=queue_type,
        passed=len(cases) - skipped - failed,
        skipped=skipped,
        failed=failed,
        seconds=seconds,
        given_up=sum(fault.get("message", "").count(GIVEN_UP) for each in faults for fault in each),
        exit=exit,
    )


def _show(rows: list[Row]) -> None:
    titles = ("version", "queues", "passed", "skipped", "failed", "seconds", "deprecated")
    lines = [titles, *(row.cells for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(titles))]
    print()
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


if __name__ == "__main__":
    sys.exit(main())
