"""The cost of idle flows, and the stability of batch durations and memory over time.

`python -m benchmarks.endurance idle` runs flows on empty topics; `soak` feeds two flows at a steady rate. The engine is
a separate process, as users run it; its status document has the durations of batches.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
from confluent_kafka import Producer

from benchmarks.events import PARTITIONS, event
from headrace.testing.services import Kafka

_STREAM = """\
  {name}:
    source: {{type: kafka, brokers: "{brokers}", topic: {topic}}}
    format: {{type: json, columns: "order_id string, service string, amount double, event_timestamp timestamp"}}
    event_time: {{column: event_timestamp, watermark: 5s}}
"""
_MEMORY_SECONDS = 10.0
_WINDOWED = (
    "SELECT window.start AS begins, service, count(*) AS orders, sum(amount) AS amount "
    "FROM {stream} GROUP BY window(event_timestamp, '10 seconds'), service"
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.endurance", description=__doc__)
    commands = parser.add_subparsers(required=True)
    idle = commands.add_parser("idle", help="flows without anything to do")
    idle.add_argument("--flows", type=int, default=20)
    idle.add_argument("--seconds", type=float, default=60.0)
    idle.set_defaults(run=run_idle)
    soak = commands.add_parser("soak", help="a steady rate for a long time")
    soak.add_argument("--minutes", type=float, default=30.0)
    soak.add_argument("--rate", type=int, default=2_000, help="events per second")
    soak.set_defaults(run=run_soak)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch, Kafka() as kafka:
        print(json.dumps(options.run(options, Path(scratch), kafka), indent=2))


def run_idle(options: argparse.Namespace, folder: Path, kafka: Kafka) -> dict[str, Any]:
    kafka.create_topic("idle", PARTITIONS)
    flows = "".join(
        f'  flow_{n}:\n    sql: "{_WINDOWED.format(stream="orders")}"\n    sinks: [noop]\n'
        for n in range(options.flows)
    )
    text = f"streams:\n{_STREAM.format(name='orders', brokers=kafka.address, topic='idle')}flows:\n{flows}"
    with engine(folder, text) as run:
        run.wait_until(lambda flow: flow["state"] == "running")
        time.sleep(20)  # compilation after the start is not part of the cost of idling
        before = run.cpu_seconds()
        time.sleep(options.seconds)
        share = (run.cpu_seconds() - before) / options.seconds
    return {"flows": options.flows, "seconds": options.seconds, "share_of_a_core": round(share, 4), "load": _load()}


def run_soak(options: argparse.Namespace, folder: Path, kafka: Kafka) -> dict[str, Any]:
    for topic in ("orders", "counts"):
        kafka.create_topic(topic, PARTITIONS)
    flows = f"""\
  big_orders:
    sql: SELECT order_id, service, amount, event_timestamp FROM orders WHERE amount > 50
    sinks: [{{type: lake, path: lake/big_orders}}]
  counts:
    sql: "{_WINDOWED.format(stream="orders")}"
    sinks: [{{type: kafka, brokers: "{kafka.address}", topic: counts, delivery: exactly_once}}]
