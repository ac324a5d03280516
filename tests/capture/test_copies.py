"""Whatever a source sends and wherever a capture dies: the log adds up to the tables, row for row."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.capture.copies import catch_up, open_copy
from headrace.core.schema import from_ddl
from headrace.core.tables import UNCHANGED, WEIGHT, CapturedBatch, RowChange, TableShape
from headrace.log.tables import TableLog
from headrace.store.tables.copy import TableCopy

SHAPES = {
    "a": TableShape(from_ddl("id bigint, x string, y decimal(9,2)"), ("id",)),
    "b": TableShape(from_ddl("k string, n int, x string"), ("k", "n")),
}
WIDER = {
    name: TableShape(shape.columns.append(pa.field("more", pa.int32())), shape.key) for name, shape in SHAPES.items()
}
Row = tuple[Any, ...]


@dataclass
class Model:
    """The tables as a source has them, and what a snapshot has sent of each."""

    tables: dict[str, dict[Row, Row]] = field(default_factory=lambda: {"a": {}, "b": {}})
    wide: bool = False

    @property
    def shapes(self) -> dict[str, TableShape]:
        return WIDER if self.wide else SHAPES


class Run:
    """A capture with a log and a copy in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = TableLog(folder / "log")
        self.copy = open_copy(folder / "copy", self.log)

    def take(self, taken: CapturedBatch, shapes: dict[str, TableShape], crash: bool) -> None:
        changes = self.copy.take(taken, shapes)
        sequence = self.log.commit(changes, taken.position, shapes, None, [], after=self.copy.sequence)
        if not crash:
            self.copy.commit(self.log.id() or "", sequence)

    def restart(self, lost: bool) -> None:
        self.copy.close()
        if lost:
            shutil.rmtree(self.folder / "copy")
        self.log = TableLog(self.folder / "log")
        self.copy = open_copy(self.folder / "copy", self.log)


def added_up(log: TableLog, shapes: dict[str, TableShape]) -> dict[str, set[Row]]:
    """The tables that the log adds up to; every commit on the way has each key at most once."""
    held: dict[str, Counter[Row]] = {name: Counter() for name in shapes}
    for segment in log.after(0, 10_000):
        for name, parts in segment.parts.items():
            for row in log.read(parts[0], shapes[name]).to_pylist():
                weight = row.pop(WEIGHT)
                held[name][tuple(row.values())] += weight
        for name, rows in held.items():
            assert set(rows.values()) <= {0, 1}
            width = [shapes[name].columns.get_field_index(key) for key in shapes[name].key]
            keys = Counter(tuple(row[at] for at in width) for row, weight in rows.items() if weight)
            assert not keys or max(keys.values()) == 1
    return {name: {row for row, weight in rows.items() if weight} for name, rows in held.items()}


TEXTS = st.sampled_from(["", "p", "q"])


@st.composite
def steps(draw: st.DrawFn) -> list[tuple[Any, ...]]:
    kinds = st.sampled_from(["put", "delete", "move", "part"])
    change = st.tuples(st.sampled_from("ab"), st.integers(0, 4), TEXTS, st.integers(0, 4), kinds)
    step = st.one_of(
        st.tuples(st.just("change"), st.lists(change, max_size=6)),
        st.tuples(st.just("snapshot"), st.sampled_from("ab"), st.integers(1, 3), st.booleans()),
        st.tuples(st.just("restart"), st.booleans()),
        st.tuples(st.just("crash")),
        st.tuples(st.just("widen")),
    )
    return draw(st.lists(step, max_size=12))


def key_of(table: str, number: int) -> Row:
    return (number,) if table == "a" else (f"k{number % 3}", number)


def row_of(model: Model, table: str, key: Row, text: str) -> Row:
    row = (*key, text, None) if table == "a" else (*key, text)
    return (*row, len(text)) if model.wide else row


def changes_of(model: Model, wanted: Sequence[tuple[str, int, str, int, str]]) -> list[RowChange]:
    """What a source says of changes that it makes; deletes of rows that are not there are said too."""
    said = []
    for table, number, text, other, what in wanted:
        rows, key = model.tables[table], key_of(table, number)
        row = row_of(model, table, key, text)
        if what == "delete":
            rows.pop(key, None)
            said.append(RowChange(table, None, key))
            continue
        if what == "move" and key in rows:
            target = key_of(table, other)
            row = row_of(model, table, target, text)
            del rows[key]
            said.append(RowChange(table, row, key))
            rows[target] = row
            continue
        if what == "part" and key in rows:
            place = 1 if table == "a" else 2
            row = (*rows[key][: place + 1], *row[place + 1 :])
            said.append(RowChange(table, (*row[:place], UNCHANGED, *row[place + 1 :])))
        else:
            said.append(RowChange(table, row))
        rows[key] = row
    return said


