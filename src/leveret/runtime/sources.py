"""Where settings come from: flags, code, environment, file. Each value keeps its origin, each fault its place."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any, Final, TypeAlias

from leveret.core.errors import WorkerDefinition
from leveret.core.policy import RetryPolicy
from leveret.core.topology import check_worker_name
from leveret.runtime.schema import SHAPE, WORKER_SHAPE, Given, Path, RetryNumbers, children, leaves

#: The file that is looked for in the working directory.
FILE: Final = "leveret.toml"

PREFIX: Final = "LEVERET_"

#: Names another file than leveret.toml; a variable of its own, for the file cannot name itself.
CONFIG: Final = "LEVERET_CONFIG"

#: What the tests of leveret itself are told; never a setting.
_TESTS: Final = "LEVERET_TEST_"

#: May be told by a file, as orchestrators mount secrets.
SECRETS: Final = (("broker",), ("store",), ("cache",), ("dashboard", "token"), ("notify", "urls"))

#: A stray variable nearer than this to a real one is a slip of the pen, not somebody else's.
_SLIP: Final = 2

#: Flags with a name of their own; the others come through --set.
_FLAGS: Final[Mapping[str, str]] = {
    "app": "MODULE:APP",
    "broker": "--broker",
    "store": "--store",
    "namespace": "--namespace",
    "retry_worker.overdue_rate": "--rate",
    "dashboard.listen": "--listen",
    "dashboard.token": "--token",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """One value, as it was given."""

    value: Any = field(repr=False)
    #: For listings: `LEVERET_BROKER`, `leveret.toml`, `--broker`, `code`.
    origin: str
    #: For faults: as the origin, and in a file with the line.
    place: str


Layer: TypeAlias = dict[Path, Leaf]


@dataclass(slots=True, kw_only=True)
class Findings:
    """What is wrong, and what is only worth a word."""

    faults: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def fold(worker: str) -> str:
    """A worker's name as a variable can spell it: no small letters, no dashes.

    Example:
        >>> fold("send-Mail") == fold("SEND_MAIL")
        True
    """
    return worker.lower().replace("-", "_")


def read_flags(flags: Mapping[str, Any], findings: Findings) -> Layer:
    """Flags by dotted key; text is read as the setting's type, None is a flag that was not used."""
    layer: Layer = {}
    for key, value in flags.items():
        name = _FLAGS.get(key)
        placed = _placed(name, name) if name else _placed(f"--set {key}", "--set")
        given = Given(value) if isinstance(value, str) else value
        _collect(layer, tuple(key.split(".")), given, placed, findings)
    return layer


def read_code(code: Mapping[str, Any], findings: Findings) -> Layer:
    """Values as the code gives them, nested; None is a value left out."""
    layer: Layer = {}
    for key, value in code.items():
        _collect(layer, (key,), value, _placed("code", "the code"), findings)
    return layer


def read_file(name: str | FilePath | None, environ: Mapping[str, str], findings: Findings) -> Layer:
    """The file *name*, else the one that LEVERET_CONFIG names, else leveret.toml where there is one."""
    named = name or environ.get(CONFIG)
    label = str(named or FILE)
    try:
        text = FilePath(label).read_bytes().decode("utf-8-sig")
        table = tomllib.loads(text)
    except FileNotFoundError:
        if named:
            findings.faults.append(f"{label}{'' if name else f' ({CONFIG})'}: there is no such file")
        return {}
    except OSError as error:
        findings.faults.append(f"{label}: cannot be read: {error.strerror}")
        return {}
    except UnicodeDecodeError as error:
        findings.faults.append(f"{label}: is not UTF-8 (byte {error.start})")
        return {}
    except tomllib.TOMLDecodeError as error:
        findings.faults.append(f"{label}: is not TOML: {error}")
        return {}
    layer: Layer = {}
    for key, value in table.items():
        _collect(layer, (key,), value, lambda path: (label, f"{label}{_line(text, path)}"), findings)
    return layer


def read_environment(environ: Mapping[str, str], findings: Findings) -> Layer:
    """The LEVERET_ variables. A worker's name comes out folded, for a variable cannot spell it exactly."""
    layer: Layer = {}
    known = _variables()
    # Answered with a setting inside the table.
    tables: dict[str, Path] = {
        variable((name,)): (name,) for name, below in SHAPE.items() if below is not None
    }
    for name in sorted(environ):
        if not name.startswith(PREFIX) or name.startswith(_TESTS) or name == CONFIG:
            continue
        path, value = known.get(name) or tables.get(name) or _worker_path(name), environ[name]
        if path is None:
            near = _slip(name, known)
            if near:
                findings.faults.append(f"{name}: no such setting, did you mean {near}?")
            else:
                findings.warnings.append(f"{name} is no setting of leveret's, and is ignored")
        elif not value.strip():
            findings.warnings.append(f"{name} is empty, and counts as not given")
        elif name.endswith("_FILE") and path in SECRETS:
            secret = _secret(name, value, findings)
            if path in layer:
                findings.faults.append(f"{name}: given beside {layer[path].origin}; leave one of them out")
            elif secret is not None:
                _collect(layer, path, Given(secret), _placed(name, name), findings)
        else:
            _collect(layer, path, Given(value), _placed(name, name), findings)
    return layer


def _placed(origin: str, place: str) -> Callable[[Path], tuple[str, str]]:
    return lambda _: (origin, place)


