"""Pushing to a real node: what was answered survives its death, and many callers at once are served quickly."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from headrace.client import Client
from headrace.core.context import Context
from headrace.tables.push import PushTable

pytestmark = pytest.mark.service

TABLE = PushTable(columns="id bigint, v string", key=["id"])
PROJECT = """
project: shop
tables:
  orders: {source: {type: push, columns: "id bigint, v string", key: [id]}}
serve: {port: 0, grpc_port: null, workers: 2}
"""
REQUESTS, CALLERS = 1_000, 50


@contextmanager
def serving(folder: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A node that is killed at the end, with all that it has started."""
    command = [sys.executable, "-m", "headrace", "serve", str(folder), "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    url = json.loads(process.stdout.readline())["http"]
    family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    try:
        yield process, url
    finally:
        for one in family:
            if one.is_running():
                os.kill(one.pid, signal.SIGKILL)
        process.wait(60)
        process.stdout.close()


def rows(folder: Path) -> list[list[object]]:
    reader = PushTable.reader(
        {"orders": TABLE}, {"orders": TABLE.declared}, {"orders": 0}, Context(folder, str(folder / ".headrace"))
    )
    found: list[list[object]] = []
    while taken := reader.read(0):
        found += [list(change.row) for change in taken.changes if change.row is not None]
    return found


def test_what_was_answered_survives_a_kill_and_is_known_when_it_comes_again(tmp_path: Path) -> None:
    (tmp_path / "headrace.yaml").write_text(PROJECT)
    with serving(tmp_path) as (_, url), Client(url) as client:
        first = client.table("orders").push([{"op": "insert", "row": {"id": 0, "v": "a"}}], idempotency_key="k")

        def push(number: int) -> int:
            answer = client.table("orders").push([{"op": "insert", "row": {"id": number, "v": "x"}}])
            return answer["position"]

        began = time.perf_counter()
        with ThreadPoolExecutor(CALLERS) as callers:
            places = list(callers.map(push, range(1, REQUESTS + 1)))
        seconds = time.perf_counter() - began
    commits = len(set(places))
    print(
        f"\n{REQUESTS} requests of {CALLERS} callers in {seconds:.2f} s: {REQUESTS / seconds:.0f}/s, {commits} commits"
    )
    assert commits < REQUESTS / 2
    found = rows(tmp_path)
    assert sorted(row[0] for row in found) == list(range(REQUESTS + 1))  # type: ignore[type-var]
    with serving(tmp_path) as (_, url), Client(url) as client:
        again = client.table("orders").push([{"op": "insert", "row": {"id": 0, "v": "a"}}], idempotency_key="k")
    assert again == first
    assert rows(tmp_path) == found
