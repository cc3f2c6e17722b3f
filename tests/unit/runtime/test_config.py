from __future__ import annotations

import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.core.errors import ConfigError
from leveret.core.policy import GiveUp, RetryPolicy
from leveret.core.topology import RMQExchangeConfig
from leveret.core.urls import StoreUrl
from leveret.runtime.config import load_config


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Every test runs in a folder without a leveret.toml, until it writes one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def load(toml=None, *, environ=None, code=None, flags=None, file=None):
    if toml is not None:
        Path("leveret.toml").write_text(toml, encoding="utf-8")
    return load_config(flags=flags, code=code, environ=environ or {}, file=file)


def faults(toml=None, **sources):
    with pytest.raises(ConfigError) as caught:
        load(toml, **sources)
    return str(caught.value)


# What is read


def test_without_any_source_there_are_defaults():
    config = load()
    assert (config.app, config.namespace, config.broker, config.cache, config.exchange) == (None,) * 5
    assert config.store == StoreUrl(kind="sqlite", path="leveret.db")
    assert (config.queue_type, config.shutdown_grace, config.publish.timeout) == ("classic", 30, 10)
    assert (config.lease.ttl, config.retry_worker.overdue_rate) == (30, 1000)
    assert (config.health.listen, config.notify.urls, config.dashboard.token) == (None, (), None)
    assert config.worker("charge") == {}
    assert config.retry_policy(RetryPolicy()) == RetryPolicy()
    assert (config.warnings, config.origin("store"), config.origin("workers.charge.prefetch")) == (
        (),
        "default",
        "default",
    )


WHOLE = """
app = "shop:app"
namespace = "shop"
broker = ["amqp://shop@rabbit-1", "amqp://shop@rabbit-2"]
store = "sqlite:////srv/shop/leveret.db"
cache = "redis://host:6379/0"
exchange = "orders"
queue_type = "quorum"
shutdown_grace = 5.5
retry = { first_delay = 10, max_attempts = 8 }
publish.timeout = 2
[lease]
ttl = 12
[retry_worker]
overdue_rate = "none"
[health]
listen = "127.0.0.1:8080"
[notify]
urls = ["tgram://token/chat", "mailto://u:p@example.org"]
[dashboard]
listen = "[::1]:80"
token = "t0ken"
[log]
level = "debug"
format = "json"
[workers.charge]
prefetch = 50
concurrency = 5
timeout = 30
unexpected = "dead"
max_deliveries = 3
replay = "exchange"
queue_type = "classic"
retry.factor = 3
"""


def test_every_setting_can_stand_in_the_file():
    config = load(WHOLE)
    assert (config.app, config.namespace) == ("shop:app", "shop")
    assert config.broker.nodes == (("rabbit-1", 5672), ("rabbit-2", 5672))
    assert (config.store.path, config.cache.url) == ("/srv/shop/leveret.db", "redis://host:6379/0")
    assert config.exchange == RMQExchangeConfig("orders")
    assert (config.queue_type, config.shutdown_grace, config.publish.timeout, config.lease.ttl) == (
        "quorum",
        5.5,
        2,
        12,
    )
    assert (config.retry_worker.overdue_rate, config.health.listen) == (None, "127.0.0.1:8080")
    assert config.notify.urls == ("tgram://token/chat", "mailto://u:p@example.org")
    assert (config.dashboard.listen, config.dashboard.token) == ("[::1]:80", "t0ken")
    assert (config.log.level, config.log.format) == ("debug", "json")
    assert config.worker("charge") == {
        "prefetch": 50,
        "concurrency": 5,
        "timeout": 30.0,
        "unexpected": "dead",
        "max_deliveries": 3,
        "replay": "exchange",
        "queue_type": "classic",
        "retry": {"factor": 3.0},
    }
    assert (
        config.origin("retry.first_delay") == config.origin("workers.charge.retry.factor") == "leveret.toml"
    )


