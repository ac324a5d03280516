"""`headrace serve` as a user meets it: a process that answers, survives its parts, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from tests.serve.nodekit import PROJECT, changes, client, commit, defined, order, until

from headrace.core.endpoints import Op
from headrace.log.kafka import KafkaLog
from headrace.log.log import Log
from headrace.project.loader import load
from headrace.serve.base.settings import ServeProjectRef, Settings
from headrace.serve.base.status import read_node
from headrace.testing.services import Kafka

pytestmark = pytest.mark.service


@dataclass
class Node:
    """A running `headrace serve`."""

    process: subprocess.Popen[str]
    http: str
    grpc: str | None
    client: httpx.Client = field(default_factory=client)

    def ask(self, path: str) -> httpx.Response:
        return self.client.get(f"{self.http}{path}")

    def get(self, path: str) -> Any:
        answer = self.ask(path)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def ready(self) -> bool:
        return self.ask("/health").status_code == 200


@contextmanager
def serving(folder: Path, *arguments: str) -> Iterator[Node]:
    """A node; it is stopped at the end, as with Ctrl-C, and must leave nothing behind."""
    command = [sys.executable, "-m", "headrace", "serve", str(folder), "--json", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        said = json.loads(process.stdout.readline())
        family = psutil.Process(process.pid).children(recursive=True)
        yield Node(process, said["http"], said["grpc"])
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)
        process.stdout.close()
    assert process.returncode == 0
    assert [one for one in family if one.is_running() and one.status() != psutil.STATUS_ZOMBIE] == []


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "headrace.yaml").write_text(PROJECT)
    return tmp_path


@pytest.fixture
def log(project: Path) -> Log:
    found = defined(Settings.of(load(project)))
    commit(found, 0, changes([order(number, "new", number % 7) for number in range(1000)]))
    return found


def test_it_answers_and_survives_the_death_of_its_parts(project: Path, log: Log) -> None:
    with serving(project) as node:
        until(node.ready)
        assert node.get("/orders/5") == order(5, "new", 5)
        assert len(node.get("/orders")) == 50
        for name in ("applier", "api-1"):
            os.kill(pid_of(project, name), signal.SIGKILL)
        commit(log, 1, changes([order(5, "paid")]))
        until(lambda: state_of(node, 5) == "paid")
        processes = (read_node(project / ".headrace" / "store") or {})["processes"]
        assert {one["name"]: one["restarts"] for one in processes} == {"applier": 1, "api-1": 1}


def pid_of(project: Path, name: str) -> int:
    node = read_node(project / ".headrace" / "store")
    assert node is not None
    return next(int(one["pid"]) for one in node["processes"] if one["name"] == name)


def state_of(node: Node, number: int) -> str | None:
    """What is answered; nothing while nobody does."""
    try:
        return node.ask(f"/orders/{number}").json().get("state")
    except httpx.TransportError:
        return None


def test_nothing_is_left_when_it_is_killed(project: Path, log: Log) -> None:
    command = [sys.executable, "-m", "headrace", "serve", str(project), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        family = psutil.Process(process.pid).children(recursive=True)
        assert len(family) == 2  # applier and API
        process.kill()
    psutil.wait_procs(family, 30)
    assert [one for one in family if one.is_running()] == []


def test_a_second_node_begins_with_the_snapshot_and_answers_like_the_first(project: Path, log: Log) -> None:
    with serving(project) as first:
        until(first.ready)
        command = [sys.executable, "-m", "headrace", "endpoints", "snapshot", "orders", "-p", str(project), "--json"]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
        assert json.loads(done.stdout) == {"endpoint": "orders", "version": 1, "position": 1}
        assert log.begin() == 2
        commit(log, 1, changes([order(1, "paid")]))
        again = [sys.executable, "-m", "headrace", "serve", str(project), "--json"]
        taken = subprocess.run(again, capture_output=True, text=True, check=False, timeout=120)
        assert taken.returncode == 5
        assert json.loads(taken.stderr.splitlines()[-1])["error"]["code"] == "store-in-use"
        with serving(project, "--set", "serve.store=second") as second:
            until(second.ready)
            until(lambda: all(node.get("/orders/1")["state"] == "paid" for node in (first, second)))
            assert second.get("/orders?$limit=1000") == first.get("/orders?$limit=1000")


def test_changes_in_kafka_topics(project: Path, kafka: Kafka) -> None:
    file = project / "headrace.yaml"
    topics = {"brokers": kafka.address, "prefix": f"t{uuid.uuid4().hex[:8]}", "replication": 1}
    file.write_text(PROJECT.replace("workers: 1}", f"workers: 1, topics: {json.dumps(topics)}}}"))
    log = defined(Settings.of(load(project)))
    assert isinstance(log, KafkaLog)
    commit(log, 0, changes([order(number) for number in range(1000)]))
    with serving(project) as node:
        until(node.ready)
        commit(log, 1, changes([order(5, "paid")]))
        os.kill(pid_of(project, "applier"), signal.SIGKILL)
        commit(log, 2, changes([order(6)], Op.DELETE))
        until(lambda: node.ask("/orders/6").status_code == 404)
        assert state_of(node, 5) == "paid"
        assert len(node.get("/orders?$limit=1000")) == 999


def test_no_process_of_a_node_loads_spark(project: Path) -> None:
    code = (
        "import sys; from headrace.serve import node; from headrace.serve.replica import applier; "
        "from headrace.serve.rest import api; from headrace.serve.base.settings import Settings; "
        "api.server(Settings.here()); sys.exit(any(name.split('.')[0] in ('pyspark', 'py4j') for name in sys.modules))"
    )
    environment = {**os.environ, **ServeProjectRef(project).environment()}
    with subprocess.Popen([sys.executable, "-c", code], env=environment, stdin=subprocess.PIPE) as process:
        assert process.wait(120) == 0
