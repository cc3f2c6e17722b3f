"""The table of `make matrix` counts what pytest wrote down, and shows what the broker's log warns of."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from scripts.matrix import row

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