def test_every_setting_has_a_variable():
    config = load(
        environ={
            "LEVERET_APP": "shop:app",
            "LEVERET_NAMESPACE": "123",
            "LEVERET_BROKER": "amqp://shop@rabbit-1,amqp://shop@rabbit-2",
            "LEVERET_STORE": "memory://",
            "LEVERET_CACHE": "redis://host",
            "LEVERET_EXCHANGE": "orders",
            "LEVERET_QUEUE_TYPE": "quorum",
            "LEVERET_SHUTDOWN_GRACE": "5.5",
            "LEVERET_RETRY__FIRST_DELAY": "1e-3",
            "LEVERET_RETRY__MAX_ATTEMPTS": " 8 ",
            "LEVERET_PUBLISH__TIMEOUT": "2",
            "LEVERET_LEASE__TTL": "12",
            "LEVERET_RETRY_WORKER__OVERDUE_RATE": "none",
            "LEVERET_HEALTH__LISTEN": "localhost:8080",
            "LEVERET_NOTIFY__URLS": "tgram://token/chat, mailto://u:p@example.org?to=a,b",
            "LEVERET_DASHBOARD__TOKEN": "t0ken",
            "LEVERET_LOG__LEVEL": "debug",
            "LEVERET_WORKERS__CHARGE__PREFETCH": "50",
            "LEVERET_WORKERS__CHARGE__RETRY__JITTER": "0",
        }
    )
    assert (config.app, config.namespace, config.broker.nodes[1]) == ("shop:app", "123", ("rabbit-2", 5672))
    assert (config.store.kind, config.cache.url, config.exchange.name) == ("memory", "redis://host", "orders")
    assert (config.queue_type, config.shutdown_grace, config.publish.timeout) == ("quorum", 5.5, 2)
    assert (config.retry.first_delay, config.retry.max_attempts, config.lease.ttl) == (0.001, 8, 12)
    assert (config.retry_worker.overdue_rate, config.health.listen) == (None, "localhost:8080")
    assert config.notify.urls == ("tgram://token/chat", "mailto://u:p@example.org?to=a,b")
    assert (config.dashboard.token, config.log.level) == ("t0ken", "debug")
    assert config.worker("charge") == {"prefetch": 50, "retry": {"jitter": 0.0}}
    assert config.origin("workers.charge.prefetch") == "LEVERET_WORKERS__CHARGE__PREFETCH"
    assert config.warnings == ()


def test_code_gives_values_as_python_has_them():
    config = load(
        code={
            "exchange": RMQExchangeConfig("orders", "fanout"),
            "shutdown_grace": timedelta(minutes=1),
            "broker": ["amqp://h1", "amqp://h2"],
            "store": None,
            "workers": {"charge": {"timeout": None, "prefetch": 3}},
        }
    )
    assert (config.exchange.type, config.shutdown_grace, len(config.broker.nodes)) == ("fanout", 60, 2)
    assert (config.origin("store"), config.worker("charge")) == ("default", {"prefetch": 3})


def test_the_environment_of_the_process_is_read_unless_another_is_given(monkeypatch):
    monkeypatch.setenv("LEVERET_NAMESPACE", "shop")
    assert load_config().namespace == "shop"
    assert load_config(environ={}).namespace is None


# What wins


@pytest.mark.parametrize(
    ("sources", "namespace", "origin"),
    [
        ({}, "file", "leveret.toml"),
        ({"environ": {"LEVERET_NAMESPACE": "env"}}, "env", "LEVERET_NAMESPACE"),
        ({"environ": {"LEVERET_NAMESPACE": "env"}, "code": {"namespace": "code"}}, "code", "code"),
        ({"code": {"namespace": "code"}, "flags": {"namespace": "flag"}}, "flag", "--namespace"),
        ({"code": {"namespace": None}, "flags": {"namespace": None}}, "file", "leveret.toml"),
    ],
)
def test_flag_beats_code_beats_environment_beats_file(sources, namespace, origin):
    config = load('namespace = "file"', **sources)
    assert (config.namespace, config.origin("namespace")) == (namespace, origin)


def test_tables_are_merged_setting_by_setting():
    config = load(
        "retry = { first_delay = 1, max_attempts = 8, factor = 3 }",
        environ={"LEVERET_RETRY__FIRST_DELAY": "2"},
        flags={"retry.factor": "4"},
    )
    assert config.retry_policy(RetryPolicy()) == RetryPolicy(first_delay=2, max_attempts=8, factor=4)
    assert [
        config.origin(f"retry.{name}") for name in ("first_delay", "max_attempts", "factor", "jitter")
    ] == [
        "LEVERET_RETRY__FIRST_DELAY",
        "leveret.toml",
        "--set retry.factor",
        "default",
    ]


