"""What is away comes back: a real engine says what it misses, goes on by itself, and has lost and doubled nothing.

`HEADRACE_FAULTS=full` makes the outages as long as they are in life; each prints how long it took to be noticed and
to be over.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from deltalake import DeltaTable

from headrace.core.errors import ProjectError
from headrace.engine.state.state import StateDir
from headrace.engine.state.status_file import StatusReading, read_status
from headrace.testing.services import Kafka

pytestmark = pytest.mark.service

FULL = os.environ.get("HEADRACE_FAULTS") == "full"
BROKER_AWAY, PAUSED, DISK = (30.0, 60.0, 15.0) if FULL else (8.0, 6.0, 2.0)
PROJECT = """
project: outages
streams:
  numbers:
    source: {type: kafka, brokers: "BROKERS", topic: numbers}
    format: {type: json, columns: "id bigint"}
flows:
  copied:
    sql: SELECT id FROM numbers
    sinks:
      - {type: lake, path: LAKE}
      - {type: kafka, brokers: "BROKERS", topic: copies, format: json, delivery: exactly_once}
defaults: {trigger: 500ms}
http: {port: 0}
state: STATE
"""


class Feeder:
    """Writes numbers without end; a number counts when the broker has acknowledged it."""

    def __init__(self, brokers: str) -> None:
        settings = {"bootstrap.servers": brokers, "acks": "all", "enable.idempotence": True, "linger.ms": 20,
                    "delivery.timeout.ms": 300_000, "log_level": 0}  # fmt: skip
        self._producer = Producer(settings)
        self._stopping = threading.Event()
        self.acknowledged: set[int] = set()
        self._thread = threading.Thread(target=self._feed, daemon=True)
        self._thread.start()

    def _feed(self) -> None:
        number = 0
        while not self._stopping.is_set():
            for _ in range(5):
                value = json.dumps({"id": number}).encode()
                self._producer.produce("numbers", value, on_delivery=self._noting(number))
                number += 1
            self._producer.poll(0)
            self._stopping.wait(0.1)

    def _noting(self, number: int) -> Callable[[Any, Any], None]:
        def note(error: Any, _message: Any) -> None:
            assert error is None, error
            self.acknowledged.add(number)

        return note

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()
        assert self._producer.flush(60) == 0


@dataclass
class Outages:
    """The engine under test and all around it."""

    kafka: Kafka
    state: StateDir
    lake: Path
    process: subprocess.Popen[bytes]
    feeder: Feeder
    copies: list[int] = field(default_factory=list)
    consumer: Any = None

    def seen(self) -> StatusReading:
        return read_status(self.state)

    def flow(self) -> dict[str, Any]:
        document = self.seen().document
        return document["flow_list"][0] if document else {"state": None, "reason": None, "batches": 0}

    def await_(self, condition: Callable[[], bool], seconds: float, what: str) -> float:
        began = time.monotonic()
        while not condition():
            assert self.process.poll() is None, "the engine has ended"
            assert time.monotonic() - began < seconds, f"not {what} after {seconds} s: {self.flow()}"
            time.sleep(0.1)
        return time.monotonic() - began

    def await_degraded(self, code: str, seconds: float = 120.0) -> float:
        def is_degraded() -> bool:
            flow = self.flow()
            return flow["state"] == "degraded" and flow["reason"]["code"] == code

        return self.await_(is_degraded, seconds, f"degraded with {code}")

    def await_running(self, seconds: float = 240.0) -> float:
        """Running again, and with new batches to show for it."""
        before = self.flow()["batches"]
        return self.await_(
            lambda: (flow := self.flow())["state"] == "running" and flow["batches"] > before, seconds, "running"
        )

    def take_copies(self) -> list[int]:
        """All committed records of the Kafka sink so far, read by a client that knows nothing of Headrace."""
        if self.consumer is None:
            settings = {"bootstrap.servers": self.kafka.address, "group.id": "checker", "log_level": 0,
                        "isolation.level": "read_committed", "enable.auto.commit": False}  # fmt: skip
            self.consumer = Consumer(settings)
            self.consumer.assign([TopicPartition("copies", number, 0) for number in range(2)])
        while messages := self.consumer.consume(10_000, timeout=0.5):
            self.copies += [json.loads(message.value())["id"] for message in messages if message.error() is None]
        return self.copies

    def check_once(self, seconds: float = 240.0) -> int:
        """Every number that was acknowledged by now arrives in both sinks, and none twice; how many that are."""
        wanted = set(self.feeder.acknowledged)

        def arrived() -> bool:
            return wanted <= set(self.take_copies()) and wanted <= set(self.rows())

        self.await_(arrived, seconds, "all there")
        for name, found in (("lake", self.rows()), ("kafka", self.take_copies())):
            twice = [number for number, times in Counter(found).items() if times > 1]
            assert twice == [], f"twice in {name}"
        return len(wanted)

    def rows(self) -> list[int]:
        found: list[int] = DeltaTable(str(self.lake)).to_pyarrow_table(columns=["id"])["id"].to_pylist()
        return found

    def group_position(self) -> int:
        """How many records the flow's consumer group says are read, asked as Kafka's own tools ask."""
        group = "headrace.outages.copied"
        request = [ConsumerGroupTopicPartitions(group)]
        found = self.kafka.admin().list_consumer_group_offsets(request)[group].result(30)
        return sum(max(0, part.offset) for part in found.topic_partitions)

    def family(self) -> list[psutil.Process]:
        engine = psutil.Process(self.process.pid)
        return [engine, *engine.children(recursive=True)]


def run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)


@contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    folder.mkdir()
    try:
        run("mount", "-t", "tmpfs", "-o", "size=24m", "headrace-test", str(folder))
    except (OSError, subprocess.CalledProcessError) as error:
        problem = ProjectError("service-unavailable", f"cannot mount a small disk: {error}", hint="run as root")
        if os.environ.get("CI") == "true":
            raise problem from error
        pytest.skip(str(problem))
    try:
        yield
    finally:
        run("umount", "-l", str(folder))


@pytest.fixture(scope="module")
def outages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outages]:
    problem = Kafka.problem()
    if problem is not None:
        if os.environ.get("CI") == "true":
            raise problem
        pytest.skip(str(problem))
    folder = tmp_path_factory.mktemp("outages")
    disk, lake = folder / "disk", folder / "lake"
    with Kafka() as kafka, small_disk(disk):
        kafka.create_topic("numbers", 2)
        kafka.create_topic("copies", 2)
        state = StateDir(disk / "state")
        text = PROJECT.replace("BROKERS", kafka.address).replace("LAKE", str(lake)).replace("STATE", str(state.root))
        (folder / "headrace.yaml").write_text(text)
        log = (folder / "engine.out").open("wb")
        command = [sys.executable, "-m", "headrace", "run", str(folder)]
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        feeder = Feeder(kafka.address)
        one = Outages(kafka, state, lake, process, feeder)
        try:
            one.await_(lambda: one.flow()["state"] == "running" and one.flow()["batches"] > 1, 420, "running")
            yield one
        finally:
            for member in one.family() if process.poll() is None else []:
                member.kill()
            process.wait()
            print((folder / "engine.out").read_text(errors="replace")[-6000:])
            feeder._stopping.set()


def test_broker_away(outages: Outages) -> None:
    began = time.monotonic()
    outages.kafka.stop()
    noticed = outages.await_degraded("broker-unreachable")
    assert not (outages.seen().document or {})["ready"]
    time.sleep(max(0.0, BROKER_AWAY - (time.monotonic() - began)))  # the outage itself
    outages.kafka.start()
    resumed = outages.await_running()
    print(
        f"\nbroker away {BROKER_AWAY:.0f} s: degraded after {noticed:.1f} s, running {resumed:.1f} s after its return"
    )
    print(f"{outages.check_once()} records once")


def test_disk_full(outages: Outages) -> None:
    filler = outages.state.root.parent / "filler"
    try:
        # without a buffer: one that does not fit any more would be written, and fail, once more at the close
        with filler.open("wb", buffering=0) as out, suppress(OSError):
            while True:
                out.write(b"\0" * 65536)
        noticed = outages.await_degraded("disk-full")
        time.sleep(DISK)
        assert outages.flow()["state"] == "degraded"
    finally:
        filler.unlink()
    resumed = outages.await_running()
    print(f"\ndisk full: degraded after {noticed:.1f} s, running {resumed:.1f} s after there was room again")
    print(f"{outages.check_once()} records once")


def test_read_only_state(outages: Outages) -> None:
    root = str(outages.state.root)
    # a mount of the folder on itself: files that the engine has open would keep the disk itself from being remounted
    run("mount", "--bind", root, root)
    try:
        run("mount", "-o", "remount,ro,bind", root)
        noticed = outages.await_degraded("state-unwritable")
        time.sleep(DISK)
        assert outages.flow()["state"] == "degraded"
    finally:
        run("mount", "-o", "remount,rw,bind", root)
    resumed = outages.await_running()
    run("umount", "-l", root)
    print(f"\nread-only: degraded after {noticed:.1f} s, running {resumed:.1f} s after it was writable again")
    print(f"{outages.check_once()} records once")


def test_engine_paused(outages: Outages) -> None:
    family = outages.family()
    for member in family:
        member.send_signal(signal.SIGSTOP)
    try:
        noticed = outages.await_(lambda: outages.seen().freshness == "stale", 120, "stale")
        time.sleep(max(0.0, PAUSED - noticed))
    finally:
        for member in family:
            member.send_signal(signal.SIGCONT)
    resumed = outages.await_running()
    print(f"\npaused {PAUSED:.0f} s: stale after {noticed:.1f} s, running {resumed:.1f} s after it went on")
    print(f"{outages.check_once()} records once")


def test_stopped_in_the_middle_of_a_batch_nothing_is_repeated_and_nothing_stays(outages: Outages) -> None:
    checkpoint = outages.state.current("copied").checkpoint
    outages.await_(checkpoint.in_flight, 60, "in a batch")
    family = outages.family()
    outages.process.send_signal(signal.SIGTERM)
    outages.process.wait(180)
    assert outages.process.returncode == 0
    assert not checkpoint.in_flight()
    _gone, alive = psutil.wait_procs(family, timeout=120)
    assert alive == [], "orphans"
    assert outages.seen().freshness == "no-engine"
    outages.feeder.stop()
