"""RetryPolicy: how often a message is tried, how long it waits in between, and when it is given up.

Pure: a policy looks at an attempt's number, an error and the time it is told, and answers with a decision.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any, Final, Protocol, TypeAlias

from leveret.core.errors import Failure, HardFailure, SoftFailure
from leveret.core.seconds import LONGEST, Seconds, fraction, seconds, shown, whole

#: What a single failure may ask for with `retry_max`, unless the policy says otherwise: ten retries.
USUAL_CAP: Final = 11

#: The least wait of a try that does not count, in seconds: nothing else would keep it from spinning.
LEAST_UNCOUNTED: Final = 1.0

#: Characters of an error's description: it is read in a table, and the traceback has the rest.
DESCRIBED: Final = 500

#: A schedule of more waits than this is shown by its beginning and its end.
WAITS_SHOWN: Final = 8


class RandomSource(Protocol):
    """What spreading a wait needs; `random.Random` is one."""

    def random(self) -> float:
        """A float in [0, 1)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryAt:
    """The decision to try again."""

    #: Seconds from now.
    delay: float
    #: The number that the next run will bear, from 1.
    attempt: int
    #: False where the failed run spent no attempt.
    counted: bool = True
    #: What went wrong, in one line.
    reason: str = ""
    #: How many runs this message may have by its own word (`retry_max`); None: as many as the policy says.
    attempts_allowed: int | None = None
    #: The seconds asked for, where the policy's `max_retry_after` made them fewer; else None.
    shortened_from: float | None = None


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The decision that a message is dead; in `retry_on`, what to do with errors that no retry can mend.

    Args:
        reason: in one line, for the dead letter.
        exhausted: its tries, or the time allowed for them, are used up.
        hard: the error itself is not worth another try.

    Example:
        >>> RetryPolicy(retry_on={ValueError: GiveUp("bad data")}).decide(1, ValueError("no url"), now=0.0)
        GiveUp(reason='bad data: ValueError: no url', exhausted=False, hard=True)
    """

    reason: str = ""
    _: KW_ONLY
    exhausted: bool = False
    hard: bool = False


#: What `retry_on` holds: exception classes, and what is done about each.
RetryOn: TypeAlias = "Mapping[type[BaseException], RetryPolicy | type[GiveUp] | GiveUp]"

_NOTHING: Final[RetryOn] = MappingProxyType({})


# The constructor is written out, because it takes durations in any form and the fields are plain floats.
@dataclass(frozen=True, slots=True, init=False)
class RetryPolicy:
    """How often a message is tried, and how long it waits in between. Attempts count the first run.

    Args:
        first_delay: seconds between the first failure and the second run.
        factor: each wait is so many times the one before.
        jitter: spread each wait by this part in both directions, 0 to 1; at `max_delay` it only shortens.
        max_delay: no wait of the policy's own is longer, in seconds.
        max_attempts: all runs, the first included: 6 means five retries.
        attempts_cap: how many runs a failure may ask for with `retry_max`. None: 11, or `max_attempts` if that is more.
        max_retry_after: bounds the `retry_after` of a failure, in seconds. None: what is asked for holds.
        max_age: give up where the next run would begin later than so many seconds after the first failure.
        retry_on: another policy for some exception classes, or `GiveUp`; the most specific class wins. Such a policy
            has no `retry_on` of its own, and takes `max_retry_after` and `max_age` from this one where it names none.

    Raises:
        ValueError: a value that cannot be meant, named with its field; or `first_delay` above `max_delay`.

    Example:
        >>> policy = RetryPolicy(first_delay=0.2, max_attempts=4, retry_on={KeyError: GiveUp})
        >>> policy.schedule()
        [0.2, 0.4, 0.8]
        >>> policy.decide(2, TimeoutError("no answer"), now=0.0).delay
        0.4
        >>> policy.decide(4, TimeoutError("no answer"), now=0.0).reason
        'retries exhausted: TimeoutError: no answer'
        >>> print(RetryPolicy())
        6 tries: 30 s, 60 s, 120 s, 240 s, 300 s ± 50 %
    """

    first_delay: float
    factor: float
    jitter: float
    max_delay: float
    max_attempts: int
    attempts_cap: int | None
    max_retry_after: float | None
    max_age: float | None
    # A mapping has no hash, and policies that are equal have equal numbers anyway.
    retry_on: RetryOn = field(hash=False)

    def __init__(
        self,
        *,
        first_delay: Seconds = 30.0,
        factor: float = 2.0,
        jitter: float = 0.5,
        max_delay: Seconds = 300.0,
        max_attempts: int = 6,
        attempts_cap: int | None = None,
        max_retry_after: Seconds | None = None,
        max_age: Seconds | None = None,
        retry_on: RetryOn = _NOTHING,
    ) -> None:
        checked: dict[str, Any] = {
            "first_delay": seconds(first_delay, "first_delay"),
            "factor": fraction(factor, "factor", most=None),
            "jitter": fraction(jitter, "jitter", most=1.0),
            "max_delay": seconds(max_delay, "max_delay"),
            "max_attempts": whole(max_attempts, "max_attempts", least=1),
            "attempts_cap": attempts_cap,
            "max_retry_after": max_retry_after,
            "max_age": max_age,
            "retry_on": _checked_retry_on(retry_on),
        }
        if attempts_cap is not None:
            checked["attempts_cap"] = whole(attempts_cap, "attempts_cap", least=1)
        for name, bound in (("max_retry_after", max_retry_after), ("max_age", max_age)):
            if bound is not None:
                checked[name] = seconds(bound, name)
        if checked["first_delay"] > checked["max_delay"]:
            raise ValueError(
                f"first_delay={shown(first_delay)} is above max_delay={shown(max_delay)}, which would cut every "
                f"wait. Raise max_delay, or lower first_delay"
            )
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    @property
    def cap(self) -> int:
        """How many runs a failure may ask for: `attempts_cap`, or 11, or `max_attempts` if that is more."""
        return max(USUAL_CAP, self.max_attempts) if self.attempts_cap is None else self.attempts_cap

    def delay(self, attempt: int, *, random: RandomSource | None = None) -> float:
        """Seconds to wait after failed attempt *attempt*, from 1 (less counts as 1); always within 0 and `max_delay`.

        Without *random* the wait is exact. With it, the wait is spread by `jitter` in both directions; what would lie
        beyond `max_delay` is drawn from below it, so that late attempts do not all come back at one moment.

        Raises:
            ValueError: *attempt* is no whole number.

        Example:
            >>> RetryPolicy(first_delay=30).delay(3), RetryPolicy(first_delay=30).delay(1_000_000)
            (120.0, 300.0)
        """
        wait = _grown(self.first_delay, self.factor, whole(attempt, "attempt", least=0), self.max_delay)
        if random is None:
            return wait
        return _between(wait * (1 - self.jitter), min(wait * (1 + self.jitter), self.max_delay), random)

    def schedule(self) -> list[float]:
        """The waits between the runs, in seconds and without jitter: one fewer than `max_attempts`."""
        return [self.delay(attempt) for attempt in range(1, self.max_attempts)]

    def decide(
        self,
        attempt: int,
        error: BaseException,
        now: float,
        *,
        first_failed_at: float | None = None,
        attempts_allowed: int | None = None,
        random: RandomSource | None = None,
    ) -> RetryAt | GiveUp:
        """What follows on the failure of run *attempt*: another try, and when, or none.

        Any exception but a `HardFailure` is worth another try, unless `retry_on` says otherwise.

        Args:
            attempt: the number of the run that failed, from 1.
            error: what it raised.
            now: epoch seconds.
            first_failed_at: epoch seconds of the message's first failure; None: this is it.
            attempts_allowed: what an earlier failure allowed this message (`RetryAt.attempts_allowed`).
            random: spreads the wait; None: no jitter.

        Raises:
            ValueError: *attempt* is less than 1 or no whole number.

        Example:
            >>> RetryPolicy().decide(1, SoftFailure("503", retry_after=7), now=0.0)
            RetryAt(delay=7.0, attempt=2, counted=True, reason='503', attempts_allowed=None, shortened_from=None)
            >>> RetryPolicy().decide(1, HardFailure("410 gone"), now=0.0)
            GiveUp(reason='HardFailure: 410 gone', exhausted=False, hard=True)
        """
        whole(attempt, "attempt", least=1)
        reason = describe(error)
        if isinstance(error, HardFailure):
            return GiveUp(reason, hard=True)
        rules = self._rules_for(error)
        if isinstance(rules, GiveUp):
            words = f"{rules.reason}: {reason}" if rules.reason else reason
            return replace(rules, reason=words, hard=not rules.exhausted)
        soft = _asked_by(error) if isinstance(error, SoftFailure) else _ASKS_NOTHING

        allowed = attempts_allowed if soft.retry_max is None else soft.retry_max + 1
        if allowed is not None:
            allowed = min(allowed, rules.cap)
        runs = rules.max_attempts if allowed is None else allowed
        # A run that is not counted leaves its number to the next one, so the last of them may repeat.
        used_up = attempt >= runs if soft.counted else attempt > runs or soft.retry_max == 0
        if used_up:
            return GiveUp(f"retries exhausted: {reason}", exhausted=True)

        delay, shortened_from = _wait(rules, soft, attempt, random)
        age = 0.0 if first_failed_at is None else now - first_failed_at
        if rules.max_age is not None and age + delay > rules.max_age:
            return GiveUp(f"older than max_age {_number(rules.max_age)} s: {reason}", exhausted=True)
        return RetryAt(
            delay=delay,
            attempt=attempt + 1 if soft.counted else attempt,
            counted=soft.counted,
            reason=reason,
            attempts_allowed=allowed,
            shortened_from=shortened_from,
        )

    def to_header(self) -> str:
        """The numbers as compact JSON, to travel with a message; `retry_on` stays with the code.

        Example:
            >>> RetryPolicy.from_header(RetryPolicy(max_attempts=3).to_header()) == RetryPolicy(max_attempts=3)
            True
        """
        numbers = {name: getattr(self, name) for name in _NUMBERS}
        return json.dumps({name: n for name, n in numbers.items() if n is not None}, separators=(",", ":"))

    @classmethod
    def from_header(cls, text: str, retry_on: RetryOn = _NOTHING) -> RetryPolicy | None:
        """The policy whose numbers *text* holds, with *retry_on*; None where it holds none that can be meant.

        Names it does not know are passed over: a later leveret may have written them.
        """
        try:
            found = json.loads(text)
            if not isinstance(found, dict) or not found.keys() >= _REQUIRED:
                return None
            numbers = cls(**{name: found[name] for name in _NUMBERS if name in found})
        except (ValueError, RecursionError):
            return None
        return replace(numbers, retry_on=retry_on) if retry_on else numbers

    def __str__(self) -> str:
        waits = self.max_attempts - 1
        if waits == 0:
            return "1 try"
        spread = f" ± {self.jitter * 100:g} %" if self.jitter else ""
        return f"{self.max_attempts} tries: {', '.join(self._waits_shown(waits))}{spread}"

    def __reduce__(self) -> tuple[object, ...]:
        # The read-only view that protects retry_on can be neither pickled nor deeply copied.
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return _rebuilt, (type(self), values | {"retry_on": dict(self.retry_on)})

    def _rules_for(self, error: BaseException) -> RetryPolicy | GiveUp:
        """What governs *error*: what `retry_on` holds for the first of its classes that is named there, else this."""
        if not self.retry_on:
            return self
        found = next((self.retry_on[each] for each in type(error).__mro__ if each in self.retry_on), self)
        if isinstance(found, type):
            return found()
        if isinstance(found, GiveUp) or found is self:
            return found
        return replace(
            found,
            max_retry_after=self.max_retry_after if found.max_retry_after is None else found.max_retry_after,
            max_age=self.max_age if found.max_age is None else found.max_age,
        )

    def _waits_shown(self, waits: int) -> list[str]:
        if waits <= WAITS_SHOWN:
            return [f"{_number(wait)} s" for wait in self.schedule()]
        parts: list[str] = []
        for attempt in range(1, WAITS_SHOWN + 1):
            wait = self.delay(attempt)
            # Where two waits in a row are equal, all that follow are.
            if wait == self.delay(attempt + 1):
                return [*parts, f"{'then ' if parts else ''}{_number(wait)} s each"]
            parts.append(f"{_number(wait)} s")
        return [*parts[: WAITS_SHOWN // 2], f"… {_number(self.delay(waits))} s"]


#: What travels with a message: all but `retry_on`.
_NUMBERS: Final = tuple(each.name for each in fields(RetryPolicy) if each.name != "retry_on")
#: Without these a header is none of ours; the others may be None, and are then left out.
_REQUIRED: Final = frozenset(_NUMBERS) - {"attempts_cap", "max_retry_after", "max_age"}

#: Stands for any other exception: a soft failure that asks for nothing.
_ASKS_NOTHING: Final = SoftFailure()


#: What would break a line, hide text or be refused as UTF-8: controls, line separators, direction marks and
#: lone surrogates.
_INVISIBLE: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def describe(error: BaseException) -> str:
    r"""One line that tells a person what went wrong, at most 500 characters; it never raises.

    A soft failure says its reason, anything else its class and its text. Control characters are written as escapes.

    Example:
        >>> describe(KeyError("url")), describe(SoftFailure("the card service answered 503"))
        ("KeyError: 'url'", 'the card service answered 503')
        >>> describe(HardFailure("410 gone")), describe(OSError("two\nlines"))
        ('HardFailure: 410 gone', 'OSError: two\\nlines')
    """
    name = type(error).__name__
    try:
        text = str(error.reason or error) if isinstance(error, Failure) else str(error)
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001  a broken __str__ must not keep its message from being retried
        text = ""
    # Cut before it is looked at closely: the text may be megabytes.
    text = text.strip(" \t\r\n")[: DESCRIBED + 1]
    line = text if isinstance(error, SoftFailure) and text else f"{name}: {text}" if text else name
    line = _INVISIBLE.sub(lambda found: found[0].encode("unicode_escape").decode(), line)
    return line if len(line) <= DESCRIBED else line[: DESCRIBED - 1] + "…"


def _checked_retry_on(retry_on: RetryOn) -> RetryOn:
    if not isinstance(retry_on, Mapping):
        raise ValueError(f"retry_on={shown(retry_on)}: expected a mapping of exception classes")
    for kind, rule in retry_on.items():
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            raise ValueError(f"retry_on={{{shown(kind)}: …}}: expected an exception class")
        where = f"retry_on={{{kind.__name__}: {shown(rule)}}}"
        if issubclass(kind, HardFailure):
            raise ValueError(f"{where}: a hard failure is never retried. Raise a SoftFailure instead")
        if isinstance(rule, RetryPolicy):
            if rule.retry_on:
                raise ValueError(f"{where}: a policy in retry_on has none of its own. Name its classes here")
        elif not (isinstance(rule, GiveUp) or rule is GiveUp):
            raise ValueError(f"{where}: expected a RetryPolicy or GiveUp")
    return MappingProxyType(dict(retry_on))


def _asked_by(error: SoftFailure) -> SoftFailure:
    """What *error* asks for, checked: a subclass may set anything, and what cannot be meant asks for nothing."""
    try:
        return SoftFailure(
            retry_after=error.retry_after,
            retry_max=error.retry_max,
            factor=error.factor,
            jitter=error.jitter,
            counted=error.counted,
        )
    except Exception:  # noqa: BLE001  an attribute of theirs may be a property that raises
        return _ASKS_NOTHING


def _wait(
    rules: RetryPolicy, soft: SoftFailure, attempt: int, random: RandomSource | None
) -> tuple[float, float | None]:
    """Seconds to wait, and what was asked for where that is more."""
    least = 0.0 if soft.counted else LEAST_UNCOUNTED
    if soft.retry_after is None:
        return (rules.delay(attempt, random=random) if soft.counted else least), None
    factor = 1.0 if soft.factor is None else soft.factor
    asked = max(least, _grown(soft.retry_after, factor, attempt, LONGEST))
    most = LONGEST if rules.max_retry_after is None else max(least, rules.max_retry_after)
    jitter = 0.0 if soft.jitter is None or random is None else soft.jitter
    if asked > most:
        wait = most if random is None else max(least, _between(most * (1 - jitter), most, random))
        return wait, asked
    # Never early: who asked for a pause has named the least that will do, so jitter lengthens it.
    return asked if random is None else _between(asked, min(asked * (1 + jitter), most), random), None


def _grown(first: float, factor: float, attempt: int, most: float) -> float:
    """*first* times *factor* to the power of (attempt - 1), at most *most*; nothing overflows on the way."""
    steps = max(0, attempt - 1)
    if steps == 0 or factor == 1.0:
        return min(first, most)
    if first == 0.0 or factor == 0.0:
        return 0.0
    # Clamped before anything is multiplied.
    if math.log(first) + steps * math.log(factor) >= math.log(most):
        return most
    # In two halves: where first is tiny, the power alone may be more than a float holds.
    half = steps // 2
    return min(first * factor**half * factor ** (steps - half), most)


def _between(low: float, high: float, random: RandomSource) -> float:
    # The sum may be rounded to just above high.
    return min(low + (high - low) * random.random(), high)


def _number(value: float) -> str:
    """*value* without a trailing `.0`, and without the dust of binary fractions."""
    return f"{value:.12g}"


def _rebuilt(kind: type[RetryPolicy], values: Mapping[str, Any]) -> RetryPolicy:
    return kind(**values)
