"""From the file of a Dagger job to rows: migrated, run on real services, and compared with the query run by hand.

With HEADRACE_EXAMPLES=command they are migrated and run by the commands, in processes of their own.
"""

from __future__ import annotations

import json
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import asin, cos, radians, sin, sqrt
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import pytest
from google.protobuf.message_factory import GetMessageClass
from tests.conftest import unavailable
from tests.migrate.conftest import JOBS, MESSAGES
from tests.system.conftest import RunShown, by_command, consume, output_of, produce

from headrace.cli.main import main
from headrace.core.encoding.descriptors import compile_text, find_message
from headrace.engine.adhoc.query import AdHocSession
from headrace.engine.state.state import StateDir
from headrace.project.loader import load
from headrace.testing.services import InfluxDB

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.testing.services import Kafka, OpenSearch

pytestmark = [pytest.mark.spark, pytest.mark.service]

Topic = Callable[..., str]
RunJob = Callable[..., Path]

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
DESCRIPTORS = compile_text({"shop.proto": MESSAGES}, "shop.proto")


def message(name: str) -> Any:
    return GetMessageClass(find_message(DESCRIPTORS, f"shop.v1.{name}"))


def at(seconds: float) -> datetime:
    return datetime.fromtimestamp(START + seconds, UTC)


@pytest.fixture
def run_job(tmp_path: Path, run_shown: RunShown, request: pytest.FixtureRequest) -> RunJob:
    """Migrates the job of a text and runs it until it is caught up; gives the folder of the project."""

    def run(text: str, file: str = "job.properties", **settings: Any) -> Path:
        (tmp_path / "messages.desc").write_bytes(DESCRIPTORS)
        (tmp_path / file).write_text(text)
        folder = tmp_path / "migrated"
        words = ["migrate", "dagger", tmp_path / file, "-o", folder, "--descriptors", tmp_path / "messages.desc"]
        if by_command(request):
            output_of(*words)
        else:
            assert main([str(word) for word in words]) == 0
        run_shown(folder, spark__master="local[2]", **settings)
        return folder

    return run


def shipped(job: str, changes: Mapping[str, str]) -> str:
    """The text of a job as Dagger ships it, but for addresses, topics and users."""
    [file] = JOBS.glob(f"{job}.*")
    text = file.read_text()
    for old, new in changes.items():
        assert old in text, old
        text = text.replace(old, new)
    return text


