"""Positions are committed to consumer groups late, but are not lost and do not block a batch."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.engine.positions.test_rewind import RewindSetup, ShelfPositions

from headrace.core.errors import ProjectError
from headrace.core.positions import Position
from headrace.engine.positions.consumer_groups import GroupCommitter


class FakeBroker:
    """Stores published positions; the first `failures` calls fail."""

    def __init__(self) -> None:
        self.failures = 0
        self.calls = 0
        self.published: list[tuple[str, int]] = []
        self.gate = threading.Event()
        self.gate.set()

    def publish(self, _known: ShelfPositions, group: str, position: Position) -> None:
        self.gate.wait(120)
        self.calls += 1
        if self.calls <= self.failures:
            raise ProjectError("broker-unreachable", "no Kafka broker answers")
        self.published.append((group, position["shelf"]["0"]))


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeBroker]:
    fake = FakeBroker()
    monkeypatch.setattr(ShelfPositions, "publish", lambda *arguments: fake.publish(*arguments))
    monkeypatch.setattr(ShelfPositions, "group", lambda _known, project, flow: f"headrace.{project}.{flow}")
    yield fake
    fake.gate.set()


def test_the_newest_position_is_committed_and_a_batch_never_waits(tmp_path: Path, broker: FakeBroker) -> None:
    setup = RewindSetup(tmp_path)
    setup.batches(20)
    committer = GroupCommitter("shop", setup.context, setup.state)
    broker.gate.clear()
    start = time.monotonic()
    committer.batch_done(setup.flow, {})
    for end in (30, 40, 50):
        setup.batches(end)
        committer.batch_done(setup.flow, {})
    assert time.monotonic() - start < 60, "the broker has not answered yet"
    broker.gate.set()
    committer.close()
    assert broker.published[-1] == ("headrace.shop.reads", 50)
    assert len(broker.published) <= 3, "several batches are one commit"


def test_a_broker_that_was_away_gets_it_when_it_is_back(tmp_path: Path, broker: FakeBroker) -> None:
    setup = RewindSetup(tmp_path)
    setup.batches(20)
    broker.failures = 2
    committer = GroupCommitter("shop", setup.context, setup.state)
    committer.batch_done(setup.flow, {})
    committer.close()
    assert broker.published == [("headrace.shop.reads", 20)]


def test_closing_does_not_wait_for_ever(tmp_path: Path, broker: FakeBroker) -> None:
    setup = RewindSetup(tmp_path)
    setup.batches(20)
    broker.failures = 1_000
    committer = GroupCommitter("shop", setup.context, setup.state, patience=1.0)
    committer.batch_done(setup.flow, {})
    start = time.monotonic()
    committer.close()
    assert time.monotonic() - start < 60
    assert broker.published == []
