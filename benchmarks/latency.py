"""The latency of a record from topic to topic: the same flow in real-time mode and in micro-batches.

`python -m benchmarks.latency` produces at a steady rate and reads the results in the same process, so there is one
clock. The engine is a separate process, as users run it. Broker, producer and reader share the machine with it. The
machine may share its processors with others: the share of stolen time is reported too.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from confluent_kafka import Consumer, Producer, TopicPartition

from benchmarks.endurance import engine
from headrace.testing.services import Kafka

_FLOW = """\
streams:
  readings:
    source: {{type: kafka, brokers: "{brokers}", topic: {topic}}}
    format: {{type: json, columns: "id bigint, sent double, level double, place string"}}
    on_error: skip
flows:
  passed:
    mode: {mode}
    trigger: {trigger}
    sql: SELECT id, sent, upper(place) AS place, level * 2 AS level FROM readings WHERE level >= 0
    sinks: [{{type: kafka, brokers: "{brokers}", topic: {output}, format: json, delivery: at_least_once}}]
"""


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.latency", description=__doc__)
    parser.add_argument("--rate", type=int, default=1_000, help="events per second")
    parser.add_argument("--seconds", type=float, default=60.0, help="of measuring, for each mode")
    parser.add_argument("--warm-up", type=float, default=20.0, help="seconds before, for each mode")
    parser.add_argument("--trigger", default="100ms", help="time between micro-batches")
    options = parser.parse_args()
    with Kafka() as kafka:
        modes = ("realtime", "micro_batch")
        figures: dict[str, Any] = {mode: measured(kafka, mode, options) for mode in modes}
    for name in ("p50_ms", "p99_ms"):
        figures[f"ratio_{name[:3]}"] = round(figures["micro_batch"][name] / figures["realtime"][name], 1)
    print(json.dumps({"rate": options.rate, "trigger": options.trigger, **figures}, indent=2))


def measured(kafka: Kafka, mode: str, options: argparse.Namespace) -> dict[str, Any]:
    topic, output = f"readings_{mode}", f"passed_{mode}"
    for name in (topic, output):
        kafka.create_topic(name, 1)
    text = _FLOW.format(brokers=kafka.address, topic=topic, mode=mode, trigger=options.trigger, output=output)
    with tempfile.TemporaryDirectory() as folder, engine(Path(folder), text) as run:
        run.wait_until(lambda flow: flow["state"] == "running")
        with steady(kafka, topic, options.rate):
            before = psutil.cpu_times()
            delays = list(_delays(kafka, output, options.warm_up + options.seconds, options.warm_up))
            after = psutil.cpu_times()
    cuts = statistics.quantiles(delays, n=1000)
    return {
        "records": len(delays),
        "p50_ms": round(cuts[499], 1),
        "p99_ms": round(cuts[989], 1),
        "p999_ms": round(cuts[998], 1),
        "max_ms": round(max(delays), 1),
        "load": [round(one, 1) for one in os.getloadavg()],
        "stolen_percent": round(100 * (after.steal - before.steal) / (sum(after) - sum(before)), 1),
    }


@contextmanager
def steady(kafka: Kafka, topic: str, rate: int) -> Iterator[None]:
    """Produce at a steady rate, without waiting for results."""
    stopped = threading.Event()

    def produce() -> None:
        # the default of clients: it waits up to 5 ms, which is part of the latency
        producer = Producer({"bootstrap.servers": kafka.address})
        began, number = time.monotonic(), 0
        while not stopped.is_set():
            pause = began + number / rate - time.monotonic()
            if pause > 0:
                time.sleep(pause)
            value = {"id": number, "sent": time.time(), "level": number % 100, "place": "harbour"}
            producer.produce(topic, json.dumps(value).encode())
            producer.poll(0)
            number += 1
        producer.flush(30)

    thread = threading.Thread(target=produce, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


def _delays(kafka: Kafka, topic: str, seconds: float, warm_up: float) -> Iterator[float]:
    """Return the milliseconds from before a record was produced until its result was read."""
    # a request per record would load the broker more than the flow
    settings = {"bootstrap.servers": kafka.address, "group.id": "latency", "enable.auto.commit": False,
                "fetch.min.bytes": 100_000, "fetch.wait.max.ms": 5}  # fmt: skip
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(topic, 0, 0)])
    began = time.monotonic()
    while (at := time.monotonic() - began) < seconds:
        message = consumer.poll(0.1)
        if message is not None and message.error() is None and at > warm_up:
            yield (time.time() - json.loads(message.value())["sent"]) * 1000
    consumer.close()


if __name__ == "__main__":
    main()
