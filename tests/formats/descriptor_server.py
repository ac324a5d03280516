"""A descriptor registry for tests: a real HTTP server in a thread, which can be told to fail."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class DescriptorServer:
    """Serves `versions` as Stencil does: the newest at /shop, a list at /shop/versions, each at /shop/versions/N."""

    def __init__(self, *versions: bytes) -> None:
        self.versions = list(versions)
        self.failures: list[int] = []
        """Status codes of the next answers."""
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.redirect_to: str | None = None
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}/shop"

    def start(self) -> None:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                with outer._lock:
                    outer.requests.append((self.path, dict(self.headers)))
                    failure = outer.failures.pop(0) if outer.failures else None
                if failure is not None:
                    self.answer(failure, b"injected")
                elif outer.redirect_to is not None:
                    self.send_response(302)
                    self.send_header("Location", outer.redirect_to)
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                else:
                    self.content()

            def content(self) -> None:
                if self.path == "/shop/versions":
                    self.answer(200, json.dumps({"versions": list(range(1, len(outer.versions) + 1))}).encode())
                    return
                name = self.path.rpartition("/")[2]
                number = int(name) if name.isdecimal() else len(outer.versions)
                if not 1 <= number <= len(outer.versions):
                    self.answer(404, b"no such version")
                    return
                etag = f'"{hash(outer.versions[number - 1])}"'
                if self.headers.get("If-None-Match") == etag:
                    self.answer(304, b"")
                else:
                    self.answer(200, outer.versions[number - 1], etag)

            def answer(self, status: int, body: bytes, etag: str | None = None) -> None:
                self.send_response(status)
                if etag is not None:
                    self.send_header("ETag", etag)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Nothing on stderr."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@contextmanager
def descriptor_server(*versions: bytes) -> Iterator[DescriptorServer]:
    """A registry with these versions, until the end of the block."""
    server = DescriptorServer(*versions)
    server.start()
    try:
        yield server
    finally:
        server.stop()
