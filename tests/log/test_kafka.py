"""A log in Kafka topics behaves as one in files."""

from __future__ import annotations

import os
import threading
import uuid
from pathlib import Path

import pytest
from tests.log.kit import ORDERS, changes, held

from headrace.core.errors import ProjectError
from headrace.core.options.log_topics import LogTopics
from headrace.log.folder import LogFolder
from headrace.log.kafka import KafkaLog
from headrace.log.log import LogCutError, Mark
from headrace.testing.services import Kafka

pytestmark = pytest.mark.service


@pytest.fixture
def logs(kafka: Kafka, tmp_path: Path) -> LogFolder:
    topics = LogTopics(f"t{uuid.uuid4().hex[:8]}", 1, {"bootstrap.servers": kafka.address, "log_level": "0"})
    return LogFolder(tmp_path / "log", topics)


def mark(batch: int, writer: str = "orders/endpoint") -> Mark:
    return Mark(writer, "g1", batch)


def test_segments_are_there_once_in_order_and_can_be_cut_off(logs: LogFolder) -> None:
    log = logs.define(ORDERS)
    assert isinstance(log, KafkaLog)
    assert (log.begin(), log.end(), log.after(0)) == (1, 0, [])
    long = [(number, os.urandom(500).hex()) for number in range(4000)]
    staging = log.staging(mark(0))
    parts = [part for task in (0, 1) for part in staging.stage(task, [changes(*long[task::2])])]
    segment = log.commit_parts(mark(0), parts)
    assert segment is not None
    assert max(int(part.name.partition("+")[2]) for part in segment.parts) > 1, "records of a megabyte at most"
    assert log.commit(mark(0), [changes((1, "again"))]) is None
    assert log.commit(mark(1), []) is None
    log.commit(mark(1), [changes((1, "paid"))])
    other = LogFolder(logs.root, logs.topics).open("orders", 1)
    assert (other.begin(), other.end(), [one.position for one in other.after(1)]) == (1, 2, [2])
    assert sorted(held(other)[0]) == sorted(long)
    assert held(other, 1) == [[(1, "paid")]]
    assert other.commit(mark(1), [changes((1, "paid"))]) is None
    other.commit(mark(2), [changes((1, "sent"))])  # fences the first, which goes on all the same
    log.commit(mark(3), [changes((1, "back"))])
    assert held(other, 2) == [[(1, "sent")], [(1, "back")]]
    log.cut(3)
    late = other.after(3)[0]
    for one in (log, other):
        assert (one.begin(), one.end(), len(one.after(3))) == (4, 4, 1)
        with pytest.raises(LogCutError):
            one.after(1)
    log.cut(4)
    with pytest.raises(LogCutError):
        list(other.changes(late))
    fresh = logs.open("orders", 1)
    assert (fresh.begin(), fresh.end(), fresh.after(4)) == (5, 4, [])
    assert fresh.commit(mark(3), [changes((1, "back"))]) is None
    assert fresh.commit(mark(4), [changes((1, "kept"))]) is not None
    assert held(log, 4) == [[(1, "kept")]]
    with pytest.raises(ProjectError) as elsewhere:
        LogFolder(logs.root).open("orders", 1)
    assert elsewhere.value.code == "log-in-kafka"
    logs.drop("orders", 1)
    assert logs.names() == []


def test_writers_who_race_each_get_a_position(logs: LogFolder) -> None:
    logs.define(ORDERS)

    def write(writer: str) -> None:
        log = logs.open("orders", 1)
        for batch in range(3):
            log.commit(mark(batch, writer), [changes((batch, writer))])
            log.commit(mark(batch, "both"), [changes((batch, "both"))])

    threads = [threading.Thread(target=write, args=(writer,)) for writer in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    log = logs.open("orders", 1)
    rows = sorted(row for segment in held(log) for row in segment)
    assert rows == sorted((batch, writer) for batch in range(3) for writer in ("a", "b", "both"))
    assert [segment.position for segment in log.after(0)] == list(range(1, 10))
