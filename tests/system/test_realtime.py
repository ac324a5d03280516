"""Real-time flows: rows arrive long before the batch ends, and what cannot run is refused with the reason."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, TopicPartition
from tests.system.conftest import produce

from headrace.core.errors import ProjectError
from headrace.engine.flows.flow import FlowStarter
from headrace.engine.state.state import StateDir
from headrace.plan.planner import make_plan
from headrace.project.loader import load

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.testing.services import Kafka

pytestmark = [pytest.mark.spark, pytest.mark.service]

PROJECT = """
project: instant
streams:
  numbers:
    source: {{type: kafka, brokers: {brokers}, topic: {source}}}
    format: {{type: json, columns: "n bigint, service string"}}
    on_error: skip
flows:
  rides:
    mode: realtime
    sql: SELECT n, n * 2 AS twice FROM numbers WHERE service = 'RIDE'
    sinks: [{{type: kafka, brokers: {brokers}, topic: {target}, key: n}}]
"""


def starter(folder: Path, spark: SparkSession, kafka: Kafka, source: str, target: str) -> FlowStarter:
    (folder / "headrace.yaml").write_text(PROJECT.format(brokers=kafka.address, source=source, target=target))
    project = load(folder)
    return FlowStarter(project, StateDir(Path(project.context.state)), spark)


def test_rows_arrive_while_the_batch_runs(
    tmp_path: Path, spark: SparkSession, kafka: Kafka, topic: Callable[..., str]
) -> None:
    source, target = topic(), topic()
    made = starter(tmp_path, spark, kafka, source, target)
    query = made.start(make_plan(made.project).flow("rides"))
    consumer = Consumer({"bootstrap.servers": kafka.address, "group.id": "realtime"})
    consumer.assign([TopicPartition(target, 0, 0)])
    try:
        rows = [json.dumps({"n": n, "service": "RIDE" if n % 2 else "FOOD"}).encode() for n in range(100)]
        produce(kafka, source, [*rows, b"not json"])
        found = []
        while len(found) < 50:
            message = consumer.poll(60)
            assert message is not None, f"only {len(found)} rows arrived"
            assert message.error() is None
            found.append(json.loads(message.value()))
        assert query.isActive
        assert found == [{"n": n, "twice": 2 * n} for n in range(1, 100, 2)]
    finally:
        consumer.close()
        query.stop()


def test_more_partitions_than_slots_are_refused(
    tmp_path: Path, spark: SparkSession, kafka: Kafka, topic: Callable[..., str]
) -> None:
    made = starter(tmp_path, spark, kafka, topic(partitions=5), topic())
    with pytest.raises(ProjectError, match="5 partitions") as found:
        made.start(make_plan(made.project).flow("rides"))
    assert found.value.code == "realtime-starved"
