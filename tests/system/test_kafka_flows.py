"""Kafka in, Kafka out, read back by clients that know nothing of Headrace."""

from __future__ import annotations

import importlib
import json
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
from tests.system.conftest import RIDES_PROTO, RunProject, consume, produce

from headrace.engine.letters.dead_letters import read_dead_letters

if TYPE_CHECKING:
    from headrace.testing.services import Kafka

pytestmark = [pytest.mark.spark, pytest.mark.service]

START = 1_767_225_600  # 2026-01-01T00:00:00Z


@pytest.fixture(scope="session")
def rides(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """The classes that protoc makes of the schema."""
    folder = tmp_path_factory.mktemp("proto")
    (folder / "rides.proto").write_text(RIDES_PROTO)
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{folder}", f"--python_out={folder}", "rides.proto"]
    subprocess.run(command, check=True)
    sys.path.insert(0, str(folder))
    return importlib.import_module("rides_pb2")


def bookings(rides: ModuleType, count: int) -> list[Any]:
    chance = random.Random(3)
    made = []
    for number in range(count):
        booking = rides.Booking(
            order_id=f"order-{number}",
            service=chance.choice(["RIDE", "FOOD"]),
            status=chance.choice(["CREATED", "COMPLETED"]),
            amount=chance.randrange(1, 100),
            pickup=rides.Place(area=f"area-{number % 7}", lat=1.5, lon=2.5),
        )
        booking.event_timestamp.FromSeconds(START + number // 100)
        made.append(booking)
    return made


def spoilt(values: list[bytes], every: int) -> tuple[list[bytes], dict[int, bytes]]:
    """The values with every n-th one damaged, and the damaged ones by index."""
    bad = {index: b"\x07\xff" + values[index][: len(values[index]) // 2] for index in range(0, len(values), every)}
    return [bad.get(index, value) for index, value in enumerate(values)], bad


def project(folder: Path, text: str) -> Path:
    (folder / "schemas").mkdir()
    (folder / "schemas" / "rides.proto").write_text(RIDES_PROTO)
    (folder / "headrace.yaml").write_text(text)
    return folder


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_protobuf_to_windows_to_json(
    tmp_path: Path,
    kafka: Kafka,
    topic: Callable[..., str],
    run_project: RunProject,
    rides: ModuleType,
    delivery: str,
) -> None:
    source, target = topic(partitions=3), topic(partitions=2)
    made = bookings(rides, 4000)
    produce(kafka, source, [booking.SerializeToString() for booking in made])
    folder = project(
        tmp_path,
        f"""
project: windows
streams:
  bookings:
    source: {{type: kafka, brokers: {kafka.address}, topic: {source}}}
    format: {{type: protobuf, proto: schemas/rides.proto, message: rides.Booking}}
    event_time: {{column: event_timestamp, watermark: 1s}}
flows:
  counts:
    sql: |
      SELECT window.start AS since, service, pickup.area AS area, count(*) AS n, sum(amount) AS total
      FROM bookings WHERE status = 'COMPLETED'
      GROUP BY window(event_timestamp, '10 seconds'), service, pickup.area
    sinks:
      - {{type: kafka, brokers: {kafka.address}, topic: {target}, key: service, delivery: {delivery}}}
""",
    )
    run_project(folder)
    expected: Counter[tuple[int, str, str]] = Counter()
    for booking in made:
        if booking.status == rides.Booking.COMPLETED:
            since = booking.event_timestamp.seconds // 10 * 10
            expected[(since, booking.service, booking.pickup.area)] += int(booking.amount)
    last = START + 39 - 1  # the newest event less the watermark: windows that end by then are closed
    closed = {key: total for key, total in expected.items() if key[0] + 10 <= last}
    found = {}
    for message in consume(kafka, target):
        row = json.loads(message.value())
        assert message.key() == row["service"].encode()
        since = _seconds(row["since"])
        assert (since, row["service"], row["area"]) not in found, "a window came twice"
        found[(since, row["service"], row["area"])] = row["total"]
    assert found == closed


def _seconds(text: str) -> int:
    from datetime import datetime

    return int(datetime.fromisoformat(text).timestamp())


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_json_filtered_to_protobuf_with_nested_fields_and_a_protobuf_key(
    tmp_path: Path,
    kafka: Kafka,
    topic: Callable[..., str],
    run_project: RunProject,
    rides: ModuleType,
    delivery: str,
) -> None:
    source, target = topic(partitions=2), topic(partitions=4)
    rows = [
        {"id": f"o{n}", "status": "COMPLETED" if n % 3 else "CREATED", "amount": n / 2, "area": f"a{n % 5}", "who": n}
        for n in range(3000)
    ]
    produce(kafka, source, [json.dumps(row).encode() for row in rows])
    folder = project(
        tmp_path,
        f"""
project: receipts
streams:
  orders:
    source: {{type: kafka, brokers: {kafka.address}, topic: {source}}}
    format: {{type: json, columns: "id string, status string, amount double, area string, who bigint"}}
flows:
  receipts:
    sql: |
      SELECT id AS order_id, amount, area AS `pickup.area`, who AS customer_id
      FROM orders WHERE status = 'COMPLETED' AND amount > 10
    sinks:
      - type: kafka
        brokers: {kafka.address}
        topic: {target}
        key: order_id
        key_format: {{type: protobuf, proto: schemas/rides.proto, message: rides.Key}}
        format: {{type: protobuf, proto: schemas/rides.proto, message: rides.Receipt}}
        delivery: {delivery}
""",
    )
    run_project(folder)
    expected = sorted(
        (r["id"], r["amount"], r["area"], r["who"]) for r in rows if r["status"] == "COMPLETED" and r["amount"] > 10
    )
    found = []
    for message in consume(kafka, target):
        receipt = rides.Receipt.FromString(message.value())
        assert rides.Key.FromString(message.key()).order_id == receipt.order_id
        found.append((receipt.order_id, receipt.amount, receipt.pickup.area, receipt.customer_id))
    assert sorted(found) == expected


@pytest.mark.parametrize("form", ["protobuf", "json"])
def test_one_percent_malformed(
    tmp_path: Path, kafka: Kafka, topic: Callable[..., str], run_project: RunProject, rides: ModuleType, form: str
) -> None:
    source, target = topic(partitions=2), topic()
    made = bookings(rides, 20_000)
    if form == "protobuf":
        good = [booking.SerializeToString() for booking in made]
    else:
        good = [json.dumps({"order_id": b.order_id, "amount": b.amount}).encode() for b in made]
    values, bad = spoilt(good, every=100)
    produce(kafka, source, values)
    format_ = (
        "{type: protobuf, proto: schemas/rides.proto, message: rides.Booking}"
        if form == "protobuf"
        else "{type: json, columns: 'order_id string, amount double'}"
    )
    folder = project(
        tmp_path,
        f"""
project: malformed
streams:
  bookings:
    source: {{type: kafka, brokers: {kafka.address}, topic: {source}}}
    format: {format_}
flows:
  copy:
    sql: SELECT order_id, amount FROM bookings
    sinks: [{{type: kafka, brokers: {kafka.address}, topic: {target}, delivery: exactly_once}}]
""",
    )
    (run,) = run_project(folder)
    arrived = [json.loads(message.value())["order_id"] for message in consume(kafka, target)]
    letters = read_dead_letters(folder / ".headrace" / "dead_letters").to_pylist()
    assert run.rows_in == len(values) == len(arrived) + len(letters)
    assert sorted(arrived) == sorted(b.order_id for i, b in enumerate(made) if i not in bad)
    assert sorted(letter["value"] for letter in letters) == sorted(bad.values())
    positions = {tuple(json.loads(letter["position"]).values()) for letter in letters}
    originals = {
        (m.topic(), m.partition(), m.offset()) for m in consume(kafka, source) if m.value() in set(bad.values())
    }
    assert positions == originals
    assert {letter["reason"] for letter in letters} == {"malformed"}


def test_a_second_run_goes_on_where_the_first_stopped(
    tmp_path: Path, kafka: Kafka, topic: Callable[..., str], run_project: RunProject
) -> None:
    source, target = topic(partitions=2), topic(partitions=2)
    folder = project(
        tmp_path,
        f"""
project: resume
streams:
  numbers:
    source: {{type: kafka, brokers: {kafka.address}, topic: {source}}}
    format: json
flows:
  copy:
    sql: SELECT n, _topic AS topic, _partition AS part, decode(_key, 'utf-8') AS k FROM numbers
    sinks:
      - {{type: kafka, brokers: {kafka.address}, topic: {target}, delivery: exactly_once}}
      - {{type: lake, path: lake/copy}}
      - {{type: files, path: out, contains: json}}
""",
    )
    for first in (0, 100, 200):
        produce(kafka, source, [json.dumps({"n": n}).encode() for n in range(first, first + 100)], lambda n: b"k%d" % n)
        run_project(folder)
    found = [json.loads(message.value()) for message in consume(kafka, target)]
    assert sorted(row["n"] for row in found) == list(range(300))
    assert {row["topic"] for row in found} == {source}
    assert {row["k"] for row in found} == {f"k{n}" for n in range(100)}
    from deltalake import DeltaTable

    assert sorted(DeltaTable(str(folder / "lake" / "copy")).to_pyarrow_table()["n"].to_pylist()) == list(range(300))
    lines = [json.loads(line) for file in (folder / "out").glob("*.json*") for line in file.read_text().splitlines()]
    assert sorted(row["n"] for row in lines) == list(range(300))
