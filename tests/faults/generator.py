"""Writes ride events into a topic and logs each one after the broker has acknowledged it. A process of its own.

    python generator.py BROKERS TOPIC LOG --count 20000 --seed 7

A line of the log is `[id, key, n, amount, ts, bad]`; the last line is `{"sent": …, "acknowledged": …}`. `n` counts the
events of a key. Event times go up by STEP_MS per event and are late by up to DISORDER_MS. Some records are cut off in
the middle. The last events lie far ahead in time, one per partition, so that every window before them gets closed.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BASE_MS = 1_767_225_600_000  # 2026-01-01T00:00:00Z
STEP_MS = 10
DISORDER_MS = 15_000
AHEAD_MS = 600_000
PARTITIONS = 4
KEYS = 20
BAD_SHARE = 0.01


@dataclass(frozen=True)
class Event:
    id: str
    key: str
    n: int
    amount: int
    ts: int
    bad: bool
    partition: int

    @property
    def value(self) -> bytes:
        row = {"id": self.id, "k": self.key, "n": self.n, "amount": self.amount, "ts": self.ts}
        text = json.dumps(row).encode()
        return text[: text.index(b'"n"')] if self.bad else text

    @property
    def line(self) -> str:
        return json.dumps([self.id, self.key, self.n, self.amount, self.ts, int(self.bad)], separators=(",", ":"))


def events(count: int, seed: int) -> Iterator[Event]:
    """The same events for the same seed."""
    chance = random.Random(seed)
    so_far: Counter[str] = Counter()
    for number in range(count):
        lane = chance.randrange(KEYS)
        key = f"k{lane:02d}"
        bad = chance.random() < BAD_SHARE
        ts = BASE_MS + number * STEP_MS - chance.randrange(DISORDER_MS)
        yield Event(f"r{number:07d}", key, so_far[key], chance.randrange(1, 1000), ts, bad, lane % PARTITIONS)
        so_far[key] += 1
    for partition in range(PARTITIONS):
        ts = BASE_MS + count * STEP_MS + AHEAD_MS
        yield Event(f"last{partition}", f"end{partition}", 0, 1, ts, False, partition)


def generate(brokers: str, topic: str, log: Path, count: int, seed: int, rate: float | None) -> tuple[int, int]:
    """How many were sent and how many acknowledged."""
    from confluent_kafka import Producer

    producer = Producer(
        {"bootstrap.servers": brokers, "acks": "all", "enable.idempotence": True, "linger.ms": 5, "log_level": 2}
    )
    acknowledged = sent = 0
    began = time.monotonic()
    with log.open("w") as file:

        def on_delivery(line: str) -> Any:
            def note(error: Any, _message: Any) -> None:
                nonlocal acknowledged
                if error is None:
                    acknowledged += 1
                    file.write(line + "\n")

            return note

        for event in events(count, seed):
            while True:
                try:
                    producer.produce(
                        topic, event.value, event.key.encode(), event.partition, on_delivery=on_delivery(event.line)
                    )
                    break
                except BufferError:
                    producer.poll(0.1)
            sent += 1
            producer.poll(0)
            if rate is not None and sent % 100 == 0:
                producer.poll(max(0.0, began + sent / rate - time.monotonic()))
        producer.flush(120)
        file.write(json.dumps({"sent": sent, "acknowledged": acknowledged}) + "\n")
    return sent, acknowledged


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("brokers")
    parser.add_argument("topic")
    parser.add_argument("log", type=Path)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rate", type=float, help="events per second; as fast as it goes without it")
    given = parser.parse_args()
    sent, acknowledged = generate(given.brokers, given.topic, given.log, given.count, given.seed, given.rate)
    raise SystemExit(0 if sent == acknowledged else 1)


if __name__ == "__main__":
    main()
