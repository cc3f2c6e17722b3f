"""The table of `make matrix` counts what pytest wrote down, and shows what the broker's log warns of."""

from __future__ import annotations

import os
import select
import xml.etree.ElementTree as ET

import pytest
from scripts.matrix import in_time, row

WRITTEN = """<testsuites><testsuite>
<testcase name="one"/><testcase name="two"><skipped/></testcase>
<testcase name="three"><failure message="no"/></testcase>
<testcase name="four"><error message="failed on teardown with: the broker warns of what later versions refuse:
[warning] Deprecated features: `global_qos`: …
[warning] Deprecated features: `ram_node_type`: …"/></testcase>
</testsuite></testsuites>"""


def test_a_warning_that_fails_the_last_test_is_counted_as_a_warning_too():
    found = row(ET.fromstring(WRITTEN), version="4.3.6", queue_type="quorum", seconds=61.4, exit=1)
    assert found.cells == ("4.3.6", "quorum", "1", "1", "2", "61", "2")


def test_a_run_that_wrote_nothing_passed_nothing():
    found = row(ET.Element("none"), version="4.3.6", queue_type="classic", seconds=1, exit=4)
    assert (found.passed, found.exit) == (0, 4)


def test_what_takes_too_long_is_ended_with_all_that_it_has_started(tmp_path):
    os.mkfifo(way := tmp_path / "way")
    reader = os.open(way, os.O_RDONLY | os.O_NONBLOCK)
    # Both hold their end of the way for as long as they live.
    script = f'exec >"{way}"; sleep 60 & echo started; wait'
    assert not in_time(["sh", "-c", script], 1)
    assert os.read(reader, 100) == b"started\n"
    # It can be read from again once nobody is left who could write.
    assert select.select([reader], [], [], 10) == ([reader], [], [])
    os.close(reader)


@pytest.mark.parametrize(("command", "well"), [("true", True), ("false", False)])
def test_what_ends_in_time_has_said_how(command, well):
    assert in_time([command], 60) is well
