"""Telling people through Apprise, without a word about where they live (A3)."""

from __future__ import annotations

import logging
import socketserver
import sys
import threading
from dataclasses import replace

import pytest
from tests.webhook import Webhook

from leveret.alarms.notify import Notifier
from leveret.alarms.people import MOST_A_MINUTE, StraightToPeople
from leveret.core.alarm import Alarm, alert, read_alert
from leveret.core.errors import ConfigError, MissingExtra
from leveret.runtime.world import DaemonThreads
from leveret.testing.fake_clock import FakeClock
from leveret.testing.worlds import fake_world

# Of a library that Apprise loads.
pytestmark = pytest.mark.filterwarnings("ignore:'imghdr' is deprecated:DeprecationWarning")


def told(code="disk_full", **given):
    made = alert(Alarm(code=code, title="no room", **given), state="holds", count=3, first=0.0, last=60.0)
    return made.routing_key, made.body(namespace="shop", host="box-1")


def an_alarm(**given):
    return read_alert(*told(**given))


@pytest.fixture
def webhook():
    with Webhook() as webhook:
        yield webhook


@pytest.fixture
def all_logs(caplog):
    """Everything that anybody logs, down to what HTTP libraries write about their addresses."""
    names = ["apprise", "urllib3", "urllib3.connectionpool", "requests"]
    caplog.set_level(logging.DEBUG)
    for name in names:
        caplog.set_level(logging.DEBUG, logger=name)
    return caplog


def test_an_alarm_arrives_as_the_template_says(webhook):
    notifier = Notifier(
        [webhook.url], title="{severity} {namespace}", body="{title}: {fields}, {count} times"
    )
    sent = notifier.send(0, an_alarm(fields={"free": "<0 & falling>"}))
    assert str(sent).startswith("json://***: sent in 0.")
    [post] = webhook.posts
    assert (post["title"], post["message"]) == ("CRITICAL shop", "no room: free: <0 & falling>, 3 times")
    assert post["type"] == "failure"


def test_an_address_that_says_no_is_told_with_its_answer_and_without_itself(webhook, all_logs):
    webhook.status = 403
    notifier = Notifier([webhook.url])
    sent = notifier.send(0, an_alarm())
    assert "403" in sent.why
    assert sent.refused
    shown = f"{sent} {sent!r} {notifier!r} {all_logs.text}"
    assert "SECRET" not in shown
    assert str(sent).startswith("json://***: refused (")


def test_an_address_that_nobody_answers_at_is_told_without_itself(all_logs):
    sent = Notifier(["json://user:tokSECRET@127.0.0.1:1/tokSECRET"]).send(0, an_alarm())
    assert str(sent).startswith("json://***: not reached (")
    assert "SECRET" not in f"{sent} {all_logs.text}"
    assert "127.0.0.1" not in str(sent)


class BadPassword(socketserver.StreamRequestHandler):
    def handle(self):
        self.wfile.write(b"220 hello\r\n")
        while line := self.rfile.readline():
            command = line.split()[0].upper() if line.split() else b""
            if command == b"EHLO":
                self.wfile.write(b"250-hi\r\n250 AUTH PLAIN LOGIN\r\n")
            elif command == b"AUTH":
                self.wfile.write(b"535 bad password\r\n")
            elif command == b"QUIT":
                self.wfile.write(b"221 bye\r\n")
                return
            else:
                self.wfile.write(b"250 ok\r\n")


def test_a_mail_server_that_refuses_the_password_is_told_in_its_words(all_logs):
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), BadPassword) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        port = server.server_address[1]
        url = f"mailto://ops:tokSECRET@localhost:{port}?from=ops@example.org&to=me@example.org&mode=insecure"
        try:
            sent = Notifier([url]).send(0, an_alarm())
        finally:
            server.shutdown()
            thread.join()
    assert str(sent) == "mailto://ops@***: refused (535 bad password)"
    assert "SECRET" not in all_logs.text


@pytest.mark.parametrize("url", ["nonsense://tokSECRET/x", "slack://tokSECRET", "tgram://tokSECRET"])
def test_a_url_that_apprise_cannot_read_is_an_error_at_start_that_does_not_show_it(url, all_logs):
    with pytest.raises(ConfigError) as caught:
        Notifier(["json://127.0.0.1:1/", url])
    assert url.partition(":")[0] in str(caught.value)
    assert "SECRET" not in f"{caught.value} {all_logs.text}"


def test_addresses_that_look_alike_are_numbered():
    notifier = Notifier(["json://127.0.0.1/a", "json://127.0.0.1/b", "mailto://ops:pw@gmail.com"])
    assert notifier.shown == ("json://***", "json://*** (2)", "mailto://ops@***")


def test_what_the_users_own_program_sends_through_apprise_is_logged_as_before(caplog):
    Notifier(["json://127.0.0.1:1/"])
    logging.getLogger("apprise").warning("of the user's own")
    assert "of the user's own" in caplog.text


def test_without_apprise_the_error_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "apprise", None)
    with pytest.raises(MissingExtra, match=r'pip install "leveret\[notify\]"'):
        Notifier(["json://127.0.0.1:1/"])


# ── Straight from the emitter ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def world():
    return replace(fake_world(0, FakeClock()), threads=DaemonThreads)


async def test_people_are_told_straight_with_every_address(webhook, world):
    people = StraightToPeople(lambda: Notifier([webhook.url, "json://127.0.0.1:1/x"]), world=world)
    assert await people.tell(*told())
    assert webhook.titles == ["CRITICAL shop: disk_full holds"]
    people.close()


async def test_nobody_told_is_told_so_and_an_address_that_fails_gets_a_second_try(webhook, world, caplog):
    webhook.status = 500
    people = StraightToPeople(lambda: Notifier([webhook.url]), world=world)
    assert not await people.tell(*told())
    assert len(webhook.posts) == 2
    assert caplog.text.count("people cannot be told") == 1
    people.close()


async def test_what_people_do_not_want_counts_as_told(webhook, world):
    people = StraightToPeople(lambda: Notifier([webhook.url], least="CRITICAL"), world=world)
    assert await people.tell(*told(code="retries_late"))
    assert webhook.posts == []
    people.close()


async def test_a_notifier_that_cannot_be_made_is_told_once_and_raises_nothing(world, caplog):
    def missing():
        raise MissingExtra("pip install it")

    people = StraightToPeople(missing, world=world)
    assert not await people.tell(*told())
    assert not await people.tell(*told())
    assert caplog.text.count("pip install it") == 1
    people.close()


async def test_a_minute_has_room_for_twenty(webhook, world):
    people = StraightToPeople(lambda: Notifier([webhook.url]), world=world)
    for _ in range(MOST_A_MINUTE):
        assert people.free_in == 0
        await people.tell(*told())
    assert people.free_in == 60
    await world.clock.advance(59)
    assert people.free_in == 1
    people.close()
