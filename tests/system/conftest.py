"""Whole projects in this process: the shared Spark session and broker, a folder of their own.

Those that show what the commands do may be run by the commands themselves: see `run_shown`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition

from headrace.engine.flows.checks import check_services
from headrace.engine.flows.flow import FlowStarter
from headrace.engine.state.schemas import infer_schema
from headrace.engine.state.state import StateDir
from headrace.engine.supervise.runner import FlowRun, Runner
from headrace.plan.planner import make_plan
from headrace.project.loader import load

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.testing.services import Kafka

RunProject = Callable[..., list[FlowRun]]
RunShown = Callable[..., None]

RIDES_PROTO = """
syntax = "proto3";
package rides;
import "google/protobuf/timestamp.proto";
message Place { string area = 1; double lat = 2; double lon = 3; }
message Booking {
  enum Status { UNKNOWN = 0; CREATED = 1; COMPLETED = 2; CANCELLED = 3; }
  string order_id = 1;
  string service = 2;
  Status status = 3;
  double amount = 4;
  Place pickup = 5;
  google.protobuf.Timestamp event_timestamp = 6;
}
message Receipt { string order_id = 1; double amount = 2; Place pickup = 3; int64 customer_id = 4; }
message Key { string order_id = 1; }
"""


@pytest.fixture
def run_project(spark: SparkSession) -> RunProject:
    """`run_project(folder, *flows)` runs until caught up; a flow's error is raised."""

    def run(folder: Path, *flows: str, **settings: Any) -> list[FlowRun]:
        project = load(folder, overrides=[f"{key.replace('__', '.')}={value}" for key, value in settings.items()])
        state = StateDir.of(project.context)
        plan = make_plan(project, flows, lambda name, spec: infer_schema(project, state, name, spec))
        check_services(project, plan)
        runner = Runner(FlowStarter(project, state, spark, until_caught_up=True), plan)
        runs = runner.run(seconds=900)
        for one in runs:
            if one.error is not None:
                raise one.error
            assert one.caught_up, f"{one.plan.name} did not catch up in time"
        return runs

    return run


def headrace(*arguments: object, **options: Any) -> subprocess.Popen[str]:
    """Start a command in a process of its own, as a shell does."""
    return subprocess.Popen([sys.executable, "-m", "headrace", *map(str, arguments)], text=True, **options)


def output_of(*arguments: object, timeout: float = 900) -> str:
    """What a command has printed; it must have ended well."""
    with headrace(*arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        try:
            out, err = running.communicate(timeout=timeout)
        finally:
            running.kill()
    assert running.returncode == 0, err
    assert "Traceback" not in err
    return out


def run_by_command(folder: Path, **settings: Any) -> None:
    """`headrace run FOLDER --until-caught-up`; what it prints is printed here."""
    words = [word for key, value in settings.items() for word in ("--set", f"{key.replace('__', '.')}={value}")]
    print(output_of("run", folder, "--until-caught-up", *words), end="")


def by_command(request: pytest.FixtureRequest) -> bool:
    """Whether a project that shows something is run by the command.

    A process with a Spark of its own takes a quarter of a minute: in every test run only those with the mark `command`,
    all of them with HEADRACE_EXAMPLES=command.
    """
    marked = request.node.get_closest_marker("command") is not None
    return marked or os.environ.get("HEADRACE_EXAMPLES") == "command"


@pytest.fixture
def run_shown(request: pytest.FixtureRequest) -> RunShown:
    """`run_shown(folder)` runs until caught up: by the command, or by its engine in the shared session."""
    if by_command(request):
        return run_by_command
    run: RunShown = request.getfixturevalue("run_project")
    return run


def produce(kafka: Kafka, topic: str, values: list[bytes], key: Callable[[int], bytes] | None = None) -> None:
    """Write records and wait until the broker has them all."""
    producer = Producer({"bootstrap.servers": kafka.address, "linger.ms": 20, "enable.idempotence": True})
    for number, value in enumerate(values):
        producer.produce(topic, value, key=key(number) if key else None)
        producer.poll(0)
    assert producer.flush(60) == 0


def consume(kafka: Kafka, topic: str) -> list[Message]:
    """All committed records of a topic, read by a client that knows nothing of Headrace."""
    settings = {
        "bootstrap.servers": kafka.address,
        "group.id": "checker",
        "isolation.level": "read_committed",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "earliest",
    }
    consumer = Consumer(settings)
    partitions = consumer.list_topics(topic, timeout=60).topics[topic].partitions
    consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
    found: list[Message] = []
    ended = 0
    while ended < len(partitions):
        message = consumer.poll(60)
        assert message is not None, f"no answer from {topic}"
        if message.error() is None:
            found.append(message)
        else:
            ended += 1
    consumer.close()
    return found
