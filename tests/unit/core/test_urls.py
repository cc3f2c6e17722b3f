from __future__ import annotations

import copy
import pickle
from urllib.parse import quote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from leveret.core.errors import ConfigError
from leveret.core.urls import BrokerUrl, StoreUrl, parse_broker, parse_cache, parse_store, redact

#: Letters that stand in no URL but in a password of these tests: one of them in an output is a leak.
MARKS = "ΩΔΞΨ"
#: Passwords of marks and of everything that means something in a URL.
secrets = st.text(st.sampled_from(MARKS + "@#/%:?&=$+,;[] 0123.-é"), min_size=1).filter(
    lambda p: set(p) & set(MARKS)
)


def refused(value: object, origin: str = "LEVERET_BROKER") -> str:
    with pytest.raises(ConfigError) as caught:
        parse_broker(value, origin)
    return str(caught.value)


def store_refused(value: object) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_store(value, "LEVERET_STORE")
    return str(caught.value)


# Brokers: what is read


def test_a_whole_url_is_read_part_by_part():
    url = parse_broker("amqp://shop:secret@rabbit-1:5673/eu", "--broker")
    assert (url.scheme, url.nodes, url.user, url.password, url.vhost) == (
        "amqp",
        (("rabbit-1", 5673),),
        "shop",
        "secret",
        "eu",
    )


def test_what_a_url_leaves_out_is_what_rabbitmq_assumes():
    url = parse_broker("amqp://rabbit-1", "--broker")
    assert (url.nodes, url.user, url.password, url.vhost) == ((("rabbit-1", 5672),), "guest", "guest", "/")
    assert parse_broker("AMQPS://rabbit-1", "--broker").nodes == (("rabbit-1", 5671),)


def test_a_user_without_a_password_is_not_given_the_guests():
    url = parse_broker("amqp://shop@rabbit-1", "--broker")
    assert (url.user, url.password, str(url)) == ("shop", "", "amqp://shop@rabbit-1")


@pytest.mark.parametrize(
    ("tail", "vhost"),
    [
        ("", "/"),
        ("/", "/"),
        ("//", "/"),
        ("/%2F", "/"),
        ("?vhost=", ""),
        ("/?vhost=", ""),
        ("/a%2Fb", "a/b"),
        ("/eu", "eu"),
        ("/%C3%A9", "é"),
        ("?vhost=eu", "eu"),
    ],
)
def test_each_way_to_write_a_vhost(tail, vhost):
    url = parse_broker(f"amqp://h{tail}", "--broker")
    assert url.vhost == vhost
    assert parse_broker(str(url), "--broker") == url


def test_several_nodes_come_as_a_list_or_with_commas():
    nodes = (("rabbit-1", 5672), ("rabbit-2", 5673))
    for value in (
        "amqp://shop:pw@rabbit-1,rabbit-2:5673/eu",
        ["amqp://shop:pw@rabbit-1/eu", "amqp://shop:pw@rabbit-2:5673/eu"],
        "amqp://shop:pw@rabbit-1/eu,amqp://shop:pw@rabbit-2:5673/eu",
        "amqp://shop:pw@rabbit-1/eu, amqp://shop:pw@rabbit-2:5673/eu\n",
        ["amqp://shop:pw@rabbit-1/eu", "amqp://shop:pw@rabbit-1,rabbit-2:5673/eu"],
    ):
        url = parse_broker(value, "LEVERET_BROKER")
        assert (url.nodes, url.user, url.vhost) == (nodes, "shop", "eu")


def test_ipv6_loses_its_brackets_and_finds_them_again():
    url = parse_broker("amqp://[::1]:5673,[fe80::2]", "--broker")
    assert url.nodes == (("::1", 5673), ("fe80::2", 5672))
    assert str(url) == "amqp://[::1]:5673,[fe80::2]"


def test_options_bear_the_names_that_rabbitmq_gives_them():
    url = parse_broker(
        "amqps://h?cacertfile=/etc/ca%20.pem&certfile=c.pem&keyfile=k.pem&verify=verify_none"
        "&server_name_indication=rabbit&heartbeat=0&connection_timeout=2500",
        "--broker",
    )
    assert (url.cacertfile, url.certfile, url.keyfile) == ("/etc/ca .pem", "c.pem", "k.pem")
    assert (url.verify, url.server_name_indication) == ("verify_none", "rabbit")
    assert (url.heartbeat, url.connection_timeout) == (0, 2500)


def test_tls_verifies_unless_told_otherwise():
    assert parse_broker("amqps://h", "--broker").verify == "verify_peer"


