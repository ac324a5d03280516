"""Positions in topics of a real broker, asked without Spark."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer

from headrace.core.context import Context, ReadContext
from headrace.core.positions import (
    AtOffset,
    AtTime,
    Current,
    Earliest,
    Explicit,
    Latest,
    Position,
    Positions,
    ShiftBy,
    SplitScope,
    Target,
    parse_scope,
)
from headrace.sources.kafka import KafkaSource, complete_start

if TYPE_CHECKING:
    from headrace.testing.services import Kafka

CONTEXT = Context(Path("."), "state")
MINUTE = 60_000


def source(**options: Any) -> KafkaSource:
    return KafkaSource.model_validate({"brokers": "127.0.0.1:9092", "topic": "t", **options})


def test_a_start_goes_before_the_options_and_only_for_streams() -> None:
    start = {"t": {"0": 5}}
    reading = ReadContext(CONTEXT, stream="s", start=start)
    assert json.loads(source(start="latest").reader_options(reading)["startingOffsets"]) == start
    batch = ReadContext(CONTEXT, stream="s", streaming=False, start=start)
    assert source().reader_options(batch)["startingOffsets"] == "earliest"


def test_partitions_that_are_new_begin_at_their_earliest_record_and_old_ones_are_left_out() -> None:
    start = {"t": {"0": 5, "7": 1}, "gone": {"0": 3}}
    assert complete_start(start, {"t": 2, "new": 1}) == {"t": {"0": 5, "1": -2}, "new": {"0": -2}}


@pytest.mark.parametrize(
    ("options", "end", "mine"),
    [
        ({}, {"t": {"0": 5}}, True),
        ({}, {"other": {"0": 5}}, False),
        ({}, {"logOffset": 3}, False),
        ({}, 7, False),
        ({"topic": None, "pattern": "t.*"}, {"t1": {"0": 5}, "t2": {}}, True),
        ({"topic": None, "pattern": "t.*"}, {"t1": {"0": 5}, "x": {}}, False),
    ],
)
def test_an_end_of_a_batch_is_told_by_its_topics(options: dict[str, Any], end: Any, mine: bool) -> None:
    assert (source(**options).positions(CONTEXT).of_checkpoint(end) == end) is mine


def test_groups_are_named_after_project_and_flow() -> None:
    assert source().positions(CONTEXT).group("shop", "orders") == "headrace.shop.orders"
    assert source(group_prefix="team-a").positions(CONTEXT).group("shop", "orders") == "team-a.shop.orders"


@pytest.fixture(scope="module")
def now() -> int:
    return int(time.time() * 1000)


@pytest.fixture
def filled(kafka: Kafka, topic: Callable[..., str], now: int) -> str:
    """Ten records in partition 0, one a minute up to now; five in 1, all an hour old; none in 2."""
    name = topic(partitions=3)
    producer = Producer({"bootstrap.servers": kafka.address})
    for n in range(10):
        producer.produce(name, b"x", partition=0, timestamp=now - (9 - n) * MINUTE)
    for _ in range(5):
        producer.produce(name, b"x", partition=1, timestamp=now - 60 * MINUTE)
    assert producer.flush(30) == 0
    return name


@pytest.fixture
def known(kafka: Kafka, filled: str) -> Iterator[Positions]:
    found = source(brokers=kafka.address, topic=filled).positions(CONTEXT)
    yield found
    found.close()


@pytest.mark.service
def test_targets_are_offsets_within_what_there_is(known: Positions, filled: str, now: int) -> None:
    def at(target: Target, scope: SplitScope | None = None, current: Position | None = None) -> list[int]:
        found = known.resolve(target, current, scope or SplitScope())
        assert found is not None
        return [found[filled][str(p)] for p in range(3)]

    five_minutes_ago = datetime.fromtimestamp((now - 5 * MINUTE) / 1000, UTC)
    current = {filled: {"0": 4, "1": 2, "2": 0}}
    assert at(Earliest()) == [0, 0, 0]
    assert at(Latest()) == [10, 5, 0]
    assert at(AtTime(five_minutes_ago)) == [4, 5, 0], "the end where there is no record since"
    assert at(AtOffset(7)) == [7, 5, 0]
    assert at(ShiftBy(-3), current=current) == [1, 0, 0]
    assert at(ShiftBy(4), current=current) == [8, 5, 0]
    assert at(Current(), current=current) == [4, 2, 0]
    assert at(Explicit({filled: {0: 9, 1: -2}}), current=current) == [9, 0, 0]
    assert at(Latest(), parse_scope([f"{filled}:1"]), current) == [4, 5, 0]
    assert at(Latest(), parse_scope([f"{filled}:1"])) == [0, 5, 0], "the others begin where the source says"


@pytest.mark.service
def test_lag_is_in_records_and_in_seconds(known: Positions, filled: str) -> None:
    splits = known.measure({filled: {"0": 4, "1": 5, "2": 0}})
    assert [(s.partition, s.start, s.position, s.end, s.lag) for s in splits] == [
        (0, 0, 4, 10, 6),
        (1, 0, 5, 5, 0),
        (2, 0, 0, 0, 0),
    ]
    waited = splits[0].lag_s
    assert waited is not None
    assert 5 * 60 <= waited < 8 * 60, "the oldest unread record is five minutes old"
    assert [splits[1].lag_s, splits[2].lag_s] == [0.0, 0.0]
    assert {(s.lag, s.lag_s) for s in known.measure(None)} == {(None, None)}


@pytest.mark.service
def test_a_topic_made_again_has_another_identity(kafka: Kafka, known: Positions, filled: str) -> None:
    before = known.identities()
    admin = kafka.admin()
    admin.delete_topics([filled])[filled].result(30)
    until = time.monotonic() + 120
    while filled in admin.list_topics(timeout=60).topics and time.monotonic() < until:
        time.sleep(0.1)  # a topic goes by itself
    kafka.create_topic(filled, 3)
    after = known.identities()
    assert before.keys() == after.keys() == {filled}
    assert before != after