def test_a_policy_in_code_counts_as_a_whole_and_only_flags_change_it():
    policy = RetryPolicy(max_attempts=3, retry_on={KeyError: GiveUp("no key")})
    config = load(
        "retry = { first_delay = 1, max_age = 3600 }",
        code={"retry": policy},
        flags={"retry.max_attempts": "4"},
    )
    assert config.retry_policy(policy) == RetryPolicy(max_attempts=4, retry_on={KeyError: GiveUp("no key")})


def test_code_that_comes_later_beats_the_file_and_not_the_flags():
    config = load(
        "[workers.charge]\nprefetch = 1\nconcurrency = 1\ntimeout = 1",
        environ={"LEVERET_WORKERS__CHARGE__CONCURRENCY": "2"},
        code={"namespace": "shop"},
        flags={"workers.charge.prefetch": "4"},
    )
    later = config.with_code({"workers": {"charge": {"prefetch": 3, "concurrency": 3}}})
    assert later.worker("charge") == {"prefetch": 4, "concurrency": 3, "timeout": 1.0}
    assert later.origin("workers.charge.prefetch") == "--set workers.charge.prefetch"
    assert (later.namespace, config.worker("charge")["concurrency"]) == ("shop", 2)
    with pytest.raises(ConfigError, match=r"the code: workers\.charge\.concurrency=0: expected 1 or more"):
        config.with_code({"workers": {"charge": {"concurrency": 0}}})


def test_a_worker_may_have_numbers_of_its_own():
    config = load("[retry]\nmax_attempts = 8\n[workers.charge.retry]\nfirst_delay = 1")
    base = config.retry_policy(RetryPolicy())
    assert config.retry_policy(base, worker="charge") == RetryPolicy(max_attempts=8, first_delay=1)
    assert config.retry_policy(base, worker="other") == RetryPolicy(max_attempts=8)


def test_numbers_that_do_not_fit_together_are_told_with_their_origin():
    config = load("retry = { first_delay = 600 }")
    with pytest.raises(ConfigError) as caught:
        config.retry_policy(RetryPolicy())
    assert "first_delay" in str(caught.value)
    assert "above max_delay" in str(caught.value)
    assert "(retry.first_delay from leveret.toml)" in str(caught.value)


@pytest.mark.parametrize("name", ["send-mail", "Send_Mail", "send_mail", "SEND_MAIL"])
def test_a_variable_finds_a_worker_whose_name_it_cannot_spell(name):
    environ = {"LEVERET_WORKERS__SEND_MAIL__PREFETCH": "3"}
    alone = load(environ=environ)
    assert alone.worker(name) == {"prefetch": 3}
    assert alone.origin(f"workers.{name}.prefetch") == "LEVERET_WORKERS__SEND_MAIL__PREFETCH"
    beside = load(f"[workers.{name}]\nprefetch = 1\ntimeout = 2", environ=environ)
    assert beside.worker(name) == {"prefetch": 3, "timeout": 2.0}
    assert beside.worker("another_mail") == {}


def test_what_the_file_says_of_one_worker_is_not_taken_for_another_that_only_looks_like_it():
    config = load("[workers.charge]\nprefetch = 1", environ={"LEVERET_WORKERS__CHARGE__TIMEOUT": "2"})
    assert config.worker("charge") == {"prefetch": 1, "timeout": 2.0}
    assert config.worker("Charge") == {}


def test_a_worker_may_have_two_underscores_in_its_name():
    config = load(
        environ={"LEVERET_WORKERS___MY__JOB__PREFETCH": "3", "LEVERET_WORKERS__A__RETRY__MAX_AGE": "9"}
    )
    assert config.worker("_my__job") == {"prefetch": 3}
    assert config.worker("a") == {"retry": {"max_age": 9.0}}


# The file


def test_leveret_config_names_another_file(folder):
    (folder / "other.toml").write_text('namespace = "other"')
    config = load('namespace = "default"', environ={"LEVERET_CONFIG": str(folder / "other.toml")})
    assert (config.namespace, config.origin("namespace")) == ("other", str(folder / "other.toml"))
    named = load(environ={"LEVERET_CONFIG": "missing.toml"}, file=folder / "other.toml")
    assert named.namespace == "other"
    assert load(file=os.devnull).namespace is None


def test_a_byte_order_mark_is_no_fault(folder):
    (folder / "leveret.toml").write_bytes(b'\xef\xbb\xbfnamespace = "shop"')
    assert load().namespace == "shop"


def test_a_file_that_is_named_has_to_be_there(folder):
    assert faults(file="missing.toml") == "missing.toml: there is no such file"
    assert (
        faults(environ={"LEVERET_CONFIG": "gone.toml"}) == "gone.toml (LEVERET_CONFIG): there is no such file"
    )
    assert "cannot be read: " in faults(file=folder)


