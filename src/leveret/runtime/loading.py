"""Loading: from MODULE:APP to the app that stands there."""

from __future__ import annotations

import difflib
import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from leveret.core.errors import AppNotFound
from leveret.core.topology import Topology

if TYPE_CHECKING:
    from leveret.app import Leveret


def load_app(target: str, *, command: str = "leveret run") -> Leveret:
    """Import the module of *target* and return its app. The working directory is looked at first.

    Args:
        target: `shop:app`, or `shop.main:app` for a module in a package.
        command: what the error's way out begins with.

    Raises:
        AppNotFound: there is no such module, or no Leveret of that name in it; with those that there are.
        Exception: whatever the module itself raises while it is imported, as it is.

    Example:
        load_app("shop:app")  # <Leveret shop: 1 workers>
    """
    from leveret.app import Leveret

    name, colon, attribute = target.partition(":")
    if not colon or not attribute or not name or "/" in name or name.endswith(".py"):
        meant = name.removesuffix(".py").strip("./").replace("/", ".") or "shop"
        raise AppNotFound(
            f"{command} {target}: expected MODULE:APP, a module's name and the name of the Leveret in it. "
            f"Perhaps:  {command} {meant}:{attribute or 'app'}"
        )
    module = _imported(name, target, command)
    found = _attribute(module, attribute)
    if isinstance(found, Leveret):
        return found
    apps = [each for each, value in vars(module).items() if isinstance(value, Leveret)]
    what = (
        f'but has no "{attribute}"'
        if found is None
        else f'but its "{attribute}" is no Leveret; it is of type {type(found).__name__}'
    )
    if not apps:
        there = 'It holds no Leveret at all. Make one:  app = Leveret("shop", broker=URL)'
    elif len(apps) == 1:
        there = f'It holds one Leveret, named "{apps[0]}". Run:  {command} {name}:{apps[0]}'
    else:
        there = f"It holds {', '.join(apps)}. Run one of them, such as  {command} {name}:{apps[0]}"
    raise AppNotFound(f"{command} {target}: module {name} ({_file(module)}) was imported, {what}. {there}")


def load_declaration(target: str, *, command: str) -> Leveret | Topology:
    """As `load_app`, but *target* may also name a `Topology`: what a daemon declares that is no app.

    Raises:
        AppNotFound, Exception: as `load_app` has it.

    Example:
        load_declaration("daemon:TOPOLOGY", command="leveret topology show")
    """
    name, _, attribute = target.partition(":")
    if name and attribute and "/" not in name and not name.endswith(".py"):
        found = _attribute(_imported(name, target, command), attribute)
        if isinstance(found, Topology):
            return found
    return load_app(target, command=command)


def _attribute(module: ModuleType, path: str) -> object:
    found: object = module
    for part in path.split("."):
        found = getattr(found, part, None)
    return found


def _imported(name: str, target: str, command: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        # Of what the module imports in turn, the error is the user's to see.
        if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
            raise
        near = difflib.get_close_matches(name, _modules_here(), 1)
        attribute = target.partition(":")[2]
        hint = f" Did you mean:  {command} {near[0]}:{attribute}" if near else ""
        raise AppNotFound(
            f"{command} {target}: there is no module {error.name}, neither in {here} nor among what is installed.{hint}"
        ) from None
    except SystemExit as ended:
        raise AppNotFound(
            f"{command} {target}: module {name} ended the process while it was imported (SystemExit: {ended.code}). "
            'Put what it runs as a script below:  if __name__ == "__main__":'
        ) from None


def _modules_here() -> list[str]:
    here = Path.cwd()
    return [file.stem for file in here.glob("*.py")] + [
        file.parent.name for file in here.glob("*/__init__.py")
    ]


def _file(module: ModuleType) -> str:
    return module.__file__ or "a folder without __init__.py"
