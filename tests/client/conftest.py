"""A server that answers from a script, over real connections."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest


@dataclass
class Asked:
    method: str
    path: str
    headers: dict[str, str]
    body: Any


@dataclass
class Reply:
    """What is answered: a document, or pieces that are sent one by one, after which the connection is cut."""

    body: Any = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    pieces: list[bytes] | None = None


class ScriptedServer:
    """Answers with the next reply of `script`; the last one stays."""

    def __init__(self) -> None:
        self.script: list[Reply] = []
        self.asked: list[Asked] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                length = int(self.headers.get("content-length", 0))
                body = json.loads(self.rfile.read(length)) if length else None
                headers = {name.lower(): value for name, value in self.headers.items()}
                server.asked.append(Asked(self.command, self.path, headers, body))
                reply = server.script.pop(0) if len(server.script) > 1 else server.script[0]
                self._answer(reply)

            do_POST = do_GET  # noqa: N815

            def _answer(self, reply: Reply) -> None:
                self.send_response(reply.status)
                for name, value in reply.headers.items():
                    self.send_header(name, value)
                if reply.pieces is not None:
                    self._stream(reply.pieces)
                    return
                body = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
                if "Content-Type" not in reply.headers:
                    self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def _stream(self, pieces: list[bytes]) -> None:
                self.send_header("Content-Type", "text/event-stream")
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                for piece in pieces:
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                    self.wfile.flush()
                self.close_connection = True

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def reply(self, *replies: dict[str, Any]) -> None:
        """What it says, in this order."""
        self.script += [Reply(**one) for one in replies]

    def stream(self, *connections: list[bytes]) -> None:
        """What it sends on each connection, before it cuts it off."""
        self.script += [Reply(pieces=pieces) for pieces in connections]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    scripted = ScriptedServer()
    yield scripted
    scripted.close()
