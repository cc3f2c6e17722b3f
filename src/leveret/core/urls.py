"""Broker, store and cache URLs, as values.

Read by us, because libraries disagree about `//`, about a bare `#`, and about what an error may print. A URL that can
be read in two ways is refused: half of a password must never be looked up as a host.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, TypeVar, cast
from urllib.parse import quote, unquote_to_bytes

from leveret.core.errors import ConfigError
from leveret.core.redaction import CONTROL, DRIVER_HOST, NEXT_URL, redact

__all__ = ["BrokerUrl", "CacheUrl", "StoreUrl", "parse_broker", "parse_cache", "parse_store", "redact"]

T = TypeVar("T")

#: What RabbitMQ listens on where nobody says otherwise.
PORTS: Final[Mapping[str, int]] = MappingProxyType({"amqp": 5672, "amqps": 5671})

#: What RabbitMQ itself assumes of a URL without a user; it lets this one in from its own machine only.
GUEST: Final = "guest"

#: What RabbitMQ's own URLs may say behind the "?", under the same names.
_TLS: Final = frozenset({"cacertfile", "certfile", "keyfile", "verify", "server_name_indication"})
_OPTIONS: Final = _TLS | {"heartbeat", "connection_timeout", "vhost"}

_HOW_TO_WRITE: Final = """\
In a URL write @ as %40, # as %23, / as %2F, : as %3A, ? as %3F, % as %25.
  This asks for a password and prints it so:  \
python -c "import getpass, urllib.parse as u; print(u.quote(getpass.getpass(), safe=''))\""""

_HOSTS_EXPECTED: Final = (
    "its host or port is not written as [user:password@]host[:port] (with commas between several hosts)"
)

_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([\w.-]+))(?::([0-9]{1,5}))?")
_NAME = re.compile(r"[\w.-]*")
_BARE_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class BrokerUrl:
    """Where the broker is and how to get in. Its `str` and `repr` never show the password.

    Example:
        >>> url = parse_broker("amqp://shop:p%40ss@rabbit-1,rabbit-2:5673/eu", "--broker")
        >>> url.nodes, url.vhost, str(url)
        ((('rabbit-1', 5672), ('rabbit-2', 5673)), 'eu', 'amqp://shop:***@rabbit-1,rabbit-2:5673/eu')
    """

    scheme: Literal["amqp", "amqps", "memory"]
    #: (host, port) in the order given, each once; IPv6 without brackets; none for memory://.
    nodes: tuple[tuple[str, int], ...] = ()
    user: str = GUEST
    password: str = field(default=GUEST, repr=False)
    vhost: str = "/"
    #: Of memory://name, shared under that name in the process; empty: a broker of one app alone.
    name: str = ""
    #: TLS as RabbitMQ names it: paths of PEM files, whether to verify, the name that the certificate must bear.
    cacertfile: str | None = None
    certfile: str | None = None
    keyfile: str | None = None
    verify: Literal["verify_peer", "verify_none"] = "verify_peer"
    server_name_indication: str | None = None
    #: Seconds; 0 is off, None leaves it to the transport.
    heartbeat: int | None = None
    #: Milliseconds, as in RabbitMQ's own URLs; None leaves it to the transport.
    connection_timeout: int | None = None

    def __str__(self) -> str:
        if self.scheme == "memory":
            return f"memory://{self.name}"
        login = ""
        if (self.user, self.password) != (GUEST, GUEST):
            login = quote(self.user, safe="") + (":***" if self.password else "") + "@"
        usual = PORTS[self.scheme]
        nodes = ((f"[{host}]" if ":" in host else host, port) for host, port in self.nodes)
        hosts = ",".join(host if port == usual else f"{host}:{port}" for host, port in nodes)
        vhost = "?vhost=" if not self.vhost else "" if self.vhost == "/" else "/" + quote(self.vhost, safe="")
        return f"{self.scheme}://{login}{hosts}{vhost}"

    def __repr__(self) -> str:
        return f"BrokerUrl({str(self)!r})"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class StoreUrl:
    """Where waiting and dead messages are kept. Its `str` and `repr` never show a password.

    Example:
        >>> parse_store("sqlite:////srv/shop/leveret.db", "leveret.toml").path
        '/srv/shop/leveret.db'
    """

    kind: Literal["sqlite", "memory", "postgresql", "mongodb"]
    #: Of the SQLite file, percent codes resolved; relative to the working directory unless absolute.
    path: str = ""
    #: Of memory://name.
    name: str = ""
    #: For the driver, as it was given, secrets included.
    url: str = field(default="", repr=False)

    def __str__(self) -> str:
        if self.kind == "sqlite":
            return "sqlite:///" + self.path.replace("%", "%25").replace("?", "%3F").replace("#", "%23")
        return f"memory://{self.name}" if self.kind == "memory" else redact(self.url)

    def __repr__(self) -> str:
        return f"StoreUrl({str(self)!r})"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CacheUrl:
    """Where MongoDB's cache is: redis:// or rediss://. Its `str` and `repr` never show a password."""

    #: For the driver, as it was given, secrets included.
    url: str = field(repr=False)

    def __str__(self) -> str:
        return redact(self.url)

    def __repr__(self) -> str:
        return f"CacheUrl({str(self)!r})"