def test_a_memory_broker_is_anonymous_or_bears_a_name():
    assert parse_broker("memory://", "--broker") == BrokerUrl(scheme="memory")
    assert parse_broker("memory://lab", "--broker").name == "lab"
    assert [str(parse_broker(text, "--broker")) for text in ("memory://", "memory://lab")] == [
        "memory://",
        "memory://lab",
    ]


@given(
    user=st.text(min_size=1),
    password=st.text(),
    vhost=st.text().filter(lambda v: len(v.encode("utf-8")) < 256),
)
@example(user="shop", password="p@s/s#w%:$ é", vhost="a/b")
def test_whatever_is_percent_encoded_comes_back_exactly(user, password, vhost):
    tail = f"/{quote(vhost, safe='')}" if vhost else "?vhost="
    url = parse_broker(f"amqp://{quote(user, safe='')}:{quote(password, safe='')}@h{tail}", "--broker")
    assert (url.user, url.password, url.vhost, url.nodes) == (user, password, vhost, (("h", 5672),))


# Brokers: what is refused, and how it is told


def test_a_bare_character_is_told_with_the_part_and_the_way_out():
    text = refused("amqp://shop:p#ss@rabbit-1")
    assert text == (
        'the broker URL from LEVERET_BROKER, amqp://shop:***@rabbit-1, cannot be read: its password has a bare "#". '
        "In a URL write @ as %40, # as %23, / as %2F, : as %3A, ? as %3F, % as %25.\n"
        "  This asks for a password and prints it so:  "
        "python -c \"import getpass, urllib.parse as u; print(u.quote(getpass.getpass(), safe=''))\""
    )