def records(booking: Any) -> list[bytes]:
    made = []
    for number in range(2000):
        one = booking(order_number=f"o{number // 2}", service_type="RIDE" if number % 3 else "FOOD")
        one.tags.extend(["new", "test"] if number % 5 else [])
        one.event_timestamp.FromSeconds(START + number // 20)
        made.append(one.SerializeToString())
    last = booking(order_number="last", service_type="RIDE", tags=["new"])
    last.event_timestamp.FromSeconds(START + FAR)
    return [*made, last.SerializeToString()]


def test_a_migrated_job_gives_the_rows_of_its_query(
    tmp_path: Path, kafka: Kafka, topic: Topic, run_job: RunJob, spark: SparkSession
) -> None:
    source, target = topic(), topic()
    produce(kafka, source, records(message("BookingLog")))
    text = JOB.format(query=QUERY, source=source, target=target, brokers=kafka.address)
    folder = run_job(text, streams__booking__event_time__max_future="null")

    found = [message("BookingCount").FromString(one.value()) for one in consume(kafka, target)]
    rows = sorted((one.service_type, one.bookings, one.window_timestamp.ToDatetime()) for one in found)
    project = load(folder)
    asked = AdHocSession(spark.newSession(), project, StateDir.of(project.context), tmp_path / "letters")
    by_hand = asked.run(project.sql_of("counts")).to_pylist()
    closed = [tuple(row.values()) for row in by_hand if row["window_timestamp"].timestamp() < START + FAR]
    assert rows == sorted((service, n, end.replace(tzinfo=None)) for service, n, end in closed)
    assert len(rows) == 8
    assert sum(n for _, n, _ in rows) > 1000


def bookings(count: int) -> list[Any]:
    """Bookings over four minutes, not in order, and one far ahead that closes every window."""
    made = []
    for number in range(count):
        one = message("BookingLog")(
            order_number=f"o{number}", service_type="RIDE" if number % 3 else "FOOD", customer_id=f"c{number % 7}"
        )
        one.pickup.latitude, one.pickup.longitude = -6.2 + number / 1000, 106.8
        one.dropoff.latitude, one.dropoff.longitude = -6.2, 106.8 + number / 500
        one.event_timestamp.FromMilliseconds(1000 * START + 37_000 * number % 240_000)
        made.append(one)
    last = message("BookingLog")(order_number="last", service_type="RIDE", customer_id="c0")
    last.event_timestamp.FromSeconds(START + FAR)
    return [*made, last]


def time_of(booking: Any) -> float:
    return float(booking.event_timestamp.ToMicroseconds() / 1e6 - START)


def sent(kafka: Kafka, topic: str, messages: list[Any]) -> None:
    produce(kafka, topic, [one.SerializeToString() for one in messages])


@dataclass(frozen=True)
class Points:
    """A server with the database that the jobs write to."""

    url: str

    def ask(self, text: str) -> list[dict[str, Any]]:
        query = urlencode({"db": "dagger", "q": text}).encode()
        with urllib.request.urlopen(f"{self.url}/query", query, timeout=60) as answer:  # noqa: S310
            [result] = json.load(answer)["results"]
        return [
            dict(zip(series["columns"], values, strict=True))
            for series in result.get("series", [])
            for values in series["values"]
        ]

    def of(self, measurement: str, field: str) -> dict[tuple[str, datetime], Any]:
        """A field by service and time; no point is there twice."""
        rows = self.ask(f"SELECT * FROM {measurement}")
        found = {(row["service_type"], datetime.fromisoformat(row["time"])): row[field] for row in rows}
        assert len(found) == len(rows)
        return found


@pytest.fixture
def points(monkeypatch: pytest.MonkeyPatch) -> Iterator[Points]:
    problem = InfluxDB.problem()
    if problem is not None:
        unavailable(problem)
    with InfluxDB() as server:
        made = Points(server.env["INFLUXDB_URL"])
        made.ask("CREATE DATABASE dagger")
        monkeypatch.setenv("INFLUX_PASSWORD", "not asked for")
        yield made


def test_the_tumbling_count(kafka: Kafka, topic: Topic, run_job: RunJob, points: Points) -> None:
    source = topic()
    given = bookings(500)
    sent(kafka, source, given)
    changes = {"booking-log": source, r"localhost\:9092": kafka.address, r"http\://localhost\:8086": points.url}
    run_job(
        shipped("tumbling_count", {**changes, '"latest"': '"earliest"'}),
        streams__booking__event_time__max_future="null",
    )
    by_hand = Counter((one.service_type, at(time_of(one) // 30 * 30 + 30)) for one in given[:-1])
    assert points.of("bookings", "number_of_bookings") == by_hand
    assert len(by_hand) == 16


def kilometres(booking: Any) -> float:
    here, there = booking.pickup, booking.dropoff
    north = radians(there.latitude - here.latitude)
    east = radians(there.longitude - here.longitude)
    half = sin(north / 2) ** 2 + cos(radians(here.latitude)) * cos(radians(there.latitude)) * sin(east / 2) ** 2
    return 2 * 6371 * asin(sqrt(half))


def test_the_distance_in_a_window(kafka: Kafka, topic: Topic, run_job: RunJob, points: Points) -> None:
    source = topic()
    given = bookings(500)
    sent(kafka, source, given)
    changes = {"booking-log": source, "localhost:9092": kafka.address, "http://localhost:8086": points.url}
    run_job(
        shipped("distance", changes),
        streams__data_stream__source__start="earliest",
        streams__data_stream__event_time__max_future="null",
    )
    by_hand = defaultdict(list)
    for one in given[:-1]:
        for end in (30, 60):
            by_hand[one.service_type, at(time_of(one) // 30 * 30 + end)].append(kilometres(one))
    expected = {window: pytest.approx(fmean(found)) for window, found in by_hand.items()}
    assert points.of("distances", "distance") == expected
    assert len(expected) == 18


def test_the_interval_join(kafka: Kafka, topic: Topic, run_job: RunJob, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, target = topic(), topic(), topic()
    payments = topic()
    given, paid = bookings(200)[:-1], []
    # around both ends of the interval
    for booking, seconds in zip(given, [-31, -30, 0, 299, 300, 301, 20] * 28, strict=False):
        one = message("PaymentLog")(order_number=booking.order_number, method=f"method {seconds}")
        one.paid_at.FromMilliseconds(booking.event_timestamp.ToMilliseconds() + 1000 * seconds)
        paid.append(one)
    sent(kafka, first, given[:100])
    sent(kafka, second, given[100:])
    sent(kafka, payments, paid)
    monkeypatch.setenv("BOOKING_KAFKA_PASSWORD", kafka.users["alice"])
    changes = {
        "booking-log|booking-log-v2": f"{first}|{second}",
        "payment-.*": f"{payments[:-1]}.*",
        "localhost:9092,localhost:9093": kafka.sasl_address,
        "localhost:9092": kafka.address,
        r"username=\"dagger\"": r"username=\"alice\"",
        "paid-bookings": target,
    }
    run_job(
        shipped("interval_join", changes),
        "job.env",
        streams__booking__source__start="earliest",
        streams__booking__event_time__max_future="null",
        streams__payment_log__event_time__max_future="null",
    )
    booked = {one.order_number: one for one in given}
    by_hand = []
    for one in paid:
        booking = booked[one.order_number]
        if -30_000 <= one.paid_at.ToMilliseconds() - booking.event_timestamp.ToMilliseconds() <= 300_000:
            by_hand.append((one.order_number, booking.service_type, one.method, time_of(booking)))
    found = consume(kafka, target)
    rows = [message("PaidBooking").FromString(one.value()) for one in found]
    assert sorted((row.order_number, row.service_type, row.payment.method, time_of(row)) for row in rows) == sorted(
        by_hand
    )
    assert len(rows) == 5 * 28
    keys = [message("PaidBookingKey").FromString(one.key()).order_number for one in found]
    assert keys == [row.order_number for row in rows]


def test_deduplication_for_an_hour(
    kafka: Kafka, topic: Topic, run_job: RunJob, capsys: pytest.CaptureFixture[str]
) -> None:
    source = topic()
    given = [(f"o{order}", f"s{again}", at(60 * order + 1500 * again)) for again in range(3) for order in range(12)]
    texts = [{"order_number": o, "status": s, "event_timestamp": t.isoformat()} for o, s, t in given]
    produce(kafka, source, [json.dumps(one).encode() for one in texts])
    run_job(
        shipped("deduplication", {"booking-json": source, "localhost:9092": kafka.address}),
        streams__booking__source__start="earliest",
        streams__booking__event_time__max_future="null",
    )
    # as in Dagger the hour is one of the job's own time: whatever comes again while this runs is a repeat
    by_hand = [one for number, one in enumerate(given) if one[0] not in {order for order, *_ in given[:number]}]
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith('{"flow"')]
    rows = [line["row"] for line in lines]
    assert sorted(
        (row["order_number"], row["status"], datetime.fromisoformat(row["event_timestamp"])) for row in rows
    ) == sorted(by_hand)
    assert len(rows) == 12


def test_the_lookup_and_the_time(
    kafka: Kafka, topic: Topic, run_job: RunJob, opensearch: OpenSearch, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = topic(), topic()
    given = bookings(200)
    sent(kafka, source, given)
    names = {f"c{number}": f"name {number}" for number in range(5)}  # two of seven are not there
    index = f"migrated-{source}"
    for customer, name in names.items():
        put = urllib.request.Request(  # noqa: S310
            f"{opensearch.env['OPENSEARCH_URL']}/{index}/_doc/{customer}?refresh=true",
            json.dumps({"name": name}).encode(),
            {"Content-Type": "application/json"},
            method="PUT",
        )
        urllib.request.urlopen(put, timeout=60).close()  # noqa: S310
    monkeypatch.setenv("ES_0_PASSWORD", "not asked for")
    changes = {
        "booking-log": source,
        "localhost:9092": kafka.address,
        "SINK_KAFKA_TOPIC=enriched": f"SINK_KAFKA_TOPIC={target}",
        '"host": "localhost", "port": "9200"': f'"host": "127.0.0.1", "port": "{opensearch.port}"',
        "/customers/customer/": f"/{index}/customer/",
    }
    began = datetime.now(UTC)
    run_job(
        shipped("elasticsearch", changes),
        streams__booking__source__start="earliest",
        streams__booking__event_time__max_future="null",
    )
    rows = [message("EnrichedBooking").FromString(one.value()) for one in consume(kafka, target)]
    by_hand = sorted((one.order_number, one.customer_id, names.get(one.customer_id, "")) for one in given)
    assert sorted((row.order_number, row.customer_id, row.customer_name) for row in rows) == by_hand
    minute = timedelta(minutes=1)  # clocks of two processes
    times = [row.event_timestamp.ToDatetime(UTC) for row in rows]
    assert all(began - minute < time < datetime.now(UTC) + minute for time in times)
