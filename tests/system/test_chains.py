"""Flows that read what others write, run until all have caught up."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.system.conftest import RunProject, consume, produce

if TYPE_CHECKING:
    from headrace.testing.services import Kafka

pytestmark = pytest.mark.spark

# in the order in which they must not run; the last one feeds itself until a number is as long as three signs
FILES = """
project: chain
streams:
  second: {source: {type: files, path: "{none,out/second}", missing: wait}, format: {type: json, columns: "n int"}}
  first: {source: {type: files, path: "{in,out/first}", missing: wait}, format: {type: json, columns: "n int"}}
  start: {source: {type: files, path: start.json}, format: {type: json, columns: "n int"}}
flows:
  third: {sql: SELECT n + 1 AS n FROM second, sinks: [{type: files, path: out/third, contains: json}]}
  second_step: {sql: SELECT n + 1 AS n FROM first, sinks: [{type: files, path: out/second, contains: json}]}
  first_step: {sql: SELECT n + 1 AS n FROM start, sinks: [{type: files, path: out/first, contains: json}]}
"""
KAFKA = """
project: chain
streams:
  a: {{source: {{type: kafka, brokers: "{brokers}", topic: {a}}}, format: {{type: raw, as: string}}}}
  b: {{source: {{type: kafka, brokers: "{brokers}", topic: {b}}}, format: {{type: raw, as: string}}}}
  c: {{source: {{type: kafka, brokers: "{brokers}", topic: {c}}}, format: {{type: raw, as: string}}}}
sinks:
  topics:
    type: kafka
    brokers: "{brokers}"
    topic: {d}
    topic_column: topic
    key: key
    key_in_value: false
    format: raw
    delivery: exactly_once
flows:
  from_c: {{sql: "SELECT '{d}' AS topic, 'k' AS key, concat(value, 'd') AS value FROM c", sinks: [topics]}}
  from_b:
    sql: |
      SELECT if(length(value) < 5, '{b}', '{c}') AS topic, 'k' AS key, concat(value, 'b') AS value FROM b
    sinks: [topics]
  from_a: {{sql: "SELECT '{b}' AS topic, 'k' AS key, concat(value, 'a') AS value FROM a", sinks: [topics]}}
"""


def test_a_chain_over_files_ends_when_its_last_flow_has_read_all(tmp_path: Path, run_project: RunProject) -> None:
    (tmp_path / "headrace.yaml").write_text(FILES)
    (tmp_path / "start.json").write_text('{"n": 1}\n{"n": 2}\n')
    run_project(tmp_path)
    lines = [line for file in (tmp_path / "out/third").glob("*.json") for line in file.read_text().splitlines()]
    assert sorted(json.loads(line)["n"] for line in lines) == [4, 5]


@pytest.mark.service
def test_a_chain_with_a_circle_over_kafka(
    tmp_path: Path, run_project: RunProject, kafka: Kafka, topic: Callable[..., str]
) -> None:
    names = {name: topic(partitions=1) for name in "abcd"}
    (tmp_path / "headrace.yaml").write_text(KAFKA.format(brokers=kafka.address, **names))
    produce(kafka, names["a"], [b"x", b"yyy"])
    run_project(tmp_path)
    found = consume(kafka, names["d"])
    assert sorted(one.value().decode() for one in found) == ["xabbbbd", "yyyabbd"]
    assert {one.key() for one in found} == {b"k"}
