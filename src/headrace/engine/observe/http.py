"""The HTTP server of a running engine, for this machine only: metrics, health and status."""

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

_MAX_REQUESTS = 16
_TIMEOUT_SECONDS = 10.0
_JSON = "application/json"

Response = tuple[int, str, bytes]
"""Status code, content type and body."""


class StatusServer:
    """Answers requests in background threads until it is closed."""

    def __init__(self, spec: HttpSpec, status: EngineStatus, metrics: Metrics) -> None:
        self._status, self._metrics = status, metrics
        self.note: str | None = None
        """A remark about the port for the user."""
        try:
            self._server = _Server((spec.host, spec.port), self._answer)
        except OSError as error:
            self._server = _Server((spec.host, 0), self._answer)
            self.note = f"port {spec.port} of {spec.host} is not available ({error.strerror}): using a free one"
        self._thread = threading.Thread(target=self._server.serve_forever, name="headrace http", daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        host, port = str(self._server.server_address[0]), self._server.server_address[1]
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, path: str) -> Response:
        match path:
            case "/metrics":
                return 200, CONTENT_TYPE, self._metrics.text()
            case "/health/live":
                return _document(200, {"status": "ok"})
            case "/health/ready":
                reasons = self._status.not_ready()
                status = "not ready" if reasons else "ready"
                return _document(503 if reasons else 200, {"status": status, "reasons": reasons})
            case "/api/v1/status":
                return _document(200, self._status.document())
        known = ["/metrics", "/health/live", "/health/ready", "/api/v1/status"]
        return _document(404, {"code": "not-found", "title": f"{path} does not exist", "hint": f"known: {known}"})


def _document(status: int, value: Any) -> Response:
    return status, _JSON, json.dumps(value).encode()


class _Server(ThreadingHTTPServer):
    """Handles a limited number of requests at a time; the others wait in the listen queue."""

    daemon_threads = True
    request_queue_size = _MAX_REQUESTS

    def __init__(self, address: tuple[str, int], answer: Callable[[str], Response]) -> None:
        self.answer = answer
        self._free = threading.BoundedSemaphore(_MAX_REQUESTS)
        if ":" in address[0]:
            import socket

            self.address_family = socket.AF_INET6
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._free.acquire()
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore disconnected clients: stderr is for users."""


class _Handler(BaseHTTPRequestHandler):
    """GET and HEAD, one request per connection, so that a slow client cannot occupy a thread."""

    server: _Server
    timeout = _TIMEOUT_SECONDS
    server_version = "headrace"
    sys_version = ""

    def do_GET(self) -> None:  # the name is the library's
        self._reply(with_body=True)

    def do_HEAD(self) -> None:
        self._reply(with_body=False)

    def _reply(self, *, with_body: bool) -> None:
        # DNS rebinding: a web page could reach this server through a name that resolves to this machine
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
        """No request log: stderr is for users."""