def _collect(
    layer: Layer, path: Path, value: Any, placed: Callable[[Path], tuple[str, str]], findings: Findings
) -> None:
    if value is None:
        return
    origin, place = placed(path)
    fault = _misplaced(path)
    if fault:
        findings.faults.append(f"{place}: {fault}")
        return
    if (below := children(path)) is None:
        layer[path] = Leaf(value=value, origin=origin, place=place)
    elif path[-1] == "retry" and isinstance(value, RetryPolicy):
        # A policy is given as a whole: its None, too, is the code's word.
        for name in RetryNumbers.model_fields:
            layer[*path, name] = Leaf(value=getattr(value, name), origin=origin, place=place)
    elif isinstance(value, Mapping):
        for key, each in value.items():
            _collect(layer, (*path, str(key)), each, placed, findings)
    else:
        dotted = ".".join(path)
        example = f"{dotted}.{next(iter(below)).replace('*', 'charge.prefetch')}"
        hint = f"{PREFIX}{example.upper().replace('.', '__')}" if origin.startswith(PREFIX) else example
        findings.faults.append(f"{place}: {dotted} is a table, name a setting in it, such as {hint}")


def _misplaced(path: Path) -> str | None:
    for end in range(1, len(path) + 1):
        key, above = path[end - 1], children(path[: end - 1])
        dotted = ".".join(path[:end])
        if above is None:
            return f"{dotted}: no such setting; {'.'.join(path[: end - 1])} has nothing below it"
        if "*" in above:
            try:
                check_worker_name(key)
            except WorkerDefinition as error:
                return str(error)
        elif key not in above:
            near = difflib.get_close_matches(key, above, 1)
            return f"{dotted}: no such setting, " + (
                f"did you mean {near[0]}?" if near else f"there are {', '.join(sorted(above))}"
            )
    return None


def _line(text: str, path: Path) -> str:
    """`, line N` of the key, as far as a look at each line can tell; nothing where it cannot."""
    table: Path = ()
    found = 0
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.match(r"\s*\[+([^\[\]]+)\]", line):
            table = _keys(header[1])
            if table == path[: len(table)]:
                found = number
        elif key := re.match(r"\s*([\w.\"'\s-]+?)\s*=", line):
            whole_key = table + _keys(key[1])
            if whole_key == path[: len(whole_key)]:
                return f", line {number}"
    return f", line {found}" if found else ""


def _keys(dotted: str) -> Path:
    return tuple(part.strip().strip("\"'") for part in dotted.split("."))


def _secret(name: str, path: str, findings: Findings) -> str | None:
    # The path is not shown: it may be the secret itself, given by mistake.
    try:
        text = FilePath(path.strip()).read_text(encoding="utf-8").rstrip("\r\n")
    except OSError as error:
        findings.faults.append(f"{name}: the file that it names cannot be read: {error.strerror}")
        return None
    except UnicodeDecodeError:
        findings.faults.append(f"{name}: the file that it names is not UTF-8")
        return None
    if not text:
        findings.faults.append(f"{name}: the file that it names is empty")
        return None
    return text


def _variables() -> dict[str, Path]:
    return {variable(path): path for path in leaves()} | {f"{variable(path)}_FILE": path for path in SECRETS}


def variable(path: Path) -> str:
    """The variable of the setting at *path*.

    Example:
        >>> variable(("retry", "first_delay"))
        'LEVERET_RETRY__FIRST_DELAY'
    """
    return PREFIX + "__".join(path).upper()


def _worker_endings() -> Iterator[tuple[str, Path]]:
    for path in leaves(WORKER_SHAPE):
        yield "__" + "__".join(path).upper(), path


def _worker_path(name: str) -> Path | None:
    beginning = f"{PREFIX}WORKERS__"
    if not name.startswith(beginning):
        return None
    # The longest ending first: __RETRY__FIRST_DELAY before any setting that might end like it.
    for ending, path in sorted(_worker_endings(), key=lambda each: -len(each[0])):
        worker = name[len(beginning) : -len(ending)]
        if name.endswith(ending) and worker:
            return ("workers", fold(worker), *path)
    return None


def _slip(name: str, known: Mapping[str, Path]) -> str | None:
    """The variable within two letters of *name*, the nearest first."""
    near = [
        (_distance(name, each), 0, each) for each in (*known, CONFIG) if abs(len(name) - len(each)) <= _SLIP
    ]
    # A worker's variable may be misspelt before and behind the worker's name, which is whatever lies between.
    beginning = f"{PREFIX}WORKERS__"
    starts = {
        n: _distance(name[:n], beginning) for n in range(len(beginning) - _SLIP, len(beginning) + _SLIP + 1)
    }
    for ending, _ in _worker_endings():
        for n, apart in starts.items():
            for length in range(len(ending) - _SLIP, len(ending) + _SLIP + 1):
                worker = name[n:-length]
                if worker and apart <= _SLIP:
                    total = apart + _distance(name[-length:], ending)
                    near.append((total, -len(worker), f"{beginning}{worker}{ending}"))
    distance, _, nearest = min(near, default=(_SLIP + 1, 0, ""))
    return nearest if distance <= _SLIP else None


def _distance(one: str, other: str) -> int:
    """How many letters to put in, take out or change to get from *one* to *other*."""
    row = list(range(len(other) + 1))
    for i, letter in enumerate(one, 1):
        above, row[0] = row[0], i
        for j, wanted in enumerate(other, 1):
            above, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, above + (letter != wanted))
    return row[-1]
