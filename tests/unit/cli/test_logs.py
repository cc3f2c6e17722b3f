from __future__ import annotations

import json
import logging
import sys

import pytest

from leveret.cli.logs import JsonLines, TextLines, show_log
from leveret.runtime.schema import Log


def a_record(text: str, *arguments, level=logging.INFO, error=None, **extra) -> logging.LogRecord:
    record = logging.LogRecord("leveret", level, "x.py", 1, text, arguments, error)
    vars(record).update(extra)
    return record


def test_a_soft_failure_is_a_line_with_its_time():
    line = TextLines().format(a_record("soft  %s  %s", "charge", "7c1e4b", action="soft"))
    assert line[2] == line[5] == ":"
    assert line[8:] == "  soft  charge  7c1e4b"


def test_a_warning_says_so_and_a_dead_letter_needs_no_more_words():
    assert "  warning  it is late" in TextLines().format(a_record("it is late", level=logging.WARNING))
    dead = TextLines().format(a_record("dead  charge", level=logging.WARNING, action="dead"))
    assert dead.endswith("  dead  charge")
    assert "warning" not in dead


def test_a_reason_from_anybody_stays_in_its_line_and_moves_no_cursor():
    assert TextLines().format(a_record("dead: %s", "x\n\x1b[2Jy")).endswith("dead: x \\x1b[2Jy")


def test_json_lines_carry_what_the_record_carries():
    record = a_record("soft %s", "charge", action="soft", worker="charge", odd=object())
    told = json.loads(JsonLines().format(record))
    assert (told["message"], told["level"], told["worker"]) == ("soft charge", "info", "charge")
    assert told["time"].endswith("+00:00")
    assert "args" not in told


@pytest.mark.parametrize("lines", [TextLines(), JsonLines()])
def test_an_exception_is_logged_with_its_traceback(lines):
    try:
        raise KeyError("url")
    except KeyError:
        record = a_record("it failed", level=logging.ERROR, error=sys.exc_info())
    assert "KeyError: 'url'" in lines.format(record)


@pytest.fixture
def bare_logging(monkeypatch):
    """Makes logging as in a process in which nobody has set it up; all is put back afterwards."""
    logger = logging.getLogger("leveret")
    level = logger.level

    def bare():
        # In the test itself: pytest adds handlers of its own between set-up and call.
        monkeypatch.setattr(logging.getLogger(), "handlers", [])
        monkeypatch.setattr(logger, "propagate", logger.propagate)
        monkeypatch.setattr(logger, "handlers", [])
        return logger

    yield bare
    logger.setLevel(level)


def test_quiet_lets_warnings_through_and_nothing_less(bare_logging):
    logger = bare_logging()
    show_log(Log(level="debug"), quiet=True, as_json=False)
    assert logger.level == logging.WARNING
    assert isinstance(logger.handlers[0].formatter, TextLines)


def test_the_format_of_the_settings_is_kept(bare_logging):
    logger = bare_logging()
    show_log(Log(level="debug", format="json"), quiet=False, as_json=False)
    assert logger.level == logging.DEBUG
    assert isinstance(logger.handlers[0].formatter, JsonLines)


def test_a_module_that_has_set_up_logging_keeps_its_own(bare_logging):
    logger = bare_logging()
    own = logging.NullHandler()
    logger.addHandler(own)
    show_log(Log(), quiet=False, as_json=False)
    assert logger.handlers == [own]
