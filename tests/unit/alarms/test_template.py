from __future__ import annotations

import pytest

from leveret.alarms.template import BODY, NAMES, TITLE, check_template, render
from leveret.core.errors import ConfigError
from leveret.runtime.config import load_config


@pytest.mark.parametrize(
    "text",
    [
        "{title.__class__}",
        "{fields[x]}",
        "{0}",
        "{}",
        "{nope}",
        "{",
        "}",
        "{title!r}",
        "{count:>5}",
        "",
        None,
        7,
    ],
)
def test_a_template_that_would_fail_at_night_is_refused_by_day(text):
    with pytest.raises(ValueError):
        check_template(text)


@pytest.mark.parametrize(
    "text",
    [TITLE, BODY, "{{literally}} {code}", "no names at all", " | ".join(f"{{{name}}}" for name in NAMES)],
)
def test_a_template_that_is_taken_renders_whatever_it_is_given(text):
    check_template(text)
    assert render(text, {})
    assert render(text, {"title": "{code} {0} %s", "fields": {"a": 1}, "count": 3, "code": None})


def test_fields_are_a_line_each_and_values_are_no_templates():
    shown = render("{title}\n{fields}", {"title": "{host}", "fields": {"queue": "shop.charge", "ready": 7}})
    assert shown == "{host}\nqueue: shop.charge\nready: 7"


def test_a_wrong_template_in_the_settings_is_an_error_at_start_that_names_its_place():
    with pytest.raises(
        ConfigError, match=r"LEVERET_NOTIFY__TITLE: notify.title: \{cod\} is no name of an alarm"
    ):
        load_config(environ={"LEVERET_NOTIFY__TITLE": "{cod}"}, file="/dev/null")


def test_the_urls_of_people_come_from_a_file_one_a_line_and_are_shown_nowhere(tmp_path):
    secret = tmp_path / "urls"
    secret.write_text("tgram://ΩΩΩ/chat\n  mailto://u:ΩΩΩ@example.org?to=a,b\n")
    config = load_config(environ={"LEVERET_NOTIFY__URLS_FILE": str(secret)}, file="/dev/null")
    assert config.notify.urls == ("tgram://ΩΩΩ/chat", "mailto://u:ΩΩΩ@example.org?to=a,b")
    assert "Ω" not in repr(config)


def test_the_least_that_people_are_told_of_is_one_of_two():
    assert (
        load_config(environ={"LEVERET_NOTIFY__SEVERITY": "CRITICAL"}, file="/dev/null").notify.severity
        == "CRITICAL"
    )
    with pytest.raises(ConfigError, match="expected WARNING or CRITICAL"):
        load_config(environ={"LEVERET_NOTIFY__SEVERITY": "critical"}, file="/dev/null")