def parse_broker(value: str | Sequence[str], origin: str) -> BrokerUrl:
    """The broker that *value* names: one URL, one for each node, or several in one text with commas between.

    Args:
        value: `amqp://user:password@host:5672/vhost`, `amqps://…`, `memory://` or `memory://name`.
        origin: where it was given (`LEVERET_BROKER`), for the error.

    Raises:
        ConfigError: what cannot be read, naming the part and how to write it, never the password; or nodes that
            do not share user, password, vhost and options.
    """
    given: list[Any] = [value] if isinstance(value, str) or not isinstance(value, Sequence) else list(value)
    for each in given:
        if not isinstance(each, str):
            raise ConfigError(
                f"the broker URL from {origin} cannot be read: expected text, got {type(each).__name__}"
            )
    texts = [text for each in given for text in NEXT_URL.split(each.strip())]
    if not texts:
        raise ConfigError(f"the broker URL from {origin} cannot be read: the list is empty")
    first, *others = (_read("broker", text, origin, _broker) for text in texts)
    for other in others:
        names = [f.name for f in fields(first) if f.name != "nodes"]
        differing = [name for name in names if getattr(first, name) != getattr(other, name)]
        if differing or first.scheme == "memory":
            what = f"they differ in {', '.join(differing)}" if differing else "memory:// has no nodes"
            raise ConfigError(
                f"the broker URLs from {origin}, {first} and {other}, cannot be read as the nodes of one broker: "
                f"{what}. Write all of them alike but for host and port"
            )
    nodes = dict.fromkeys(node for url in (first, *others) for node in url.nodes)
    return replace(first, nodes=tuple(nodes))


def parse_store(value: str, origin: str) -> StoreUrl:
    """The store that *value* names.

    Args:
        value: `sqlite:///leveret.db` (relative), `sqlite:////srv/l.db` (absolute), `sqlite:///C:/l.db` (Windows),
            `postgresql://…`, `mongodb://…`, `mongodb+srv://…`, `memory://` (nothing is kept).
        origin: where it was given (`LEVERET_STORE`), for the error.

    Raises:
        ConfigError: what cannot be read, naming the part and how to write it, never a password.
    """
    return _read("store", value, origin, _store)


def parse_cache(value: str, origin: str) -> CacheUrl:
    """The cache that *value* names, `redis://host:6379/0` or `rediss://…`; *origin* is for the error.

    Raises:
        ConfigError: what cannot be read, naming the part and how to write it, never a password.
    """
    return _read("cache", value, origin, _cache)


class _Unreadable(Exception):
    """Why a URL cannot be read, in words that hold nothing of it."""


class _Parts(NamedTuple):
    user: str | None
    password: str | None
    hosts: str
    #: None: there is no "/" behind the hosts.
    path: str | None
    query: str


