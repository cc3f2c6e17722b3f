"""`doctor`, `topology show`, and the settings with their origins."""

from __future__ import annotations

import pytest
from tests.unit.cli.conftest import a_letter, an_entry

from leveret.cli.run import read_settings
from leveret.cli.settings import settings_of
from leveret.core.errors import ConfigError
from leveret.runtime.config import load_config

APP = """
from leveret import Leveret, RetryPolicy
app = Leveret("shop", broker="memory://")
@app.worker("order.placed", "order.changed", prefetch=20)
async def charge(order: dict) -> None: ...
"""


@pytest.fixture
def shop(folder, monkeypatch):
    """An app as a user's module, forgotten afterwards."""
    import sys

    (folder / "shop_to_look_at.py").write_text(APP)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "shop_to_look_at", raising=False)
    yield "shop_to_look_at:app"
    sys.modules.pop("shop_to_look_at", None)


def found(ended, level):
    return [f"{each['about']}: {each['text']}" for each in ended.records if each["level"] == level]


def test_a_healthy_app_has_no_fault(leveret, stored, shop):
    stored(a_letter("000001"))
    ended = leveret("doctor", shop, "--json")
    assert ended.code == 0
    assert found(ended, "fault") == found(ended, "warn") == []
    assert "app: shop: 1 worker: charge" in found(ended, "ok")
    assert any("lives inside one process" in each for each in found(ended, "ok"))
    assert any("writable" in each for each in found(ended, "ok"))


def test_every_value_is_shown_with_its_origin(leveret, shop, monkeypatch):
    monkeypatch.setenv("LEVERET_SHUTDOWN_GRACE", "5")
    ended = leveret("doctor", shop, "--json", "--store", "sqlite:///other.db")
    settings = [each for each in found(ended, "ok") if each.startswith("setting: ")]
    assert "setting: shutdown_grace = 5.0 (LEVERET_SHUTDOWN_GRACE)" in settings
    assert "setting: store = sqlite:///other.db (--store)" in settings
    assert "setting: workers.charge.prefetch = 20 (code)" in settings


def test_overdue_retries_without_a_retry_worker_are_a_fault_with_a_way_out(leveret, stored):
    stored(an_entry("000001", wait=None, due_at=1000.0))
    ended = leveret("doctor", "--json")
    assert ended.code == 1
    (fault,) = found(ended, "fault")
    assert "1 retry of shop overdue" in fault
    assert "Start one: leveret run, or leveret retry-worker" in fault


def test_a_store_that_is_not_there_yet_is_only_worth_a_word(leveret, folder):
    ended = leveret("doctor", "--json")
    assert ended.code == 0
    assert any("there is no store at" in each for each in found(ended, "warn"))
    assert list(folder.iterdir()) == []


def test_a_file_that_is_no_store_is_a_fault(leveret, folder):
    (folder / "leveret.db").write_text("these words are no tables " * 50)
    ended = leveret("doctor")
    assert ended.code == 1
    assert "not a SQLite database" in ended.out


def test_a_stray_variable_is_a_warning(leveret, monkeypatch):
    monkeypatch.setenv("LEVERET_PORT", "tcp://10.0.0.1:80")
    assert any("LEVERET_PORT is no setting" in each for each in found(leveret("doctor", "--json"), "warn"))


def test_no_secret_is_shown_with_the_settings():
    config = load_config(
        flags={"broker": "amqp://shop:geheim@rabbit-1", "dashboard.token": "geheim"},
        environ={"LEVERET_NOTIFY__URLS": "tgram://geheim", "LEVERET_CACHE": "redis://:geheim@h/0"},
    )
    shown = [str(each) for each in settings_of(config)]
    assert "broker = amqp://shop:***@rabbit-1 (--broker)" in shown
    assert len(shown) == 4
    assert "geheim" not in str(shown)


def test_the_topology_of_an_app_is_shown_without_a_broker(leveret, shop, folder):
    records = leveret("topology", "show", shop, "--json").records
    assert {"queue": "shop.charge", "type": "classic", "arguments": {}} in records
    assert {"binding": "shop.charge", "exchange": "shop.events", "key": "order.changed"} in records
    assert "shop.charge.suspects" in leveret("topology", "show", shop).out
    assert not (folder / "leveret.db").exists()


def test_the_app_may_stand_in_the_settings(leveret, shop, monkeypatch):
    monkeypatch.setenv("LEVERET_APP", shop)
    assert leveret("topology", "show").code == 0


def test_without_an_app_it_is_said_where_one_can_be_named(leveret):
    ended = leveret("topology", "show")
    assert ended.code == 2
    assert "LEVERET_APP=MODULE:APP" in ended.err


def test_a_settings_file_named_on_the_command_line_is_that_of_the_app_too(leveret, shop, folder, monkeypatch):
    # The command hands the file on by this variable; it is put back afterwards.
    monkeypatch.setenv("LEVERET_CONFIG", "unused.toml")
    (folder / "unused.toml").write_text("")
    (folder / "other.toml").write_text('store = "sqlite:///elsewhere.db"\n')
    ended = leveret("doctor", shop, "--json", "--config", "other.toml")
    assert "setting: store = sqlite:///elsewhere.db (other.toml)" in found(ended, "ok")


@pytest.mark.parametrize("text", ["retry.factor", "=3", " =3"])
def test_a_setting_without_key_or_value_is_refused(text):
    with pytest.raises(ConfigError, match="expected KEY=VALUE"):
        read_settings([text])


def test_settings_keep_what_stands_behind_their_first_equals_sign():
    assert read_settings(["broker=amqp://h?verify=verify_none", "log.level="]) == {
        "broker": "amqp://h?verify=verify_none",
        "log.level": "",
    }


def test_a_store_that_nobody_may_write_is_a_fault(leveret, stored, monkeypatch):
    from leveret.cli import doctor

    stored(a_letter("000001"))
    monkeypatch.setattr(doctor, "_writable", lambda path: False)
    ended = leveret("doctor", "--json")
    assert ended.code == 1
    assert "may not write it" in found(ended, "fault")[0]
