"""Positions on their way to consumer groups: late is fine, lost or in the way is not."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.engine.positions.test_rewind import Place, ShelfPositions

from headrace.core.errors import ProjectError
from headrace.core.positions import Position
from headrace.engine.positions.consumer_groups import GroupCommitter


class Board:
    """What was published; it can be away for a while."""

    def __init__(self) -> None:
        self.away = 0
        self.tries = 0
        self.seen: list[tuple[str, int]] = []
        self.gate = threading.Event()
        self.gate.set()

    def publish(self, _known: ShelfPositions, group: str, position: Position) -> None:
        self.gate.wait(120)
        self.tries += 1
        if self.tries <= self.away:
            raise ProjectError("broker-unreachable", "no Kafka broker answers")
        self.seen.append((group, position["shelf"]["0"]))


@pytest.fixture
def board(monkeypatch: pytest.MonkeyPatch) -> Iterator[Board]:
    made = Board()
    monkeypatch.setattr(ShelfPositions, "publish", lambda *given: made.publish(*given))
    monkeypatch.setattr(ShelfPositions, "group", lambda _known, project, flow: f"headrace.{project}.{flow}")
    yield made
    made.gate.set()


def test_the_newest_position_is_committed_and_a_batch_never_waits(tmp_path: Path, board: Board) -> None:
    place = Place(tmp_path)
    place.batches(20)
    committer = GroupCommitter("shop", place.context, place.state)
    board.gate.clear()
    began = time.monotonic()
    committer.batch_done(place.flow, {})
    for end in (30, 40, 50):
        place.batches(end)
        committer.batch_done(place.flow, {})
    assert time.monotonic() - began < 60, "the broker has not answered yet"
    board.gate.set()
    committer.close()
    assert board.seen[-1] == ("headrace.shop.reads", 50)
    assert len(board.seen) <= 3, "several batches are one commit"


def test_a_broker_that_was_away_gets_it_when_it_is_back(tmp_path: Path, board: Board) -> None:
    place = Place(tmp_path)
    place.batches(20)
    board.away = 2
    committer = GroupCommitter("shop", place.context, place.state)
    committer.batch_done(place.flow, {})
    committer.close()
    assert board.seen == [("headrace.shop.reads", 20)]


def test_closing_does_not_wait_for_ever(tmp_path: Path, board: Board) -> None:
    place = Place(tmp_path)
    place.batches(20)
    board.away = 1_000
    committer = GroupCommitter("shop", place.context, place.state, patience=1.0)
    committer.batch_done(place.flow, {})
    began = time.monotonic()
    committer.close()
    assert time.monotonic() - began < 60
    assert board.seen == []