def _read(kind: str, url: object, origin: str, reader: Callable[[str, str], T]) -> T:
    if not isinstance(url, str):
        raise ConfigError(
            f"the {kind} URL from {origin} cannot be read: expected text, got {type(url).__name__}"
        )
    text = url.strip()
    try:
        if CONTROL.search(text):
            raise _Unreadable("it has a line break, a tab or another character that no URL can have")
        scheme, found, rest = text.partition("://")
        return reader(scheme.lower(), rest) if found else reader("", text)
    except _Unreadable as error:
        raise ConfigError(
            f"the {kind} URL from {origin}, {redact(text) if text else '(empty)'}, cannot be read: {error}"
        ) from None


def _broker(scheme: str, rest: str) -> BrokerUrl:
    if scheme == "memory":
        return BrokerUrl(scheme="memory", name=_memory_name(rest))
    if scheme not in PORTS:
        raise _Unreadable("a broker is amqp://user:password@host, amqps://user:password@host or memory://")
    parts = _split(rest, "vhost")
    nodes = tuple(_node(each, PORTS[scheme]) for each in parts.hosts.split(","))
    given: dict[str, Any] = _options(scheme, parts.query)
    if parts.path in {None, ""}:
        vhost = given.pop("vhost", "/")
    elif "vhost" in given:
        raise _Unreadable("it names the vhost twice, behind the host and as ?vhost=")
    elif parts.path == "/":
        vhost = "/"
    elif "/" in (path := parts.path or ""):
        raise _bare("vhost", "/")
    else:
        vhost = _decode(path, "vhost")
    if len(vhost.encode()) > 255:
        raise _Unreadable("its vhost is longer than the 255 bytes that AMQP allows")
    if parts.user is not None:
        if not parts.user:
            raise _Unreadable('it has an "@" and no user name before it')
        given |= {"user": parts.user, "password": parts.password or ""}
    return BrokerUrl(scheme=cast("Literal['amqp', 'amqps']", scheme), nodes=nodes, vhost=vhost, **given)


def _node(text: str, usual_port: int) -> tuple[str, int]:
    match = _HOST.fullmatch(text)
    if match is None:
        # The text itself is not shown: without an "@" it may be a user and a password.
        raise _Unreadable(_HOSTS_EXPECTED if text else "it names no host")
    port = int(match[3]) if match[3] else usual_port
    if not 1 <= port <= 65535:
        raise _Unreadable("its port is not between 1 and 65535")
    return match[1] or match[2], port


def _options(scheme: str, query: str) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for piece in query.split("&") if query else ():
        name, equals, text = piece.partition("=")
        # An unknown name is not shown, for it may be what follows a "?" in a password.
        if not equals or name not in _OPTIONS:
            raise _Unreadable(
                f"its query has an unknown option; RabbitMQ's are {', '.join(sorted(_OPTIONS))}"
            )
        if name in given:
            raise _Unreadable(f"its query names {name} twice")
        if name in _TLS and scheme != "amqps":
            raise _Unreadable(f"its query has {name}, which is about TLS: write amqps://, or leave it out")
        value: str | int = _decode(text, f"option {name}")
        if name == "verify" and value not in {"verify_peer", "verify_none"}:
            raise _Unreadable("its option verify is neither verify_peer nor verify_none")
        if name in {"heartbeat", "connection_timeout"}:
            value = _number(text, name)
        elif name != "vhost" and not value:
            raise _Unreadable(f"its option {name} is empty")
        given[name] = value
    if "keyfile" in given and "certfile" not in given:
        raise _Unreadable("its query has a keyfile without the certfile that belongs to it")
    return given


def _number(text: str, name: str) -> int:
    # AMQP tells the heartbeat as 16 bits; a day is far more than anyone waits for a connection.
    least, most, unit = (0, 65535, "seconds") if name == "heartbeat" else (1, 86_400_000, "milliseconds")
    if not re.fullmatch(r"[0-9]{1,9}", text) or not least <= int(text) <= most:
        raise _Unreadable(f"its option {name} is no whole number of {unit} from {least} to {most}")
    return int(text)


