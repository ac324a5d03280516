"""Behaviour of every kind of sink that has a capability, over all kinds that have it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from tests.sinks.conftest import Desk
from tests.sinks.trials import COLUMNS, KEY, Trial

from headrace.core.capabilities import (
    BuildsCandidate,
    Candidate,
    HoldsReport,
    HoldsView,
    KeepsLakeTable,
    ReadableAsStream,
    Rewind,
    Rewindable,
    candidate_effect,
    rewind_effect,
    sink_of_view,
)
from headrace.core.endpoints import OLD, OP, Op
from headrace.core.kinds import kinds

pytestmark = pytest.mark.spark
Factory = Callable[[pytest.FixtureRequest, Path], Trial]


def _factory(kind: str) -> Factory | None:
    return getattr(import_module(f"tests.sinks.test_{kind}"), "trial", None)


def _with(*capabilities: type) -> list[Any]:
    """All kinds with a capability and a trial, as parameters that need a server where the trial does."""
    able = [name for name, kind in kinds("sinks").items() if issubclass(kind, capabilities or object)]
    found = [(name, factory) for name in able if (factory := _factory(name)) is not None]
    return [pytest.param(factory, id=name, marks=getattr(factory, "pytestmark", ())) for name, factory in found]


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path, state=str(tmp_path / "state"))


@pytest.fixture
def trial(request: pytest.FixtureRequest, tmp_path: Path) -> Trial:
    factory: Factory = request.param
    return factory(request, tmp_path)


def frame(spark: Any, *notes: str) -> Any:
    """A row per note: its region is the first letter, its id the number after it."""
    return spark.createDataFrame([_row(note) for note in notes], COLUMNS).repartition(2)


def _row(note: str) -> tuple[str, int, str, datetime]:
    at = datetime(2026, 1, 31, tzinfo=UTC) + timedelta(seconds=sum(n * ord(letter) for n, letter in enumerate(note, 1)))
    return note[0], int(note[1]), note, at


def test_every_kind_that_holds_something_has_a_trial() -> None:
    able = HoldsView, HoldsReport, Rewindable, BuildsCandidate
    assert [name for name, kind in kinds("sinks").items() if issubclass(kind, able) and _factory(name) is None] == []


@pytest.mark.parametrize("trial", _with(), indirect=True)
def test_a_repeated_batch_is_written_once(spark: Any, trial: Trial, desk: Desk) -> None:
    for _ in range(2):
        trial.sink().write_batch(frame(spark, "a1", "b1", "a2"), desk.batch(0))
    trial.sink().write_batch(frame(spark, "c1"), desk.batch(1))
    trial.sink().write_batch(frame(spark, "c1"), desk.batch(1))
    if trial.notes is not None and trial.sink().guarantee in ("exactly_once", "idempotent"):
        assert sorted(trial.notes()) == ["a1", "a2", "b1", "c1"]
    assert desk.letters() == []


@pytest.mark.parametrize("trial", _with(HoldsView), indirect=True)
def test_a_view_is_held_by_its_key(spark: Any, trial: Trial, desk: Desk) -> None:
    life: list[tuple[list[tuple[Op, str, str | None]], list[str]]] = [
        ([(Op.INSERT, "a1", None), (Op.INSERT, "b1", None), (Op.INSERT, "a2", None)], ["a1", "a2", "b1"]),
        ([(Op.UPDATE, "a1-new", "a1"), (Op.DELETE, "b1", "b1")], ["a1-new", "a2"]),
        ([(Op.INSERT, "b1-again", None), (Op.DELETE, "a2", "a2")], ["a1-new", "b1-again"]),
    ]
    for number, (changes, expected) in enumerate(life):
        rows = [(*_row(note), int(op), None if old is None else _row(old)) for op, note, old in changes]
        shape = f"{COLUMNS}, {OP} tinyint, {OLD} struct<{COLUMNS}>"
        for _ in range(2):
            held = sink_of_view(trial.sink(), KEY)
            held.write_changes(spark.createDataFrame(rows, shape).repartition(2), KEY, desk.batch(number))
        if trial.notes is not None:
            assert sorted(trial.notes()) == expected


@pytest.mark.parametrize("trial", _with(HoldsReport), indirect=True)
def test_a_report_replaces_that_of_the_run_before(spark: Any, trial: Trial, desk: Desk) -> None:
    assert trial.notes is not None
    for number, notes in enumerate([("a1", "a2"), ("b1",), ("a1", "c1")]):
        for _ in range(2):
            sink = trial.sink()
            assert isinstance(sink, HoldsReport)
            sink.write_report(frame(spark, *notes), desk.batch(number))
        assert sorted(trial.notes()) == sorted(notes)


@pytest.mark.parametrize("trial", _with(Rewindable), indirect=True)
def test_a_rewind_removes_the_rows_of_later_batches(spark: Any, trial: Trial, desk: Desk) -> None:
    assert trial.notes is not None
    for number, note in enumerate(("a1", "b1", "c1")):
        trial.sink().write_batch(frame(spark, note), desk.batch(number, generation="g1"))
    context = desk.batch().context
    rewind = Rewind("flow", "sink", context, ("g1", 0), 2, "g2-x")
    assert "2 records are read again" in rewind_effect(trial.sink(), rewind, replace=True)
    for _ in range(2):
        sink = trial.sink()
        assert isinstance(sink, Rewindable)
        sink.take_back(rewind)
        assert sorted(trial.notes()) == ["a1"]
    trial.sink().write_batch(frame(spark, "b1", "d1"), desk.batch(0, generation="g2-x"))
    assert sorted(trial.notes()) == ["a1", "b1", "d1"]


@pytest.mark.parametrize("trial", _with(BuildsCandidate), indirect=True)
def test_a_candidate_replaces_all_rows_at_the_switch(spark: Any, trial: Trial, desk: Desk) -> None:
    assert trial.notes is not None
    trial.sink().write_batch(frame(spark, "a1", "b1"), desk.batch(0, generation="g1"))
    candidate = Candidate("flow", "sink", "g2-x", desk.batch().context, batch=1)
    assert candidate_effect(trial.sink(), candidate)
    for number, note in enumerate(("a1-new", "c1")):
        for _ in range(2):
            filled = _builds(trial).candidate_sink(candidate)
            filled.write_batch(frame(spark, note), desk.batch(number, generation="g2-x"))
    assert sorted(trial.notes()) == ["a1", "b1"]
    for step in (lambda: _builds(trial).publish(candidate, spark), lambda: _builds(trial).drop_candidate(candidate)):
        for _ in range(2):
            step()
            assert sorted(trial.notes()) == ["a1-new", "c1"]


def _builds(trial: Trial) -> BuildsCandidate:
    sink = trial.sink()
    assert isinstance(sink, BuildsCandidate)
    return sink


@pytest.mark.parametrize("trial", _with(BuildsCandidate), indirect=True)
def test_an_abandoned_candidate_leaves_nothing(spark: Any, trial: Trial, desk: Desk) -> None:
    assert trial.notes is not None
    trial.sink().write_batch(frame(spark, "a1"), desk.batch(0, generation="g1"))
    candidate = Candidate("flow", "sink", "g2-x", desk.batch().context)
    _builds(trial).candidate_sink(candidate).write_batch(frame(spark, "b1"), desk.batch(0, generation="g2-x"))
    for _ in range(2):
        _builds(trial).drop_candidate(candidate)
    trial.sink().write_batch(frame(spark, "c1"), desk.batch(1, generation="g1"))
    assert sorted(trial.notes()) == ["a1", "c1"]


@pytest.mark.parametrize("trial", _with(KeepsLakeTable), indirect=True)
def test_a_lake_table_is_where_the_sink_says(spark: Any, trial: Trial, desk: Desk) -> None:
    sink = trial.sink()
    assert isinstance(sink, KeepsLakeTable)
    sink.write_batch(frame(spark, "a1"), desk.batch(0))
    path = desk.batch().context.path(sink.lake_path)
    assert [row.note for row in spark.read.format("delta").load(path).collect()] == ["a1"]


@pytest.mark.parametrize("trial", _with(ReadableAsStream), indirect=True)
def test_a_stream_that_reads_there_meets_the_sink(trial: Trial, desk: Desk) -> None:
    sink = trial.sink()
    assert isinstance(sink, ReadableAsStream)
    places = sink.places(desk.batch().context, {})
    assert places
    assert all(place.meets(place) for place in places)