@pytest.mark.parametrize("char", "@#/%:?")
def test_each_bare_character_in_a_password_is_named(char):
    text = refused(f"amqp://shop:Ω{char}Δ@rabbit-1")
    assert f'its password has a bare "{char}"' in text
    assert "amqp://shop:***@rabbit-1, cannot" in text
    assert not set(text) & set(MARKS)


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("amqp://sh#op:pw@h", 'its user name has a bare "#"'),
        ("amqp://sh@op:pw@h", 'its user name has a bare "@"'),
        ("amqp://sh%op:pw@h", 'its user name has a bare "%"'),
        ("amqp://h/a/b", 'its vhost has a bare "/"'),
        ("amqp://h/a#b", 'its vhost has a bare "#"'),
        ("amqp://h/a%b", 'its vhost has a bare "%"'),
        ("amqp://u:p@h/v@x", 'its password has a bare "@", or its vhost a bare "@"'),
        ("amqp://h/v@x", 'its user name has a bare "/", or its vhost a bare "@"'),
        ("amqps://h?certfile=/a@b", 'its user name has a bare "?", or its query a bare "@"'),
        ("amqp://h#x", 'its password or host has a bare "#"'),
        ("amqps://h?certfile=a#b", 'its query has a bare "#"'),
        ("amqps://h?certfile=a%b", 'its option certfile has a bare "%"'),
        ("amqp://u:%FF@h", "its password has percent codes that are no UTF-8"),
        ("amqp://u:p@", "it names no host"),
        ("amqp:///eu", "it names no host"),
        ("amqp://", "it names no host"),
        ("amqp://h:0", "its port is not between 1 and 65535"),
        ("amqp://h:65536", "its port is not between 1 and 65535"),
        ("amqp://h:amqp", "its host or port is not written as"),
        ("amqp://h:", "its host or port is not written as"),
        ("amqp://h1,,h2", "it names no host"),
        ("amqp://h 1", "its host or port is not written as"),
        ("amqp://::1", "its host or port is not written as"),
        ("amqp://:pw@h", 'it has an "@" and no user name before it'),
        ("amqp://@h", 'it has an "@" and no user name before it'),
        ("amqp://h/eu?vhost=", "it names the vhost twice"),
        ("amqp://h/" + "é" * 128, "longer than the 255 bytes"),
        ("amqp://h\nx", "a line break"),
        ("amqp://u:\udcff@h", "another character that no URL can have"),
        ("amqp://h?hartbeat=3", "its query has an unknown option; RabbitMQ's are cacertfile"),
        ("amqp://h?heartbeat", "its query has an unknown option"),
        ("amqp://h?heartbeat=3&heartbeat=4", "its query names heartbeat twice"),
        ("amqp://h?heartbeat=-1", "heartbeat is no whole number of seconds from 0 to 65535"),
        ("amqp://h?heartbeat=65536", "heartbeat is no whole number of seconds from 0 to 65535"),
        ("amqp://h?connection_timeout=0", "connection_timeout is no whole number of milliseconds from 1"),
        ("amqp://h?connection_timeout=1.5", "connection_timeout is no whole number of milliseconds from 1"),
        ("amqp://h?cacertfile=ca.pem", "its query has cacertfile, which is about TLS: write amqps://"),
        ("amqps://h?cacertfile=", "its option cacertfile is empty"),
        ("amqps://h?verify=maybe", "its option verify is neither verify_peer nor verify_none"),
        ("amqps://h?keyfile=k.pem", "a keyfile without the certfile"),
        ("http://h", "a broker is amqp://user:password@host, amqps://user:password@host or memory://"),
        ("localhost:5672", "a broker is amqp://"),
        ("memory", "a broker is amqp://"),
        ("memory://a/b", "behind memory:// may stand a name"),
        ("memory://u:p@lab", "behind memory:// may stand a name"),
        ("", "(empty), cannot be read"),
        ([], "the list is empty"),
        (5, "expected text, got int"),
        (["amqp://h", None], "expected text, got NoneType"),
        (b"amqp://h", "expected text, got int"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_words(url, told):
    assert told in refused(url)


@pytest.mark.parametrize(
    ("second", "told"),
    [
        ("amqp://shop:other@h2", "they differ in password"),
        ("amqps://shop:pw@h2/eu", "they differ in scheme, vhost"),
        ("memory://", "they differ in scheme, user, password"),
    ],
)
def test_nodes_that_are_not_one_broker_are_refused(second, told):
    text = refused(["amqp://shop:pw@h1", second])
    assert told in text
    assert "amqp://shop:***@h1" in text
    assert "other" not in text


def test_two_memory_brokers_are_no_nodes():
    assert "memory:// has no nodes" in refused("memory://,memory://")


def test_the_error_names_where_the_url_was_given():
    assert refused("x", "leveret.toml, line 3").startswith(
        "the broker URL from leveret.toml, line 3, ***, cannot be read"
    )


# Secrets


@given(password=secrets)
@example(password="p@s/s#w%:$ éΩ")
@example(password="Ω?vhost=@Δ")
@example(password="12/Ω@Δ")
def test_d07_no_part_of_a_password_is_shown_or_taken_for_a_host(password):
    url = f"amqp://shop:{password}@rabbit-1"
    assert not set(redact(url)) & set(MARKS)
    try:
        broker = parse_broker(url, "LEVERET_BROKER")
    except ConfigError as error:
        shown = f"{error} {error!r} {error.__cause__!r} {error.__context__!r}"
    else:
        shown = f"{broker} {broker!r}"
        assert (broker.nodes, broker.user) == ((("rabbit-1", 5672),), "shop")
    assert not set(shown) & set(MARKS)


@given(password=secrets, name=st.sampled_from(["password", "sslpassword", "pass", "authMechanismProperties"]))
def test_a_password_in_a_query_is_not_shown(password, name):
    for url in (
        f"postgresql://db/shop?{name}={password}",
        f"postgresql://db/shop?schema=leveret&{name}={password}&sslmode=require",
        f"mongodb://app:{password}@h1,h2/db?{name}={password}",
        f"sqlite:///l.db?{name}={password}",
    ):
        assert not set(redact(url)) & set(MARKS)
        try:
            shown = str(parse_store(url, "LEVERET_STORE"))
        except ConfigError as error:
            shown = str(error)
        assert not set(shown) & set(MARKS)


@given(text=secrets)
def test_what_is_no_url_at_all_may_be_a_password(text):
    for value in (
        text,
        f"shop:{text}@h",
        f"amqp:{text.lstrip('/')}",
        f"amqp:/shop:{text}@h",
        f"{text}://h",
        f"amqp://shop:Ω{text.replace('@', '')}",
    ):
        assert not set(redact(value)) & set(MARKS)
        assert not set(refused(value)) & set(MARKS)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("amqp://shop:pw@rabbit-1:5672/eu?heartbeat=5", "amqp://shop:***@rabbit-1:5672/eu?heartbeat=5"),
        ("amqp://shop:@rabbit-1", "amqp://shop:***@rabbit-1"),
        ("amqp://shop@rabbit-1", "amqp://shop@rabbit-1"),
        ("amqp://rabbit-1:5673", "amqp://rabbit-1:5673"),
        ("amqp://u:a@h1,amqp://u:b@h2", "amqp://u:***@h1,amqp://u:***@h2"),
        ("amqp://shop:p,w@h1,h2", "amqp://shop:***@h1,h2"),
        ("amqp://shop:pa#ss", "amqp://shop:***"),
        ("amqp://shop:12#ss", "amqp://shop:***"),
        ("redis://secret@host:6379/0", "redis://***@host:6379/0"),
        ("redis://:pw@host:6379/0", "redis://:***@host:6379/0"),
        ("sqlite:////srv/a@b:c/l.db", "sqlite:////srv/a@b:c/l.db"),
        ("memory://lab", "memory://lab"),
        (":memory:", ":memory:"),
        ("postgresql://u:pw@h/db?schema=s&password=x", "postgresql://u:***@h/db?schema=s&password=***"),
        ("postgresql://h/db?password=x@y", "postgresql://***"),
        ("", "***"),
        ("tgram://token/chat", "tgram://***"),
        ("ampq://shop:pw@rabbit-1", "ampq://***"),
    ],
)
def test_a_redacted_url_still_says_what_it_may(url, shown):
    assert redact(url) == shown


