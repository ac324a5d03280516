"""A sink that writes from Python ends the Python stage of the last steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from headrace.engine.flows.flow import FlowStarter, _ends_stage
from headrace.engine.letters.dead_letters import read_dead_letters
from headrace.engine.state.state import StateDir
from headrace.engine.supervise.runner import Runner
from headrace.plan.planner import make_plan
from headrace.project.loader import Project, load
from headrace.testing.services import Kafka

PROJECT = """
project: last
streams:
  events:
    source: {type: kafka, brokers: "BROKERS", topic: SOURCE}
    format: {type: raw, as: string}
flows:
  marked:
    before:
      events:
        - {type: fields, fields: {id: id}}
        - {type: deduplicate, key: [id], ttl: 1h, mark: repeat, when: id IS NOT NULL}
    sql: SELECT value, id, repeat, IF(id = '3', array('OTHER', 'TARGET'), array('TARGET')) AS topic FROM events
    after:
      - {type: document, set: {seen: {column: repeat}}}
      - {type: sql, sql: "SELECT value, id, topic FROM rows"}
    sinks:
      - {type: kafka, brokers: "BROKERS", topic: TARGET, topic_column: topic, key: id, key_in_value: false, format: raw,
         delivery: exactly_once}
"""
Records = list[tuple[bytes | None, bytes | None]]


class Bench:
    def __init__(self, folder: Path, kafka: Kafka, spark: Any, topics: list[str]) -> None:
        self.folder, self.kafka, self.spark = folder, kafka, spark
        self.source, self.target, self.other = topics
        text = PROJECT.replace("BROKERS", kafka.address)
        for name, topic in zip(("SOURCE", "TARGET", "OTHER"), topics, strict=True):
            text = text.replace(name, topic)
        (folder / "headrace.yaml").write_text(text)

    @property
    def project(self) -> Project:
        return load(self.folder)

    @property
    def state(self) -> StateDir:
        return StateDir.of(self.project.context)

    @property
    def starter(self) -> FlowStarter:
        return FlowStarter(self.project, self.state, self.spark, until_caught_up=True)

    def feed(self, *values: str) -> None:
        producer = Producer({"bootstrap.servers": self.kafka.address})
        for number, value in enumerate(values):
            producer.produce(self.source, value, partition=number % 2)
        assert producer.flush(30) == 0

    def run(self) -> Any:
        (done,) = Runner(self.starter, make_plan(self.project)).run(seconds=120)
        assert done.error is None
        return done

    def records(self, topic: str) -> Records:
        settings = {"bootstrap.servers": self.kafka.address, "group.id": "look", "isolation.level": "read_committed"}
        consumer = Consumer({**settings, "enable.partition.eof": True, "auto.offset.reset": "earliest"})
        consumer.assign([TopicPartition(topic, 0, 0)])
        found: Records = []
        while True:
            for message in consumer.consume(100, 0.2):
                if message.error() is not None:
                    consumer.close()
                    return sorted(found, key=str)
                found.append((message.key(), message.value()))


@pytest.fixture
def bench(tmp_path: Path, kafka: Kafka, topic: Any, spark: Any) -> Bench:
    return Bench(tmp_path, kafka, spark, [topic(partitions=2), topic(), topic()])


@pytest.mark.spark
@pytest.mark.service
def test_rows_are_written_once_and_those_that_fail_are_letters(bench: Bench) -> None:
    bench.feed('{"id":"1"}', '{"id":"2"}', '{"id":"3"}', "nonsense", '{"id":"1","x":1}')
    flow = make_plan(bench.project).flow("marked")
    assert _ends_stage(flow, bench.starter._stage(flow))
    done = bench.run()
    assert bench.records(bench.target) == [
        (b"1", b'{"id":"1","seen":false}'),
        (b"1", b'{"id":"1","x":1,"seen":true}'),
        (b"2", b'{"id":"2","seen":false}'),
        (b"3", b'{"id":"3","seen":false}'),
    ]
    assert [key for key, _ in bench.records(bench.other)] == [b"3"]
    # what the steps refuse does not count as given to the sink
    assert (done.rows_in, done.counters.rows_out) == (5, 4)
    (letter,) = read_dead_letters(bench.state.dead_letters).to_pylist()
    assert (letter["reason"], letter["stream"]) == ("not-json", "after.0")


@pytest.mark.spark
@pytest.mark.service
def test_a_batch_that_runs_again_is_not_doubled(bench: Bench) -> None:
    bench.feed(*(f'{{"id":"{n % 30}"}}' for n in range(40)))
    bench.run()
    before = bench.records(bench.target)
    assert len(before) == 40
    checkpoint = Path(str(bench.state.current("marked").checkpoint_folder))
    (checkpoint / "commits" / "0").unlink()
    (checkpoint / "commits" / ".0.crc").unlink(missing_ok=True)
    bench.feed('{"id":"5"}')
    bench.run()
    after = bench.records(bench.target)
    assert len(after) == 41
    assert (b"5", b'{"id":"5","seen":true}') in after


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("delivery: exactly_once", "delivery: at_least_once"),
        ("format: raw", "format: json"),
        ("key: id,", "key: id, key_format: json,"),
        ("    sinks:\n", "    sinks:\n      - {type: console}\n"),
        ('"SELECT value, id, topic FROM rows"', '"SELECT value, upper(id) AS id, topic FROM rows"'),
    ],
)  # fmt: skip
@pytest.mark.spark
@pytest.mark.service
def test_other_sinks_and_steps_do_not_end_the_stage(bench: Bench, old: str, new: str) -> None:
    text = (bench.folder / "headrace.yaml").read_text()
    assert old in text
    (bench.folder / "headrace.yaml").write_text(text.replace(old, new))
    flow = make_plan(bench.project).flow("marked")
    assert not _ends_stage(flow, bench.starter._stage(flow))
