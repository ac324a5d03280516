"""From the file of a Dagger job to rows: migrated, run on a real broker, and compared with the query run by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from google.protobuf.message_factory import GetMessageClass
from tests.migrate.conftest import MESSAGES
from tests.system.conftest import RunProject, consume, produce

from headrace.cli.main import main
from headrace.core.descriptors import compile_text, find_message
from headrace.engine.adhoc import AdHoc
from headrace.engine.state import StateDir
from headrace.project.loader import load

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.testing.services import Kafka

pytestmark = [pytest.mark.spark, pytest.mark.service]

START = 1_767_225_600  # 2026-01-01T00:00:00Z
FAR = 100_000
QUERY = """SELECT CAST(service_type AS VARCHAR) AS service_type, COUNT(DISTINCT order_number) AS bookings, \\
  TUMBLE_END(rowtime, INTERVAL '30' SECOND) AS window_timestamp \\
  FROM `booking` CROSS JOIN UNNEST(tags) AS t (tag) \\
  WHERE tag <> 'test' AND event_timestamp.seconds > 0 \\
  GROUP BY TUMBLE (rowtime, INTERVAL '30' SECOND), service_type"""
JOB = """
FLINK_JOB_ID=counts
FLINK_SQL_QUERY={query}
FLINK_WATERMARK_DELAY_MS=1000
FLINK_PARALLELISM=2
SCHEMA_REGISTRY_STENCIL_URLS=messages.desc
STREAMS=[{{"SOURCE_KAFKA_TOPIC_NAMES": "{source}", "INPUT_SCHEMA_TABLE": "booking",
  "INPUT_SCHEMA_PROTO_CLASS": "com.shop.BookingLog", "INPUT_SCHEMA_EVENT_TIMESTAMP_FIELD_INDEX": "5",
  "SOURCE_KAFKA_CONSUMER_CONFIG_BOOTSTRAP_SERVERS": "{brokers}",
  "SOURCE_KAFKA_CONSUMER_CONFIG_AUTO_OFFSET_RESET": "earliest"}}]
SINK_TYPE=kafka
SINK_KAFKA_BROKERS={brokers}
SINK_KAFKA_TOPIC={target}
SINK_KAFKA_PROTO_MESSAGE=com.shop.BookingCount
"""


def records(message: Any) -> list[bytes]:
    made = []
    for number in range(2000):
        one = message(order_number=f"o{number // 2}", service_type="RIDE" if number % 3 else "FOOD")
        one.tags.extend(["new", "test"] if number % 5 else [])
        one.event_timestamp.FromSeconds(START + number // 20)
        made.append(one.SerializeToString())
    last = message(order_number="last", service_type="RIDE", tags=["new"])
    last.event_timestamp.FromSeconds(START + FAR)
    return [*made, last.SerializeToString()]


def test_a_migrated_job_gives_the_rows_of_its_query(
    tmp_path: Path, kafka: Kafka, topic: Callable[..., str], run_project: RunProject, spark: SparkSession
) -> None:
    source, target = topic(), topic()
    descriptors = compile_text({"shop.proto": MESSAGES}, "shop.proto")
    (tmp_path / "messages.desc").write_bytes(descriptors)
    booking, count = (
        GetMessageClass(find_message(descriptors, f"shop.v1.{name}")) for name in ("BookingLog", "BookingCount")
    )
    produce(kafka, source, records(booking))
    job = tmp_path / "job.properties"
    job.write_text(JOB.format(query=QUERY, source=source, target=target, brokers=kafka.address))
    folder = tmp_path / "counts"
    assert main(["migrate", "dagger", str(job), "-o", str(folder)]) == 0
    run_project(folder, spark__master="local[2]", streams__booking__event_time__max_future="null")

    found = [count.FromString(message.value()) for message in consume(kafka, target)]
    rows = sorted((one.service_type, one.bookings, one.window_timestamp.ToDatetime()) for one in found)
    project = load(folder)
    asked = AdHoc(spark.newSession(), project, StateDir.of(project.context), tmp_path / "letters")
    by_hand = asked.run(project.sql_of("counts")).to_pylist()
    closed = [tuple(row.values()) for row in by_hand if row["window_timestamp"].timestamp() < START + FAR]
    assert rows == sorted((service, n, end.replace(tzinfo=None)) for service, n, end in closed)
    assert len(rows) == 8
    assert sum(n for _, n, _ in rows) > 1000