def test_a_file_that_is_not_toml_is_told_with_its_line(folder):
    assert "leveret.toml: is not TOML" in faults("namespace = shop")
    assert "line 1" in faults("namespace = shop")
    (folder / "leveret.toml").write_bytes(b"namespace = '\xff'")
    assert faults() == "leveret.toml: is not UTF-8 (byte 13)"


def test_a_fault_in_the_file_is_told_with_its_line():
    toml = '# settings\n[workers.charge]\nprefetch = 0\n[workers."x".retry]\nfactor = "much"\n[log]\nlevel = "inof"\n'
    text = faults(toml + "[oops]\na = 1\n[lease]\nttl = 0\n")
    for line in (
        "leveret.toml, line 3: workers.charge.prefetch=0: expected 1 or more",
        "leveret.toml, line 5: workers.x.retry.factor='much': expected a number, got str",
        "leveret.toml, line 7: log.level='inof': expected debug, info, warning or error. Did you mean info?",
        "leveret.toml, line 8: oops: no such setting, there are app, broker, cache, dashboard",
        "leveret.toml, line 11: lease.ttl=0: expected more than 0 seconds",
    ):
        assert f"\n  {line}" in text


# Faults


def test_all_faults_of_all_sources_come_in_one_error():
    text = faults(
        'prefech = 3\nbroker = "amqp://shop:p#ss@rabbit-1"',
        environ={"LEVERET_NAMSPACE": "x", "LEVERET_LEASE__TTL": "soon", "LEVERET_RETRY": "5"},
        code={"shutdown_grace": True, "retries": 3},
        flags={"store": ":memory:", "workers.charge.prefetch": "many"},
    )
    assert text.startswith("9 faults in the configuration; nothing was started.\n")
    for part in (
        "leveret.toml, line 1: prefech: no such setting",
        "the broker URL from leveret.toml, line 2, amqp://shop:***@rabbit-1, cannot be read: its password has a bare",
        "LEVERET_NAMSPACE: no such setting, did you mean LEVERET_NAMESPACE?",
        "LEVERET_LEASE__TTL: lease.ttl='soon': expected seconds as a number",
        "LEVERET_RETRY: retry is a table, name a setting in it, such as LEVERET_RETRY__FIRST_DELAY",
        "the code: shutdown_grace=True: expected seconds as a number",
        "the code: retries: no such setting, did you mean retry?",
        "the store URL from --store, :memory:, cannot be read: use memory://",
        "--set: workers.charge.prefetch='many': expected a whole number",
    ):
        assert f"\n  {part}" in text
    assert "p#ss" not in text


def test_a_single_fault_stands_alone():
    assert faults(flags={"namespace": "a.b"}).startswith("--namespace: namespace 'a.b': expected 1 to 64")


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ({"retry": 5}, "retry is a table, name a setting in it, such as retry.first_delay"),
        ({"retry": {"jitter": 2}}, "retry.jitter=2: expected a finite number from 0 to 1"),
        ({"retry": {"max_attempts": 0}}, "retry.max_attempts=0: expected 1 or more"),
        ({"retry": {"max_attempts": 2.5}}, "retry.max_attempts=2.5: expected a whole number"),
        ({"retry": {"first_delay": "5"}}, "retry.first_delay='5': expected seconds as a number"),
        (
            {"retry_worker": {"overdue_rate": 0}},
            "retry_worker.overdue_rate=0: nothing overdue would ever be sent",
        ),
        ({"retry_worker": {"overdue_rate": "all"}}, "retry_worker.overdue_rate='all': expected a number"),
        ({"workers": {"charge": {"prefetch": 65536}}}, "prefetch=65536: expected at most 65535"),
        ({"workers": {"charge": {"timeout": 0}}}, "workers.charge.timeout=0: expected more than 0 seconds"),
        ({"workers": {"charge": {"unexpected": "die"}}}, "unexpected='die': expected retry or dead"),
        ({"workers": {"charge": {"name": "x"}}}, "workers.charge.name: no such setting"),
        ({"workers": {"retry": {"prefetch": 1}}}, "worker name 'retry'"),
        ({"workers": {"a.b": {"prefetch": 1}}}, "worker name 'a.b'"),
        (
            {"workers": {"charge": 3}},
            "workers.charge is a table, name a setting in it, such as workers.charge.prefetch",
        ),
        ({"workers": 3}, "workers is a table, name a setting in it, such as workers.charge.prefetch"),
        ({"broker": {"url": "x"}}, "the broker URL from the code cannot be read: expected text, got dict"),
        ({"broker": ""}, "the broker URL from the code, (empty), cannot be read"),
        ({"store": 5}, "the store URL from the code cannot be read: expected text, got int"),
        ({"exchange": "amq.topic"}, "names that begin with amq. belong to the broker"),
        ({"queue_type": "Quorum"}, "queue_type='Quorum': expected classic or quorum. Did you mean quorum?"),
        ({"health": {"listen": "8080"}}, "health.listen='8080': expected host:port, such as 127.0.0.1:8765"),
        ({"health": {"listen": "h:65536"}}, "health.listen='h:65536': expected host:port"),
        ({"notify": {"urls": "tgram://t"}}, "notify.urls: expected a list of URLs"),
        ({"app": ""}, "app: expected text, got nothing"),
        ({"app": 5}, "app: expected text, got int"),
    ],
)
def test_a_value_that_cannot_be_meant_is_told_with_its_name(code, told):
    text = faults(code=code)
    assert told in text
    assert "the code" in text