def snapshot(model: Model, table: str, pieces: int, bulk: bool) -> list[CapturedBatch]:
    """All rows of a table in some pieces, between a begin and an end."""
    rows, shape = list(model.tables[table].values()), model.shapes[table]
    taken = []
    for number in range(pieces):
        piece = rows[number::pieces]
        columns = [pa.array([row[at] for row in piece], kind.type) for at, kind in enumerate(shape.columns)]
        name = frozenset({table})
        taken.append(
            CapturedBatch(
                {"piece": number},
                changes=[] if bulk else [RowChange(table, row) for row in piece],
                rows={table: pa.Table.from_arrays(columns, schema=shape.columns)} if bulk else {},
                begins=name if number == 0 else frozenset(),
                ends=name if number == pieces - 1 else frozenset(),
            )
        )
    return taken


@settings(max_examples=20, deadline=None)
@given(steps())
def test_the_log_always_adds_up_to_the_tables(plan: list[tuple[Any, ...]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        model, run, crash = Model(), Run(Path(folder)), False
        for step in plan:
            match step:
                case ("change", wanted):
                    # a source that could not tell loses changes and sends all rows in a snapshot
                    run.take(CapturedBatch({}, changes_of(model, wanted)), model.shapes, crash)
                case ("snapshot", table, pieces, bulk):
                    crash = perform(run, model, snapshot(model, table, pieces, bulk), crash)
                case ("restart", lost):
                    run.restart(lost)
                case ("widen",) if not model.wide:
                    model.wide = True
                    model.tables = {
                        name: {key: (*row, None) for key, row in rows.items()} for name, rows in model.tables.items()
                    }
                    run.take(CapturedBatch({}), model.shapes, crash)
                case ("crash",):
                    crash = True
                    continue
            if crash and step[0] != "restart":
                run.restart(False)
            crash = False
            check(run, model)
        run.copy.close()


def perform(run: Run, model: Model, taken: list[CapturedBatch], crash: bool) -> bool:
    """A snapshot; with a crash before its last piece is in the copy, it begins again."""
    for piece in taken:
        run.take(piece, model.shapes, crash)
        if crash:
            run.restart(False)
            if not piece.ends:
                return perform(run, model, taken, False)
    return crash


def check(run: Run, model: Model) -> None:
    expected = {name: set(rows.values()) for name, rows in model.tables.items()}
    if run.log.end():
        assert added_up(run.log, model.shapes) == expected
    assert run.copy.sequence == run.log.end()
    for name, shape in model.shapes.items():
        found = [tuple(row.values()) for batch in run.copy.rows(name, shape) for row in batch.to_pylist()]
        assert len(found) == len(set(found))
        assert set(found) == expected[name]
        assert run.copy.counts().get(name, 0) == len(found)


def test_a_copy_of_another_log_is_made_again(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.take(CapturedBatch({}, [RowChange("a", (1, "x", None))]), SHAPES, crash=False)
    run.copy.close()
    shutil.rmtree(tmp_path / "log")
    log = TableLog(tmp_path / "log")
    copy = open_copy(tmp_path / "copy", log)
    assert (copy.sequence, copy.counts()) == (0, {})
    log.commit({}, {}, SHAPES, None, [])
    catch_up(copy, log)
    assert (copy.sequence, copy.log) == (1, log.id())
    copy.close()


def test_a_copy_that_is_behind_what_the_log_keeps_is_made_again(tmp_path: Path) -> None:
    log = TableLog(tmp_path / "log")
    behind = open_copy(tmp_path / "behind", log)
    run = Run(tmp_path)
    for number in range(3):
        run.take(CapturedBatch({}, [RowChange("a", (number, "x", None))]), SHAPES, crash=False)
        if number == 0:
            catch_up(behind, log)
    log = TableLog(tmp_path / "log")
    assert log.retain(3) == 3
    catch_up(behind, log)
    assert (behind.sequence, behind.counts()) == (3, {"a": 3})
    behind.close()
    run.copy.close()


def test_a_damaged_copy_is_made_again(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.take(CapturedBatch({}, [RowChange("a", (1, "x", None))]), SHAPES, crash=False)
    run.copy.close()
    (tmp_path / "copy" / "data.mdb").write_bytes(b"\x07" * 20_000)
    copy: TableCopy = open_copy(tmp_path / "copy", run.log)
    assert copy.counts() == {"a": 1}
    copy.close()
