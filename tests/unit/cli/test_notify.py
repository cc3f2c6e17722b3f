"""`leveret notify` on the command line: who is told, and how it ends."""

from __future__ import annotations

import logging
import sys

import pytest
from tests.webhook import Webhook

# Of a library that Apprise loads.
pytestmark = pytest.mark.filterwarnings("ignore:'imghdr' is deprecated:DeprecationWarning")


@pytest.fixture(autouse=True)
def untouched():
    """The command has its process to itself, and leaves Apprise's logger to it; here other tests come after."""
    logger = logging.getLogger("apprise")
    before = logger.level, logger.propagate, list(logger.handlers)
    yield
    logger.level, logger.propagate, logger.handlers[:] = before
    logger.manager._clear_cache()


@pytest.fixture
def webhook():
    with Webhook() as webhook:
        yield webhook


def test_a_test_tells_each_address_and_says_what_became_of_it(leveret, webhook, monkeypatch):
    monkeypatch.setenv("LEVERET_NOTIFY__URLS", webhook.url)
    ended = leveret("notify", "--test", "--namespace", "shop")
    assert ended.code == 0
    assert ended.out.strip().startswith("json://***: sent in ")
    assert webhook.titles == ["WARNING shop: test holds"]


def test_one_address_that_is_not_told_makes_it_exit_1_and_no_address_is_shown(leveret, webhook, monkeypatch):
    dead = "json://127.0.0.1:1/tokSECRETtok"
    monkeypatch.setenv("LEVERET_NOTIFY__URLS", f"{webhook.url},{dead}")
    ended = leveret("notify", "--test")
    assert ended.code == 1
    assert " · json://*** (2): not reached (" in ended.out
    assert "SECRET" not in ended.out + ended.err


def test_as_json_each_address_is_a_record(leveret, webhook, monkeypatch):
    webhook.status = 500
    monkeypatch.setenv("LEVERET_NOTIFY__URLS", webhook.url)
    ended = leveret("notify", "--test", "--json")
    assert ended.code == 1
    [record] = ended.records
    assert (record["to"], record["sent"]) == ("json://***", False)
    assert "500" in record["why"]
    assert "SECRET" not in ended.out


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        (
            {},
            "nobody is named who could be told of alarms. Name them in one of: LEVERET_NOTIFY__URLS=URL,URL",
        ),
        ({"LEVERET_NOTIFY__URLS": "slack://tokSECRETtok"}, "[notify] urls: slack://***: "),
        (
            {"LEVERET_NOTIFY__URLS": "json://h", "LEVERET_NOTIFY__BODY": "{oops}"},
            "{oops} is no name of an alarm",
        ),
        ({"LEVERET_NOTIFY__URLS": "json://h", "LEVERET_BROKER": "memory://"}, "lives inside one process"),
        ({"LEVERET_NOTIFY__URLS": "json://h", "LEVERET_BROKER": "amqp://h"}, "no namespace is named"),
    ],
)
def test_what_is_wrong_is_told_at_start_with_exit_2(leveret, monkeypatch, environ, words):
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    ended = leveret("notify")
    assert ended.code == 2
    assert words in ended.err
    assert "SECRET" not in ended.err


def test_without_apprise_it_says_how_to_install_it(leveret, monkeypatch):
    monkeypatch.setenv("LEVERET_NOTIFY__URLS", "json://h")
    monkeypatch.setitem(sys.modules, "apprise", None)
    ended = leveret("notify", "--test")
    assert ended.code == 2
    assert 'pip install "leveret[notify]"' in ended.err