def test_a_setting_below_a_setting_is_no_setting():
    assert (
        faults(flags={"broker.url": "x"}) == "--set: broker.url: no such setting; broker has nothing below it"
    )


# Variables


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("LEVERET_BROKR", "LEVERET_BROKER"),
        ("LEVERET_STOER", "LEVERET_STORE"),
        ("LEVERET_CONFG", "LEVERET_CONFIG"),
        ("LEVERET_BROKER_FIL", "LEVERET_BROKER_FILE"),
        ("LEVERET_RETRY_FIRST_DELAY", "LEVERET_RETRY__FIRST_DELAY"),
        ("LEVERET_WORKERS__CHARGE__PREFECH", "LEVERET_WORKERS__CHARGE__PREFETCH"),
        ("LEVERET_WORKER__CHARGE__PREFETCH", "LEVERET_WORKERS__CHARGE__PREFETCH"),
        ("LEVERET_WORKERS_CHARGE_PREFETCH", "LEVERET_WORKERS__CHARGE__PREFETCH"),
        ("LEVERET_WORKERS__CHARGE__RETRY_FACTOR", "LEVERET_WORKERS__CHARGE__RETRY__FACTOR"),
    ],
)
def test_a_variable_within_two_letters_of_a_known_one_is_a_slip(name, meant):
    assert faults(environ={name: "5"}) == f"{name}: no such setting, did you mean {meant}?"


def test_what_kubernetes_sets_for_a_service_named_leveret_is_only_worth_a_word():
    names = [
        "LEVERET_PORT",
        "LEVERET_PORT_5672_TCP",
        "LEVERET_PORT_5672_TCP_ADDR",
        "LEVERET_SERVICE_HOST",
        "LEVERET_SERVICE_PORT",
        "LEVERET_STORE_PORT",
        "LEVERET_DASHBOARD_SERVICE_PORT",
        "LEVERET_WORKERS_SERVICE_HOST",
    ]
    config = load(environ=dict.fromkeys(names, "tcp://10.0.0.1:5672"))
    assert config.warnings == tuple(
        f"{name} is no setting of leveret's, and is ignored" for name in sorted(names)
    )


def test_variables_of_leverets_own_tests_and_of_others_are_never_looked_at():
    config = load(
        environ={"LEVERET_TEST_MONGODB_URL": "x", "LEVERET_TEST_STORE": "y", "PATH": "z", "leveret_app": "q"}
    )
    assert (config.warnings, config.app) == ((), None)


def test_an_empty_variable_counts_as_not_given():
    config = load(environ={"LEVERET_BROKER": "", "LEVERET_CONFIG": ""})
    assert (config.broker, config.warnings) == (None, ("LEVERET_BROKER is empty, and counts as not given",))


def test_a_secret_may_come_from_a_file(folder):
    (folder / "broker").write_text("amqp://shop:secret@rabbit-1\n")
    (folder / "token").write_text(" t0ken \r\n")
    config = load(
        environ={
            "LEVERET_BROKER_FILE": str(folder / "broker"),
            "LEVERET_DASHBOARD__TOKEN_FILE": str(folder / "token"),
        }
    )
    assert (config.broker.password, config.origin("broker")) == ("secret", "LEVERET_BROKER_FILE")
    assert config.dashboard.token == " t0ken "


