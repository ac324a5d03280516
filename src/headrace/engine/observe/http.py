"""What a running engine answers over HTTP, to this machine only: metrics, health and status."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from headrace.engine.observe.metrics import CONTENT_TYPE, Metrics
from headrace.engine.observe.status import EngineStatus
from headrace.project.model import HttpSpec, is_loopback

_MOST_AT_ONCE = 16
_PATIENCE_SECONDS = 10.0
_JSON = "application/json"

Answer = tuple[int, str, bytes]


class StatusServer:
    """Answers from a few threads of its own until it is closed."""

    def __init__(self, spec: HttpSpec, board: EngineStatus, metrics: Metrics) -> None:
        self._board, self._metrics = board, metrics
        self.note: str | None = None
        """What the user should know about the port."""
        try:
            self._server = _Server((spec.host, spec.port), self._answer)
        except OSError as error:
            self._server = _Server((spec.host, 0), self._answer)
            self.note = f"port {spec.port} of {spec.host} is not to be had ({error.strerror}): took a free one"
        self._thread = threading.Thread(target=self._server.serve_forever, name="headrace http", daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """Where it listens."""
        host, port = str(self._server.server_address[0]), self._server.server_address[1]
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"

    def close(self) -> None:
        """Answer no more."""
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, path: str) -> Answer:
        match path:
            case "/metrics":
                return 200, CONTENT_TYPE, self._metrics.text()
            case "/health/live":
                return _document(200, {"status": "ok"})
            case "/health/ready":
                waiting = self._board.not_ready()
                status = "not ready" if waiting else "ready"
                return _document(503 if waiting else 200, {"status": status, "reasons": waiting})
            case "/api/v1/status":
                return _document(200, self._board.document())
        known = ["/metrics", "/health/live", "/health/ready", "/api/v1/status"]
        return _document(404, {"code": "not-found", "title": f"there is no {path}", "hint": f"known: {known}"})


def _document(status: int, value: Any) -> Answer:
    return status, _JSON, json.dumps(value).encode()


class _Server(ThreadingHTTPServer):
    """At most a few questions at once: the others wait in the listen queue."""

    daemon_threads = True
    request_queue_size = _MOST_AT_ONCE

    def __init__(self, address: tuple[str, int], answer: Callable[[str], Answer]) -> None:
        self.answer = answer
        self._free = threading.BoundedSemaphore(_MOST_AT_ONCE)
        if ":" in address[0]:
            import socket

            self.address_family = socket.AF_INET6
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Take a request when there is a thread for it."""
        self._free.acquire()
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer, and let the next one in."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is nobody's fault, and stderr is for people."""


class _Handler(BaseHTTPRequestHandler):
    """GET and HEAD, one question per connection: a slow client cannot keep a thread."""

    server: _Server
    timeout = _PATIENCE_SECONDS
    server_version = "headrace"
    sys_version = ""

    def do_GET(self) -> None:  # the name is the library's
        self._reply(with_body=True)

    def do_HEAD(self) -> None:
        self._reply(with_body=False)

    def _reply(self, *, with_body: bool) -> None:
        # a name that only leads here is how a web page gets at what is meant for this machine
        host = urlsplit(f"//{self.headers.get('Host', '')}").hostname
        if host is None or is_loopback(host):
            status, kind, body = self.server.answer(self.path.partition("?")[0])
        else:
            status, kind, body = _document(403, {"code": "not-loopback", "title": f"'{host}' is not this machine"})
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: stderr is for people."""
