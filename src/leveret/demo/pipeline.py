"""The demo's pipeline: examples/webhooks/webhooks.py as it stands there, with numbers for a run of seconds."""

from __future__ import annotations

import importlib.util
import os
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Final

from leveret.app import Leveret
from leveret.core.errors import MissingExtra
from leveret.core.policy import RetryPolicy
from leveret.core.urls import BrokerUrl, StoreUrl
from leveret.runtime.config import load_config

#: The message type that the example's worker takes.
ASKED: Final = "webhook.asked"
#: Six tries within some seconds.
POLICY: Final = RetryPolicy(first_delay=0.4, max_delay=3.0, max_attempts=6)
#: Seconds that a lease lasts: so long nobody takes the place of a retry worker that died.
LEASE: Final = 1.5
#: Webhooks under way at once: those without an answer take a place for half a second each.
CONCURRENCY: Final = 100


def webhooks() -> ModuleType:
    """The example as a module. The wheel carries it beside this file; a clone has it in examples/.

    Raises:
        MissingExtra: httpx is not installed.
    """
    if importlib.util.find_spec("httpx") is None:
        raise MissingExtra('the demo delivers its webhooks with httpx: pip install "leveret[demo]"')
    here = Path(__file__)
    packed = here.with_name("webhooks.py")
    cloned = here.parents[3] / "examples" / "webhooks" / "webhooks.py"
    name = "leveret.demo.webhooks"
    loader = SourceFileLoader(name, str(packed if packed.exists() else cloned))
    spec = importlib.util.spec_from_loader(name, loader)
    if spec is None:
        raise ImportError(f"{loader.path} cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up by its name.
    sys.modules[name] = module
    loader.exec_module(module)
    return module


def make_app(namespace: str, *, broker: BrokerUrl, store: StoreUrl) -> Leveret:
    """An app with the example's handler, payload type and HTTP client. No settings file or variable reaches it."""
    example = webhooks()
    config = load_config(
        code={"broker": broker, "store": store, "lease": {"ttl": LEASE}}, environ={}, file=os.devnull
    )
    app = Leveret(namespace, lifespan=example.http_client, config=config)
    app.worker(ASKED, retry=POLICY, prefetch=CONCURRENCY)(example.deliver)
    return app