def test_a_secrets_file_that_cannot_be_used_is_told_without_its_path(folder):
    (folder / "empty").write_text("\n")
    (folder / "binary").write_bytes(b"\xff")
    (folder / "good").write_text("memory://")
    text = faults(
        environ={
            # A URL, where the path of a file is meant: its password must not be shown.
            "LEVERET_BROKER_FILE": "amqp://shop:secret@h",
            "LEVERET_STORE_FILE": str(folder / "empty"),
            "LEVERET_CACHE_FILE": str(folder / "binary"),
        }
    )
    assert "LEVERET_BROKER_FILE: the file that it names cannot be read: No such file or directory" in text
    assert "LEVERET_STORE_FILE: the file that it names is empty" in text
    assert "LEVERET_CACHE_FILE: the file that it names is not UTF-8" in text
    assert "secret" not in text
    twice = faults(environ={"LEVERET_STORE": "memory://", "LEVERET_STORE_FILE": str(folder / "good")})
    assert twice == "LEVERET_STORE_FILE: given beside LEVERET_STORE; leave one of them out"


@given(
    st.dictionaries(
        st.from_regex(r"LEVERET_[A-Z_]{0,30}", fullmatch=True).filter(lambda name: name != "LEVERET_CONFIG"),
        st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=10),
    )
)
def test_no_environment_makes_anything_but_a_config_or_a_configerror(environ):
    try:
        told = load(environ=environ, file=os.devnull).warnings
    except ConfigError as error:
        told = (str(error),)
    assert all(told)


# What has to be there


def test_an_app_without_a_broker_is_told_where_to_name_one():
    with pytest.raises(ConfigError) as caught:
        load().require_broker("shop")
    assert str(caught.value) == (
        '"shop" has no broker, and leveret does not guess one. Name it in one of: --broker URL · '
        'Leveret("shop", broker=URL) · LEVERET_BROKER=URL · broker = "URL" in leveret.toml.\n'
        "  URL is amqp://user:password@host for RabbitMQ, or memory:// to try things out (nothing in it outlives the "
        "process)."
    )
    with pytest.raises(ConfigError, match="this app has no broker"):
        load().backend  # noqa: B018


def test_the_backend_comes_from_the_brokers_url():
    assert load(code={"broker": "memory://"}).backend == "memory"
    config = load(code={"broker": "amqps://h"})
    assert config.backend == "rabbitmq"
    assert config.require_broker() is config.broker


def test_a_namespace_is_never_guessed():
    assert load(code={"namespace": "shop"}).require_namespace() == "shop"
    with pytest.raises(ConfigError, match=r"^no namespace is named, .* LEVERET_NAMESPACE=NAME"):
        load().require_namespace()


def test_an_origin_is_asked_for_by_the_name_of_a_setting():
    config = load()
    for key in ("retries", "workers.charge.nix", "retry", "workers.charge", "broker.url"):
        with pytest.raises(KeyError):
            config.origin(key)


# Secrets


def test_no_secret_is_in_the_repr(folder):
    (folder / "token").write_text("ΩΩΩ")
    config = load(
        environ={
            "LEVERET_BROKER": "amqp://shop:%CE%A9@h",
            "LEVERET_STORE": "postgresql://u:Ω@h/db?password=Ω",
            "LEVERET_CACHE": "redis://:Ω@h",
            "LEVERET_NOTIFY__URLS": "tgram://Ω/chat",
            "LEVERET_DASHBOARD__TOKEN_FILE": str(folder / "token"),
        }
    )
    later = config.with_code({"namespace": "shop"})
    assert config.broker.password == "Ω"
    for shown in (
        repr(config),
        str(config),
        repr(later),
        repr(config.dashboard),
        str(config.notify),
        f"{config.layers}",
    ):
        assert "Ω" not in shown
        assert "%CE%A9" not in shown


def test_no_secret_is_in_an_error():
    with pytest.raises(ConfigError) as caught:
        load(code={"dashboard": {"token": ["ΩΩΩ"]}, "notify": {"urls": ["ΩΩΩ"]}, "broker": ["amqp://u:Ω#@h"]})
    error = caught.value
    assert "Ω" not in str(error)
    assert (error.__cause__, error.__context__) == (None, None)


def test_importing_the_urls_does_not_import_pydantic():
    script = "import sys, leveret.core.urls; sys.exit('pydantic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