def _store(scheme: str, rest: str) -> StoreUrl:
    if ":memory:" in rest and scheme in {"", "sqlite"}:
        raise _Unreadable("use memory:// for a store that keeps nothing")
    if scheme == "sqlite":
        return StoreUrl(kind="sqlite", path=_sqlite_path(rest))
    if scheme == "memory":
        return StoreUrl(kind="memory", name=_memory_name(rest))
    if scheme not in {"postgresql", "mongodb", "mongodb+srv"}:
        raise _Unreadable(
            "a store is sqlite:///leveret.db, sqlite:////an/absolute/path.db, postgresql://…, mongodb://… or, to keep "
            "nothing, memory://"
        )
    _check_driver_url(rest, host_needed=scheme != "postgresql")
    kind: Literal["postgresql", "mongodb"] = "postgresql" if scheme == "postgresql" else "mongodb"
    return StoreUrl(kind=kind, url=f"{scheme}://{rest}")


def _cache(scheme: str, rest: str) -> CacheUrl:
    if scheme not in {"redis", "rediss"}:
        raise _Unreadable("a cache is redis://host:6379/0 or rediss://…")
    _check_driver_url(rest, host_needed=True)
    return CacheUrl(url=f"{scheme}://{rest}")


def _check_driver_url(rest: str, *, host_needed: bool) -> None:
    parts = _split(rest, "database")
    if not all(DRIVER_HOST.fullmatch(each) for each in parts.hosts.split(",")) or (
        host_needed and not parts.hosts
    ):
        raise _Unreadable(_HOSTS_EXPECTED)
    _decode(parts.path or "", "database")
    _decode(parts.query, "query")


def _sqlite_path(rest: str) -> str:
    if not rest.startswith("/"):
        raise _Unreadable(
            "its path begins behind a third slash: sqlite:///leveret.db is a file in the working directory, "
            "sqlite:////srv/leveret.db an absolute path"
        )
    for char in "?#":
        if char in rest:
            raise _bare("path", char)
    path = _decode(rest[1:], "path")
    if not path or path.endswith("/"):
        raise _Unreadable("it names no file; write sqlite:///leveret.db, or memory:// to keep nothing")
    if CONTROL.search(path):
        raise _Unreadable("its path has a control character")
    return path


def _memory_name(rest: str) -> str:
    if not _NAME.fullmatch(rest):
        raise _Unreadable("behind memory:// may stand a name of letters, digits, _ . and -")
    return rest


def _split(rest: str, path_is: str) -> _Parts:
    before, at, tail = rest.rpartition("@")
    user = password = None
    if at:
        user, password = _login(before, path_is)
    head, question, query = tail.partition("?")
    hosts, slash, path = head.partition("/")
    if "#" in tail:
        place = "host" if "#" in hosts else path_is if "#" in path else "query"
        raise _bare("password or host" if place == "host" and not at else place, "#")
    return _Parts(user, password, hosts, path if slash else None, query if question else "")


def _login(text: str, path_is: str) -> tuple[str, str | None]:
    user, colon, password = text.partition(":")
    if match := re.search(r"[/?#@]", text):
        part = "password" if colon and match.start() > len(user) else "user name"
        # Where what comes before could be hosts, the "@" may as well belong to the path or the query.
        could_end_hosts = match[0] in "/?" and all(
            _HOST.fullmatch(each) for each in text[: match.start()].split(",")
        )
        later = re.search(r"[/?]", text[match.start() :])
        if later and (match[0] == "@" or could_end_hosts):
            part_two = path_is if later[0] == "/" else "query"
            raise _Unreadable(
                f'its {part} has a bare "{match[0]}", or its {part_two} a bare "@". {_HOW_TO_WRITE}'
            )
        raise _bare(part, match[0])
    if ":" in password:
        raise _bare("password", ":")
    return _decode(user, "user name"), _decode(password, "password") if colon else None


def _decode(text: str, part: str) -> str:
    if _BARE_PERCENT.search(text):
        raise _bare(part, "%")
    decoded = unquote_to_bytes(text).decode(errors="surrogateescape")
    if any("\udc80" <= char <= "\udcff" for char in decoded):
        raise _Unreadable(f"its {part} has percent codes that are no UTF-8. {_HOW_TO_WRITE}")
    return decoded


def _bare(part: str, char: str) -> _Unreadable:
    return _Unreadable(f'its {part} has a bare "{char}". {_HOW_TO_WRITE}')
