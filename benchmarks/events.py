"""The events of the benchmark, in JSON and protobuf, in topics of four partitions."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

PARTITIONS = 4
_START_MS = 1_767_225_600_000
_EVENTS_PER_MS = 5


def event(number: int, chance: random.Random) -> dict[str, Any]:
    return {
        "order_id": f"order-{number}",
        "service": chance.choice(("RIDE", "FOOD", "SEND")),
        "status": chance.choice(("CREATED", "COMPLETED", "CANCELLED")),
        "customer_id": chance.randrange(100_000),
        "driver_id": chance.randrange(5_000),
        "amount": round(chance.random() * 100, 2),
        "pickup_lat": round(chance.random(), 4),
        "pickup_lon": round(chance.random(), 4),
        "area": f"area-{number % 50}",
    }


def _iso(ms: int) -> str:
    seconds, rest = divmod(ms, 1000)
    day = seconds // 86_400 - 20_454  # days since 2026-01-01
    hour, minute, second = seconds // 3600 % 24, seconds // 60 % 60, seconds % 60
    return f"2026-01-{day + 1:02}T{hour:02}:{minute:02}:{second:02}.{rest:03}Z"


def produce(brokers: str, rows: int, module_dir: Path) -> tuple[int, int]:
    """Fill both topics; return the size of a JSON and of a protobuf event."""
    import sys

    sys.path.insert(0, str(module_dir))
    from rides_pb2 import Booking

    producer = Producer({"bootstrap.servers": brokers, "linger.ms": 50, "queue.buffering.max.messages": 1_000_000})
    chance = random.Random(7)  # noqa: S311
    text, binary = b"", b""
    for number in range(rows):
        fields = event(number, chance)
        ms = _START_MS + number // _EVENTS_PER_MS
        booking = Booking(**fields)
        booking.event_timestamp.FromMilliseconds(ms)
        text = json.dumps({**fields, "event_timestamp": _iso(ms)}, separators=(",", ":")).encode()
        binary = booking.SerializeToString()
        for topic, value in (("bench_json", text), ("bench_protobuf", binary)):
            while True:
                try:
                    producer.produce(topic, value, key=fields["order_id"], partition=number % PARTITIONS)
                    break
                except BufferError:
                    producer.poll(0.1)
        if number % 10_000 == 0:
            producer.poll(0)
    producer.flush()
    return len(text), len(binary)
