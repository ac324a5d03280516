"""Posting to a real node: what was answered survives its death, none of it twice, and many callers are served."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
import pytest
from tests.serve.nodekit import until

from headrace.core.context import Context
from headrace.sources.http import HttpSource
from headrace.testing.services.ports import choose

pytestmark = pytest.mark.service

SOURCE = HttpSource(path="/v1/telemetry", fields={"syncts": {"now": "ms"}})  # type: ignore[dict-item]
PROJECT = """
project: telemetry
streams:
  telemetry:
    source: {{type: http, path: /v1/telemetry, fields: {{syncts: {{now: ms}}}}}}
    format: {{type: raw, as: string}}
serve: {{port: {port}, grpc_port: null, workers: 2}}
"""
CALLERS, SECONDS, EVENTS = 16, 3.0, 10


@contextmanager
def serving(folder: Path) -> Iterator[list[psutil.Process]]:
    """A node that is killed at the end, with all that it has started."""
    command = [sys.executable, "-m", "headrace", "serve", str(folder), "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    json.loads(process.stdout.readline())
    family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    try:
        yield family
    finally:
        for one in family:
            if one.is_running():
                os.kill(one.pid, signal.SIGKILL)
        process.wait(60)
        process.stdout.close()


class Callers:
    """Programs that post, and send again under the same key what was not answered."""

    def __init__(self, url: str) -> None:
        self._url = f"{url}/v1/telemetry"
        self._over = threading.Event()
        self.answered: list[str] = []
        self.again = 0
        self._threads = [threading.Thread(target=self._post) for _ in range(CALLERS)]
        for thread in self._threads:
            thread.start()

    def _post(self) -> None:
        with httpx.Client(timeout=20) as client:
            while not self._over.is_set():
                mid = uuid.uuid4().hex
                self._until_taken(client, mid)
                self.answered.append(mid)

    def _until_taken(self, client: httpx.Client, mid: str) -> None:
        body = {"mid": mid, "events": [{"eid": "INTERACT", "mid": f"{mid}-{n}", "x": "y" * 900} for n in range(EVENTS)]}
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            try:
                if client.post(self._url, json=body, headers={"idempotency-key": mid}).status_code == 200:
                    return
            except httpx.TransportError:
                self._over.wait(0.05)
            self.again += 1
        raise AssertionError("never taken")

    def end(self) -> None:
        """Let each finish what it has begun."""
        self._over.set()
        for thread in self._threads:
            thread.join(90)


def cpu_seconds(family: list[psutil.Process]) -> float:
    return sum(sum(one.cpu_times()[:2]) for one in family if one.is_running())


def test_a_node_that_is_killed_under_load_loses_nothing_and_doubles_nothing(tmp_path: Path) -> None:
    port = choose(["http"], {})["http"]
    (tmp_path / "headrace.yaml").write_text(PROJECT.format(port=port))
    with serving(tmp_path) as family:
        callers = Callers(f"http://127.0.0.1:{port}")
        until(lambda: len(callers.answered) > CALLERS)
        before, cpu, began = len(callers.answered), cpu_seconds(family), time.monotonic()
        until(lambda: time.monotonic() - began > SECONDS)
        taken, cpu, seconds = len(callers.answered) - before, cpu_seconds(family) - cpu, time.monotonic() - began
    killed = len(callers.answered)
    with serving(tmp_path):
        until(lambda: len(callers.answered) > killed + CALLERS)
        callers.end()
    inbox = SOURCE.inbox(Context(tmp_path, str(tmp_path / ".headrace")).log_path)
    found, after = Counter[str](), 0
    while segments := list(inbox.after(after)):
        found.update(json.loads(row)["mid"] for _, rows in segments for _, row in rows)
        after = segments[-1][0].position
    print(
        f"\n{CALLERS} callers: {taken / seconds:.0f} requests/s, {taken * EVENTS / seconds:.0f} events/s, "
        f"{taken / cpu:.0f} requests and {taken * EVENTS / cpu:.0f} events per CPU second of the node; "
        f"{callers.again} requests sent again, {after} commits"
    )
    assert callers.again > 0
    assert set(callers.answered) == set(found)
    assert max(found.values()) == 1
