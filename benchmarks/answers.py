"""An HTTP service for tests of lookups: it can respond late, with errors or not at all. It runs as a separate process.

`python benchmarks/answers.py PORT`. `PUT /control` sets the fields of `Control`; `GET /stats` returns request counts.
`/users/KEY` responds for a key; the prefix of a key selects a behaviour: `missing-`, `status-503-`, `slow-`, `text-`,
`big-`, `hop-` (a redirect), `away-` (a redirect to another server).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import time
import urllib.request
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote


@dataclass
class Control:
    """The behaviour of the service, set with `PUT /control`."""

    delay: float = 0.0
    failing: int = 0
    """How many keys of a thousand always get `status`."""
    flaky: int = 0
    """How many keys of a thousand get `status` only for the first request."""
    status: int = 500
    all_failing: bool = False
    """The status of every request, also of health checks."""


@dataclass
class Desk:
    """The state of the service."""

    control: Control = field(default_factory=Control)
    asked: Counter[str] = field(default_factory=Counter)
    now: int = 0
    most: int = 0


DESK = Desk()
OK, ELSEWHERE = 200, "http://127.0.0.2:1/"


def answer(method: str, target: str, headers: dict[str, str], body: bytes) -> tuple[int, Any, dict[str, str]]:
    path, _, query = target.partition("?")
    if path == "/control":
        DESK.control = Control(**json.loads(body))
        DESK.asked.clear()
        DESK.most = 0
        return OK, vars(DESK.control), {}
    if path == "/stats":
        return OK, {"calls": sum(DESK.asked.values()), "keys": len(DESK.asked), "most": DESK.most}, {}
    if DESK.control.all_failing:
        return DESK.control.status, {"error": "told to fail"}, {}
    if path == "/":
        return OK, {}, {}
    key = unquote(path.rsplit("/", 1)[-1])
    DESK.asked[key] += 1
    status, more = _status(key, path)
    if status != OK:
        return status, {"error": f"told to say {status}"}, more
    user = {"id": key, "name": f"name of {key}", "score": len(key) + 0.5, "tags": ["a", key]}
    if key.startswith("big-"):
        user["name"] = "x" * 2_000_000
    heard = {"method": method, "path": path, "query": parse_qs(query), "headers": headers, "body": body.decode()}
    return OK, {"user": user, "heard": heard}, {}


def _status(key: str, path: str) -> tuple[int, dict[str, str]]:
    kind, _, rest = key.partition("-")
    match kind:
        case "missing":
            return 404, {}
        case "status":
            return int(rest.partition("-")[0]), {}
        case "hop":
            return 302, {"Location": path.replace("hop-", "")}
        case "away":
            return 302, {"Location": ELSEWHERE}
    place = zlib.crc32(key.encode()) % 1000
    again = DESK.asked[key] > 1
    failing = place < DESK.control.failing or (place < DESK.control.flaky and not again)
    return (DESK.control.status if failing else OK), {}


class Conversation(asyncio.Protocol):
    """A minimal HTTP/1.1 server; cheap, because it shares the machine with the measured engine."""

    def connection_made(self, transport: Any) -> None:
        self.transport, self.buffer = transport, b""

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        while (end := self.buffer.find(b"\r\n\r\n")) >= 0:
            lines = self.buffer[:end].decode("latin-1").split("\r\n")
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
            whole = end + 4 + int(headers.get("content-length", 0))
            if len(self.buffer) < whole:
                return
            body, self.buffer = self.buffer[end + 4 : whole], self.buffer[whole:]
            method, target, _ = lines[0].split(" ")
            self._answer(method, target, headers, body)

    def _answer(self, method: str, target: str, headers: dict[str, str], body: bytes) -> None:
        if "/slow-" in target:
            return
        DESK.now += 1
        DESK.most = max(DESK.most, DESK.now)
        delay = DESK.control.delay if target.startswith("/users/") else 0.0
        status, document, more = answer(method, target, headers, body)
        content = b"this is no JSON" if "/text-" in target else json.dumps(document).encode()
        head = f"HTTP/1.1 {status} x\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n"
        head += "".join(f"{name}: {value}\r\n" for name, value in more.items()) + "\r\n"
        asyncio.get_running_loop().call_later(delay, self._say, head.encode() + (b"" if method == "HEAD" else content))

    def _say(self, answer: bytes) -> None:
        DESK.now -= 1
        self.transport.write(answer)


async def serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Conversation, "127.0.0.1", port)
    await server.serve_forever()


@dataclass
class Answers:
    """The service from the view of the process that started it."""

    port: int
    process: subprocess.Popen[bytes]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def control(self, **settings: Any) -> None:
        self._ask("/control", json.dumps(settings).encode())

    def stats(self) -> dict[str, int]:
        counts: dict[str, int] = self._ask("/stats")
        return counts

    def stop(self) -> None:
        self.process.kill()
        self.process.wait(10)

    def start_again(self) -> None:
        self.process = _started(self.port)

    def _ask(self, path: str, body: bytes | None = None) -> Any:
        request = urllib.request.Request(self.url + path, data=body, method="PUT" if body else "GET")  # noqa: S310
        with urllib.request.urlopen(request, timeout=10) as reply:  # noqa: S310
            return json.loads(reply.read())


def _started(port: int) -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, str(Path(__file__)), str(port)])
    deadline = time.monotonic() + 120
    while True:
        with contextlib.suppress(OSError):
            Answers(port, process).stats()
            return process
        if time.monotonic() > deadline:
            process.kill()
            raise TimeoutError("the service did not start")
        time.sleep(0.02)


@contextlib.contextmanager
def answers(port: int) -> Iterator[Answers]:
    """Run the service during the block."""
    service = Answers(port, _started(port))
    try:
        yield service
    finally:
        service.stop()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1])))
