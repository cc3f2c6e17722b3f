"""Notifier: tells people through Apprise. The only file that knows it; no address of anybody's leaves it readable."""

from __future__ import annotations

import contextvars
import logging
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from leveret.alarms.template import BODY, TITLE, render
from leveret.core.errors import ConfigError, MissingExtra

if TYPE_CHECKING:
    from apprise import Apprise

#: Loggers that write whole addresses, tokens included, while something is sent.
_TALKATIVE: Final = (
    "apprise",
    "urllib3",
    "urllib3.connectionpool",
    "urllib3.util.retry",
    "requests",
    "requests_oauthlib",
)
#: Characters of a reason.
_LONGEST_WHY: Final = 200
#: Parts of a URL shorter than this are no secrets: ports, `to`, `yes`.
_SHORTEST_SECRET: Final = 4

#: What is written about the sending that this context does; None: it sends nothing.
_HEARD: contextvars.ContextVar[list[tuple[int, str]] | None] = contextvars.ContextVar(
    "leveret_heard", default=None
)

_SMTP_ANSWER = re.compile(r"\((\d{3}), b?['\"](.*?)['\"]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """What became of one message to one address."""

    #: The address as it may be shown: `tgram://***`.
    to: str
    #: Seconds that it took.
    seconds: float
    #: Why it was not sent; empty where it was.
    why: str = ""
    #: Whether somebody answered and said no; False also where nobody was reached.
    refused: bool = False

    def __str__(self) -> str:
        if not self.why:
            return f"{self.to}: sent in {self.seconds:.1f} s"
        return f"{self.to}: {'refused' if self.refused else 'not reached'} ({self.why})"


class Notifier:
    """Tells people of alarms, each address by itself. Its methods block, so that they belong into threads.

    Args:
        urls: of Apprise; secrets from end to end.
        title, body: templates.
        least: `CRITICAL` leaves warnings out.

    Raises:
        MissingExtra: Apprise is not installed.
        ConfigError: a URL that Apprise cannot read, told without showing it.
    """

    def __init__(
        self, urls: Sequence[str], *, title: str = TITLE, body: str = BODY, least: str = "WARNING"
    ) -> None:
        try:
            import apprise
        except ModuleNotFoundError as error:
            if error.name != "apprise":
                raise
            raise MissingExtra(
                'people are told of alarms through Apprise, which is not installed: pip install "leveret[notify]"'
            ) from error
        _keep_quiet()
        self._title, self._body = title, body
        self._least = least
        self._secrets = [_secrets(url) for url in urls]
        #: The addresses as they may be shown, in the order in which they were given.
        self.shown: Final = _shown(urls)
        self._doors: list[Apprise] = []
        faults = []
        asset = apprise.AppriseAsset(app_id="leveret", app_desc="leveret")
        for shown, url in zip(self.shown, urls, strict=True):
            door = apprise.Apprise(asset=asset)
            with _Listening() as heard:
                if not door.add(url):
                    faults.append(
                        f"{shown}: {self._why(heard, len(self._doors)) or 'Apprise does not know it'}"
                    )
            self._doors.append(door)
        if faults:
            raise ConfigError(
                f"[notify] urls: {' · '.join(faults)}. How each service writes its URL: https://github.com/caronc/apprise"
            )

    def __repr__(self) -> str:
        return f"<Notifier {', '.join(self.shown)}>"

    def wants(self, told: Mapping[str, Any]) -> bool:
        """Whether people asked to be told of such alarms."""
        return self._least != "CRITICAL" or told["severity"] == "CRITICAL"

    def send(self, number: int, told: Mapping[str, Any]) -> Sent:
        """Tell the address of that number; it never raises for what happens on the way."""
        kind = (
            "success"
            if told["state"] == "resolved"
            else "failure"
            if told["severity"] == "CRITICAL"
            else "warning"
        )
        began = time.perf_counter()
        why = ""
        with _Listening() as heard:
            try:
                sent = self._doors[number].notify(
                    body=render(self._body, told),
                    title=render(self._title, told),
                    notify_type=kind,
                    body_format="text",
                )
            except Exception as error:  # noqa: BLE001 - a plug-in of any service; what it says may hold the address
                sent = None
                why = self._clean(f"{type(error).__name__}: {error}", number)
        took = time.perf_counter() - began
        if sent:
            return Sent(to=self.shown[number], seconds=took)
        why = why or self._why(heard, number) or "no reason was given"
        answered = any(_SMTP_ANSWER.search(text) or "error=" in text for _, text in heard)
        return Sent(to=self.shown[number], seconds=took, why=why, refused=answered)

    def _why(self, heard: Sequence[tuple[int, str]], number: int) -> str:
        """The reason in what was written meanwhile."""
        for _, text in heard:
            if answer := _SMTP_ANSWER.search(text):
                return self._clean(f"{answer[1]} {answer[2]}", number)
        told = [text for level, text in heard if level >= logging.WARNING]
        return self._clean(told[0].rstrip(".").split("\n")[0], number) if told else ""

    def _clean(self, text: str, number: int) -> str:
        for secret in self._secrets[number]:
            text = text.replace(secret, "***")
        return text if len(text) <= _LONGEST_WHY else f"{text[: _LONGEST_WHY - 1]}…"


def hear_reasons() -> None:
    """Have Apprise write down why something was not sent, in a process that does nothing else: it is quiet about it."""
    logging.getLogger("apprise").setLevel(logging.DEBUG)
    logging.getLogger("apprise").propagate = False
    logging.getLogger("apprise").addHandler(logging.NullHandler())


class _Listening:
    """Takes what is written while something is sent, so that it reaches nobody's log."""

    def __enter__(self) -> list[tuple[int, str]]:
        heard: list[tuple[int, str]] = []
        self._token = _HEARD.set(heard)
        return heard

    def __exit__(self, *_: object) -> None:
        _HEARD.reset(self._token)


def _take(record: logging.LogRecord) -> bool:
    heard = _HEARD.get()
    if heard is None:
        return True
    heard.append((record.levelno, record.getMessage()))
    return False


def _keep_quiet() -> None:
    for name in _TALKATIVE:
        logger = logging.getLogger(name)
        if _take not in logger.filters:
            logger.addFilter(_take)


def _shown(urls: Sequence[str]) -> tuple[str, ...]:
    """URLs as they may be shown: of a mail the user, of all others the service alone; numbered where two look alike."""
    shown: list[str] = []
    for url in urls:
        scheme, _, rest = url.partition("://")
        found = (
            re.match(r"([A-Za-z0-9._+-]{1,64})(:[^@/]*)?@", rest) if scheme in {"mailto", "mailtos"} else None
        )
        service = scheme if re.fullmatch(r"[A-Za-z0-9+.-]{1,32}", scheme) else "***"
        name = f"{service}://{found[1]}@***" if found else f"{service}://***"
        alike = sum(each.split(" ")[0] == name for each in shown)
        shown.append(f"{name} ({alike + 1})" if alike else name)
    return tuple(shown)


def _secrets(url: str) -> list[str]:
    """Every part of a URL behind its scheme, as written and as meant; the longest first."""
    rest = url.partition("://")[2]
    parts = {rest, unquote(rest)}
    for piece in re.split(r"[/@:?&=#,]", rest):
        parts |= {piece, unquote(piece)}
    return sorted((part for part in parts if len(part) >= _SHORTEST_SECRET), key=len, reverse=True)