"""
    text = f"streams:\n{_STREAM.format(name='orders', brokers=kafka.address, topic='orders')}flows:\n{flows}"
    with engine(folder, text) as run, steady(kafka, options.rate) as sent:
        run.wait_until(lambda flow: bool(flow["batches"]))
        samples = list(run.watch(options.minutes * 60))
        return {
            "minutes": options.minutes,
            "rate": options.rate,
            "sent": sent[0],
            "flows": {name: _batch_times(samples, name) for name in ("big_orders", "counts")},
            "memory": _memory(samples),
            "load": _load(),
        }


class Engine:
    """One `headrace run` and its status document."""

    def __init__(self, folder: Path, process: subprocess.Popen[bytes]) -> None:
        self._status = folder / ".headrace" / "status.json"
        self._process = process

    def flows(self) -> list[dict[str, Any]]:
        if self._process.poll() is not None:
            raise SystemExit(f"the engine ended with {self._process.returncode}")
        try:
            return list(json.loads(self._status.read_text())["flow_list"])
        except FileNotFoundError:
            return []

    def wait_until(self, met: Any, seconds: float = 300.0) -> None:
        deadline = time.monotonic() + seconds
        while not (flows := self.flows()) or not all(met(flow) for flow in flows):
            if time.monotonic() > deadline:
                raise SystemExit(f"after {seconds} s: {json.dumps(flows)[:2000]}")
            time.sleep(0.5)

    def watch(self, seconds: float) -> Iterator[dict[str, Any]]:
        """Take a sample per second: the last batch of each flow, and from time to time memory."""
        began, memory_due = time.monotonic(), 0.0
        memory: dict[str, float] = {}
        while (at := time.monotonic() - began) < seconds:
            flows = self.flows()
            if at >= memory_due:
                memory, memory_due = self.memory_mb(), at + _MEMORY_SECONDS
            for flow in flows:
                if flow["state"] != "running":
                    print(f"{at:.0f} s: {flow['name']} is {flow['state']}: {flow.get('reason')}", file=sys.stderr)
            yield {"at": at, "batches": {flow["name"]: flow["last_batch"] for flow in flows}, "mb": memory}
            time.sleep(1)

    def _tree(self) -> list[psutil.Process]:
        parent = psutil.Process(self._process.pid)
        return [parent, *parent.children(recursive=True)]

    def cpu_seconds(self) -> float:
        total = 0.0
        for process in self._tree():
            with suppress(psutil.Error):  # a worker that has just ended
                times = process.cpu_times()
                total += times.user + times.system + times.children_user + times.children_system
        return total

    def memory_mb(self) -> dict[str, float]:
        """Return the proportional memory of the driver, its JVM and the Python workers."""
        used = {"driver": 0.0, "jvm": 0.0, "workers": 0.0}
        for process in self._tree():
            with suppress(psutil.Error):
                driver = process.pid == self._process.pid
                part = "driver" if driver else "jvm" if process.name() == "java" else "workers"
                used[part] += process.memory_full_info().pss / 1e6
        return used


@contextmanager
def engine(folder: Path, text: str) -> Iterator[Engine]:
    (folder / "headrace.yaml").write_text(f"project: endurance\n{text}")
    command = [sys.executable, "-m", "headrace", "run", str(folder), "--set", "http.port=0"]
    with (folder / "engine.out").open("wb") as out, subprocess.Popen(command, stdout=out, stderr=out) as process:
        try:
            yield Engine(folder, process)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(120)


@contextmanager
def steady(kafka: Kafka, rate: int) -> Iterator[list[int]]:
    """Produce at a steady rate; the list holds the number of sent records."""
    sent, stopped = [0], threading.Event()

    def produce() -> None:
        producer = Producer({"bootstrap.servers": kafka.address, "linger.ms": 20})
        chance = random.Random(11)  # noqa: S311
        began = time.monotonic()
        while not stopped.wait(0.05):
            due = int((time.monotonic() - began) * rate)
            for number in range(sent[0], due):
                value = {**event(number, chance), "event_timestamp": datetime.now(UTC).isoformat()}
                producer.produce("orders", json.dumps(value).encode(), partition=number % PARTITIONS)
            sent[0] = due
            producer.poll(0)
        producer.flush(30)

    thread = threading.Thread(target=produce, daemon=True)
    thread.start()
    try:
        yield sent
    finally:
        stopped.set()
        thread.join()


def _batch_times(samples: Sequence[dict[str, Any]], flow: str) -> dict[str, Any]:
    """Return batch durations in the first and the last sixth, after a minute of warm-up."""
    durations: dict[int, tuple[float, float]] = {}
    for sample in samples:
        batch = sample["batches"].get(flow)
        if batch and batch["rows"] and batch["duration_s"] is not None and sample["at"] > 60:
            durations.setdefault(batch["id"], (sample["at"], batch["duration_s"]))
    times = [seconds for _at, seconds in sorted(durations.values())]
    part = max(1, len(times) // 6)
    start, end = statistics.median(times[:part]), statistics.median(times[-part:])
    return {
        "batches_seen": len(times),
        "median_start_s": round(start, 3),
        "median_end_s": round(end, 3),
        "ratio": round(end / start, 2),
        "p95_s": round(statistics.quantiles(times, n=20)[-1], 3),
    }


def _memory(samples: Sequence[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Return memory at each quarter, and the least-squares slope over the second half, when heaps grow no more."""
    half = samples[len(samples) // 2 :]
    quarters = [samples[min(len(samples) - 1, len(samples) * part // 4)]["mb"] for part in range(5)]
    figures = {}
    for part in ("driver", "jvm", "workers", "all"):
        used = [_used(sample["mb"], part) for sample in half]
        slope = statistics.linear_regression([sample["at"] / 3600 for sample in half], used).slope
        figures[part] = {"mb": [round(_used(mb, part)) for mb in quarters], "slope_mb_per_hour": round(slope, 1)}
    return figures


def _used(mb: dict[str, float], part: str) -> float:
    return sum(mb.values()) if part == "all" else mb[part]


def _load() -> list[float]:
    return [round(one, 1) for one in os.getloadavg()]


if __name__ == "__main__":
    main()