def test_a_line_break_in_a_url_does_not_break_the_line_that_shows_it():
    assert redact("amqp://h/a\nb\udcff") == "amqp://h/a�b�"


def test_values_are_frozen_and_can_be_copied():
    url = parse_broker("amqp://shop:pw@h", "--broker")
    assert pickle.loads(pickle.dumps(url)) == copy.deepcopy(url) == url
    with pytest.raises(AttributeError):
        url.user = "other"
    assert repr(url) == "BrokerUrl('amqp://shop:***@h')"


# Stores and caches


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:///leveret.db", "leveret.db"),
        ("sqlite:////var/lib/l.db", "/var/lib/l.db"),
        ("sqlite:///C:/l.db", "C:/l.db"),
        ("sqlite:///C:\\data\\l.db", "C:\\data\\l.db"),
        ("sqlite:///a%20b%23%3F%25.db", "a b#?%.db"),
        ("SQLite:///l@1:2.db", "l@1:2.db"),
    ],
)
def test_each_way_to_write_a_sqlite_file(url, path):
    store = parse_store(url, "LEVERET_STORE")
    assert store == StoreUrl(kind="sqlite", path=path)
    assert parse_store(str(store), "LEVERET_STORE") == store


@pytest.mark.parametrize(
    ("url", "told"),
    [
        (":memory:", "LEVERET_STORE, :memory:, cannot be read: use memory://"),
        ("sqlite:///:memory:", "use memory://"),
        ("sqlite://:memory:", "use memory://"),
        ("sqlite:///file::memory:", "use memory://"),
        ("sqlite:///", "it names no file; write sqlite:///leveret.db"),
        ("sqlite:////srv/", "it names no file"),
        ("sqlite://", "its path begins behind a third slash"),
        ("sqlite://leveret.db", "its path begins behind a third slash"),
        ("sqlite:///a#b.db", 'its path has a bare "#"'),
        ("sqlite:///a?b.db", 'its path has a bare "?"'),
        ("sqlite:///a%b.db", 'its path has a bare "%"'),
        ("sqlite:///a%00.db", "its path has a control character"),
        ("leveret.db", "a store is sqlite:///leveret.db"),
        ("mysql://u:p@h/db", "a store is sqlite:///leveret.db"),
        ("postgresql://u:p#w@h/db", 'its password has a bare "#"'),
        ("postgresql://h/db#x", 'its database has a bare "#"'),
        ("postgresql://h:x/db", "its host or port"),
        ("mongodb:///db", "its host or port"),
        ("mongodb://h/db?authSource=%", 'its query has a bare "%"'),
        (None, "expected text, got NoneType"),
    ],
)
def test_what_can_be_no_store_is_refused_in_words(url, told):
    assert told in store_refused(url)


def test_a_url_for_a_driver_stays_as_it_is():
    for url in (
        "postgresql://u:p%40w@h/db?schema=leveret",
        "postgresql:///db",
        "mongodb://h1,h2:27018/db?replicaSet=rs0",
        "mongodb+srv://u:p@cluster.example/db",
    ):
        store = parse_store(url, "LEVERET_STORE")
        assert (store.kind, store.url) == ("postgresql" if url.startswith("p") else "mongodb", url)
        assert "p@" not in repr(store)


def test_a_memory_store_may_bear_a_name():
    assert [str(parse_store(url, "--store")) for url in ("memory://", "memory://lab")] == [
        "memory://",
        "memory://lab",
    ]


def test_a_cache_is_redis():
    assert parse_cache("redis://:pw@host:6379/0", "LEVERET_CACHE").url == "redis://:pw@host:6379/0"
    assert repr(parse_cache("rediss://:pw@host", "LEVERET_CACHE")) == "CacheUrl('rediss://:***@host')"
    for url in ("memcached://h", "redis://", "redis://:p#w@h"):
        with pytest.raises(ConfigError, match="the cache URL from LEVERET_CACHE"):
            parse_cache(url, "LEVERET_CACHE")
