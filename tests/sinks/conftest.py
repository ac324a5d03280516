"""What tests of sinks share: batches with a letter box, and a server that answers as it is told."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from headrace.core.context import Batch, Context
from headrace.engine.letters.dead_letters import DeadLetterWriter, read_dead_letters


@dataclass(frozen=True)
class Desk:
    """Makes batches, and reads the dead letters that their tasks have written."""

    folder: Path
    state: str = "state"

    def batch(self, number: int = 0, generation: str = "g1", sink: str = "sink", output: str = "append") -> Batch:
        box = DeadLetterWriter(self.folder / "letters", "flow", sink, generation)
        return Batch("flow", generation, number, sink, output, Context(self.folder, self.state), box)

    def letters(self) -> list[dict[str, Any]]:
        return sorted(read_dead_letters(self.folder / "letters").to_pylist(), key=lambda letter: letter["position"])


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


@dataclass
class Heard:
    """One request."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Stage:
    """A server: `answer` says what to say to each request."""

    url: str
    heard: list[Heard] = field(default_factory=list)
    answer: Callable[[Heard], tuple[int, bytes, dict[str, str]]] = lambda heard: (200, b"", {})


@pytest.fixture
def stage() -> Iterator[Stage]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            heard = Heard(self.command, self.path, dict(self.headers), body)
            with lock:
                made.heard.append(heard)
                status, said, headers = made.answer(heard)
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(said))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(said)

        do_PUT = do_PATCH = do_GET = do_POST  # noqa: N815

        def log_message(self, *words: Any) -> None:
            """Tests are quiet."""

    lock = threading.Lock()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made = Stage(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    server.shutdown()
    server.server_close()
    thread.join()
