"""A webhook on the loopback that keeps what it is sent, for Apprise's json:// URLs."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


class Webhook:
    """Answers each POST with `status`, and keeps its JSON; `arrived` tells of each."""

    def __init__(self) -> None:
        self.posts: list[dict[str, Any]] = []
        self.status = 200
        self.arrived = threading.Condition()
        webhook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                with webhook.arrived:
                    webhook.posts.append(json.loads(body))
                    webhook.arrived.notify_all()
                self.send_response(webhook.status)
                self.end_headers()

            def log_message(self, *_: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)

    @property
    def url(self) -> str:
        """For `[notify] urls`; its path is what must not be shown."""
        return f"json://127.0.0.1:{self._server.server_port}/ΩSECRETΩ".replace("Ω", "tok")

    @property
    def titles(self) -> list[str]:
        return [post["title"] for post in self.posts]

    def wait_for(self, number: int, seconds: float = 20) -> list[str]:
        """The titles, once so many have arrived."""
        with self.arrived:
            assert self.arrived.wait_for(lambda: len(self.posts) >= number, seconds), self.titles
        return self.titles

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
