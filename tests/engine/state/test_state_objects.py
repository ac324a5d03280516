"""What is kept beside the checkpoints, on an object store: the client's own store in memory, without Spark."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from obstore.store import MemoryStore

from headrace.core.files import objects
from headrace.core.files.object_store import ObjectStore
from headrace.core.files.objects import ObjectPath
from headrace.core.files.state_files import write_atomically
from headrace.engine.inputs.heartbeat import heartbeat_file, read_heartbeat, write_heartbeat
from headrace.engine.letters.dead_letter_index import DeadLetterFilter, DeadLetterIndex
from headrace.engine.letters.dead_letters import DeadLetterWriter, forget_batch, read_dead_letters
from headrace.engine.letters.late_rows import LateRowWriter, read_late_rows
from headrace.engine.observe.housekeeping import merge_files, remove_old_generations
from headrace.engine.observe.probes import ClosedLetterCounter, FileCounter
from headrace.engine.positions.positions import PositionLog, known_batch_ends, log_file, read_log
from headrace.engine.state.batch_clock import BatchTimes
from headrace.engine.state.state import StateDir
from headrace.engine.supervise.health import Health, check_writable


@pytest.fixture
def state(monkeypatch: pytest.MonkeyPatch) -> StateDir:
    store = MemoryStore()
    monkeypatch.setattr(objects, "_client_of", lambda _store, _bucket: store)
    return StateDir(ObjectPath.of("s3://bucket/state", ObjectStore()))


def batch(state: StateDir, number: int, *, done: bool = True) -> None:
    """What Spark leaves of a batch."""
    folder = state.current("copies").checkpoint_folder
    said = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 1, "conf": {}})
    write_atomically(folder / "offsets" / str(number), f'v1\n{said}\n{{"at": {number}}}'.encode())
    if done:
        write_atomically(folder / "commits" / str(number), b"v1\n{}")


def test_generations_are_made_switched_and_removed(state: StateDir) -> None:
    generations = state.generations("copies")
    assert generations.current() is None
    made = [state.current("copies")]
    for _ in range(3):
        made.append(generations.make("asked for"))
        generations.switch(made[-1])
    batch(state, 0)
    batch(state, 1, done=False)
    assert state.current("copies") == made[-1]
    assert state.current("copies").checkpoint.in_flight()
    assert [one.id for one in generations.all()] == [one.id for one in made]
    assert remove_old_generations(generations, timedelta(0)) == [made[0].id, made[1].id]
    assert [one.id for one in generations.all()] == [made[2].id, made[3].id]


def test_letters_are_kept_listed_closed_and_counted(state: StateDir) -> None:
    folder = state.dead_letters
    for generation, first in (("g1-a", 0), ("g2-b", 10)):
        box = DeadLetterWriter(folder, "copies", "orders", generation)
        for number in range(first, first + 10):
            box.add("malformed", "no number", {"offset": number}, f"record {number}".encode())
        box.flush()
    book = DeadLetterIndex(folder)
    shelf = book.read()
    assert DeadLetterFilter(flow="copies").of(shelf.index).num_rows == 20
    assert b"record 13" in pa.concat_tables(shelf.fetch(shelf.index))["value"].to_pylist()
    with book.history.lock():
        book.history.append("discarded", shelf.index.slice(0, 3))
        book.history.append("replayed", shelf.index.slice(3, 1), replay="r1")
    assert DeadLetterFilter().of(book.read("copies").index).num_rows == 16
    assert read_dead_letters(folder).num_rows == 20
    counter, closed = FileCounter(folder, "reason"), ClosedLetterCounter(folder)
    for meter in (counter, closed, counter, closed):
        meter.measure()
    assert (counter.counts, closed.of("copies")) == ({"copies": {"malformed": 20}}, 4)
    assert merge_files(folder / "copies", book.read_without_status().schema) == 0, "nobody could be asked to wait"


def test_what_a_batch_put_aside_is_forgotten_when_it_runs_again(
    state: StateDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (4, 5):
        monkeypatch.setattr("headrace.engine.letters.dead_letters.running_batch", lambda number=number: number)
        box = DeadLetterWriter(state.dead_letters, "copies", "orders", "g1-a")
        box.add("malformed", "", {"offset": number}, b"x")
        box.flush()
    forget_batch(state.dead_letters, "copies", "g1-a", 5)
    assert read_dead_letters(state.dead_letters)["batch"].to_pylist() == [4]


def test_late_rows_are_kept_once_however_often_the_batch_runs(state: StateDir) -> None:
    rows = pa.RecordBatch.from_pylist([{"at": datetime(2026, 1, 1, tzinfo=UTC), "id": 1}])
    for _ in range(2):
        box = LateRowWriter(state.late, "counts", "orders", "g1-a")
        box.add(rows, "at", [{"offset": 7}], BatchTimes(3, 0, 0, 0))
        box.flush()
    assert read_late_rows(state.late)["batch"].to_pylist() == [3]


def test_positions_are_logged_every_ten_seconds_and_stay_small(state: StateDir) -> None:
    now = [1_000_000.0]
    log = PositionLog(state, max_bytes=2000, clock=lambda: now[0])
    flow: Any = SimpleNamespace(name="copies")
    for number in range(40):
        batch(state, number)
        log.batch_done(flow, {"sources": []})
        now[0] += 5
    generation = state.current("copies")
    assert [moment.batch for moment in read_log(generation)][-3:] == [34, 36, 38]
    assert log_file(generation).stat().st_size < 2100
    assert known_batch_ends(generation).keys() == set(range(40))


def test_heartbeats_and_health(state: StateDir) -> None:
    write_heartbeat(state, "copies", "orders", 5)
    current = state.current("copies").id
    assert read_heartbeat(heartbeat_file(state, "copies", "orders"), current) == 5
    assert check_writable(state.root) is None
    assert [one.name for one in state.root.rglob(".probe*")] == []
    project: Any = SimpleNamespace()
    with state.lock():
        assert Health(project, state).guard.problem() is None
