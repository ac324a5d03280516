"""Whole projects in this process: the shared Spark session and broker, a folder of their own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition

from headrace.engine.checks import check_services
from headrace.engine.flow import FlowStarter
from headrace.engine.runner import FlowRun, Runner
from headrace.engine.schemas import infer_schema
from headrace.engine.state import StateDir
from headrace.plan.planner import make_plan
from headrace.project.loader import load

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.testing.services import Kafka

RunProject = Callable[..., list[FlowRun]]

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
        runs = runner.run(seconds=400)
        for one in runs:
            if one.error is not None:
                raise one.error
            assert one.caught_up, f"{one.plan.name} did not catch up in time"
        return runs

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
    partitions = consumer.list_topics(topic, timeout=10).topics[topic].partitions
    consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
    found: list[Message] = []
    ended = 0
    while ended < len(partitions):
        message = consumer.poll(30)
        assert message is not None, f"no answer from {topic}"
        if message.error() is None:
            found.append(message)
        else:
            ended += 1
    consumer.close()
    return found
