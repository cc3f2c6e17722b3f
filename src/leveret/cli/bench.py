"""`leveret bench`: the benchmarks of a checkout."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from leveret.cli.options import Common, command
from leveret.core.errors import ConfigError


def add_to(cli: typer.Typer) -> None:
    """Declare `bench`."""
    command(cli, "bench")(bench)


def bench(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME", help="Which, such as publish_confirmed; default: all of them."),
    ] = None,
    *,
    common: Common,
) -> int:
    """Measure this checkout of leveret beside other libraries, and print what each makes of the same work.

    On the broker that --broker names, else on a node of its own, started for it and gone afterwards. The other
    libraries are installed into .venv-bench; what was measured is written into benchmarks/results.json.
    """
    for flag, given in (
        ("--config", common.config),
        ("--store", common.store),
        ("--namespace", common.namespace),
    ):
        if given is not None:
            raise ConfigError(f"{flag} {given}: the benchmarks run apps of their own. Leave it out")
    folder = checkout()
    environment = dict(os.environ)
    if common.broker is not None:
        environment["LEVERET_TEST_AMQP_URL"] = _amqp(common.broker)
    flags = ["--json"] if common.json else []
    # A name that is no benchmark is refused over there.
    measure = [sys.executable, "-m", "benchmarks", *flags, *(names or ())]
    ended = subprocess.run(measure, cwd=folder, env=environment, check=False)  # noqa: S603
    return ended.returncode


def checkout() -> Path:
    """The checkout that leveret runs from.

    Raises:
        ConfigError: it was installed from a package, which has no benchmarks.
    """
    import leveret

    package = Path(leveret.__file__ or "").resolve().parent
    folder = package.parent.parent
    if not (folder / "benchmarks" / "__main__.py").exists() or not (folder / "pyproject.toml").exists():
        raise ConfigError(
            f"leveret bench runs from a checkout of leveret, and this one is installed in {package}. Clone the "
            "repository, then: make bench"
        )
    return folder


def _amqp(url: str) -> str:
    """An address of a RabbitMQ broker; a broker in memory is measured anyway."""
    from leveret.core.urls import parse_broker

    if parse_broker(url, "--broker").scheme == "memory":
        raise ConfigError(f"--broker {url}: expected amqp://…; what runs in memory is measured without it")
    return url
