from __future__ import annotations

import csv
import gzip
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from tests.errors import code_of
from tests.sinks.trials import Trial

from headrace.core.context import Batch, Context
from headrace.sinks import _publish
from headrace.sinks.files import FilesSink


def sink(**options: Any) -> FilesSink:
    return FilesSink.model_validate({"type": "files", "path": "out/orders"} | options)


def batch(root: Path, number: int = 0, generation: str = "g1") -> Batch:
    return Batch("orders", generation, number, "files", "append", Context(root, "state"))


def names(root: Path) -> list[str]:
    return sorted(
        str(path.relative_to(root / "out/orders")) for path in (root / "out/orders").rglob("*") if path.is_file()
    )


def ids(root: Path) -> list[int]:
    folder = root / "out/orders"
    return sorted(ds.dataset(folder, format="parquet").to_table().column("id").to_pylist()) if folder.exists() else []


def test_places_that_cannot_be_written_are_refused(tmp_path: Path) -> None:
    context = Context(tmp_path, "state")
    sink().check(context)
    assert code_of(lambda: sink(path="s3://bucket/orders").check(context)) == "files-not-local"
    (tmp_path / "out").mkdir()
    (tmp_path / "out/orders").write_text("a file")
    assert code_of(lambda: sink().check(context)) == "not-a-folder"


def test_updates_and_unknown_columns_are_refused(tmp_path: Path) -> None:
    context = Context(tmp_path, "state")
    assert code_of(lambda: sink().check_rows(context, ["id"], "update", None)) == "files-append-only"
    assert (
        code_of(lambda: sink(partition_by=["dta"]).check_rows(context, ["id", "dt"], "append", None))
        == "unknown-column"
    )
    sink(partition_by=["dt"]).check_rows(context, ["id", "dt"], "append", None)


@pytest.mark.spark
def test_names_tell_flow_generation_and_batch(spark: Any, tmp_path: Path) -> None:
    for number in range(3):
        sink().write_batch(spark.range(number * 10, number * 10 + 10, numPartitions=1), batch(tmp_path, number))
    assert names(tmp_path) == [f"orders-files-g1-{number:08d}-0000.zstd.parquet" for number in range(3)]
    assert ids(tmp_path) == list(range(30))
    manifests = list((tmp_path / "out/.orders.headrace/commits").iterdir())
    assert [manifest.name for manifest in manifests] == ["orders-files-g1-00000002.json"]
    assert not list((tmp_path / "out/.orders.headrace/staging").iterdir())


@pytest.mark.spark
def test_a_replayed_batch_is_there_once_and_a_new_generation_writes_again(spark: Any, tmp_path: Path) -> None:
    rows = spark.range(10)
    sink().write_batch(rows, batch(tmp_path))
    sink().write_batch(rows, batch(tmp_path))
    assert ids(tmp_path) == list(range(10))
    sink().write_batch(rows, batch(tmp_path, generation="g2"))
    assert ids(tmp_path) == sorted([*range(10), *range(10)])


@pytest.mark.spark
def test_an_empty_batch_leaves_no_file(spark: Any, tmp_path: Path) -> None:
    for contains in ("parquet", "json", "csv"):
        sink(path=f"out/{contains}", contains=contains, compression="gzip").write_batch(spark.range(0), batch(tmp_path))
        assert not (tmp_path / "out" / contains).exists()


@pytest.mark.spark
def test_json_and_csv_are_read_back_by_others(spark: Any, tmp_path: Path) -> None:
    rows = spark.sql("SELECT id, concat('n', id) AS `driver.name`, null AS nothing FROM range(0, 3, 1, 1)")
    sink(contains="json", compression="gzip").write_batch(rows, batch(tmp_path))
    (name,) = names(tmp_path)
    lines = gzip.decompress((tmp_path / "out/orders" / name).read_bytes()).splitlines()
    assert json.loads(lines[1]) == {"id": 1, "driver": {"name": "n1"}, "nothing": None}
    sink(contains="csv", path="out/csv", rows_per_file=2).write_batch(rows.select("id"), batch(tmp_path))
    found = [list(csv.reader(path.open())) for path in sorted((tmp_path / "out/csv").iterdir())]
    assert found == [[["id"], ["0"], ["1"]], [["id"], ["2"]]]


@pytest.mark.spark
def test_partition_columns_become_folders(spark: Any, tmp_path: Path) -> None:
    rows = spark.sql("SELECT id, concat('2026-01-0', id % 2 + 1) AS dt FROM range(0, 10, 1, 1)")
    sink(partition_by=["dt"]).write_batch(rows, batch(tmp_path))
    folder = tmp_path / "out/orders"
    assert sorted(path.name for path in folder.iterdir()) == ["dt=2026-01-01", "dt=2026-01-02"]
    table = ds.dataset(folder, format="parquet", partitioning="hive").to_table()
    assert sorted(table.column("id").to_pylist()) == list(range(10))
    assert all(pq.read_metadata(folder / name).num_rows == 5 for name in names(tmp_path))


LINES = [
    ("dev.raw", '{"a": 1.50,"t":"\\n"}'), ("dev.log", "é"), ("dev.log", ""), ("dev.raw", "x\ny"), ("dev.raw", None),
    (None, "1"), ("../up", "2"), ("a/b", "3"), (".hidden", "4"), ("", "5"), ("x=y", "6"), ("dev.raw", "x\r"),
]  # fmt: skip


def lines(root: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name in names(root):
        data = (root / "out/orders" / name).read_bytes()
        text = (gzip.decompress(data) if name.endswith("gz") else data).decode()
        found.setdefault(str(Path(name).parent), []).extend(text.splitlines())
    return found


@pytest.mark.spark
def test_lines_in_folders_and_nothing_silently_dropped(spark: Any, desk: Any, tmp_path: Path) -> None:
    rows = spark.createDataFrame([(*row, "key") for row in LINES], "topic string, value string, key string").coalesce(1)
    topics = sink(contains="lines", folder_column="topic")
    for _ in range(2):
        topics.write_batch(rows, desk.batch())
        assert lines(tmp_path) == {"dev.raw": [LINES[0][1]], "dev.log": ["é", ""]}
    letters = desk.letters()
    reasons = ["line-break", "no-value", *["bad-folder-name"] * 6, "line-break"]
    assert sorted(letter["reason"] for letter in letters) == sorted(reasons)
    assert {json.loads(letter["value"])["key"] for letter in letters} == {"key"}
    assert not list((tmp_path / "out/.orders.headrace/staging").iterdir())
    # a batch that died before it counted makes the same letters again
    (tmp_path / "out/.orders.headrace/commits/flow-sink-g1-00000000.json").unlink()
    topics.write_batch(rows, desk.batch())
    assert len(desk.letters()) == len(letters)
    sink(contains="lines", compression="gzip").write_batch(rows.limit(3), desk.batch(1))
    assert lines(tmp_path)["."] == [LINES[0][1], "é", ""]


@pytest.mark.spark
def test_a_line_goes_into_all_folders_of_a_list(spark: Any, desk: Any, tmp_path: Path) -> None:
    lists = [("a", ["dev.raw", "dev.log"]), ("b", ["dev.log"]), ("c", []), ("d", None), ("e", ["dev.raw", None])]
    rows = spark.createDataFrame(lists, "value string, topics array<string>").coalesce(1)
    sink(contains="lines", folder_column="topics").write_batch(rows, desk.batch())
    assert lines(tmp_path) == {"dev.raw": ["a", "e"], "dev.log": ["a", "b"]}
    assert [letter["reason"] for letter in desk.letters()] == ["bad-folder-name"] * 3


def test_options_of_lines_are_checked(tmp_path: Path) -> None:
    for bad in ({"folder_column": "topic"}, {"contains": "lines", "partition_by": ["x"]},
                {"contains": "lines", "compression": "snappy"}):  # fmt: skip
        with pytest.raises(ValueError, match="lines"):
            sink(**bad)
    context, made = Context(tmp_path, "state"), sink(contains="lines", folder_column="topic")
    schema = pa.schema([("value", pa.string()), ("topic", pa.string())])
    made.check_rows(context, schema.names, "append", schema)
    assert code_of(lambda: made.check_rows(context, ["value"], "append", None)) == "unknown-column"
    assert code_of(lambda: made.check_rows(context, ["topic"], "append", None)) == "unknown-column"
    many = pa.schema([("value", pa.string()), ("topic", pa.list_(pa.string()))])
    made.check_rows(context, many.names, "append", many)
    for kinds in (
        (pa.binary(), pa.string()),
        (pa.string(), pa.list_(pa.int32())),
        (pa.list_(pa.string()), pa.string()),
    ):
        other = pa.schema(zip(("value", "topic"), kinds, strict=True))
        found = code_of(lambda other=other: made.check_rows(context, other.names, "append", other))
        assert found == "wrong-column-type"


class CrashError(Exception):
    """Stands for the death of the process."""


def crash_at(call: int, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Let the given one of all calls that touch the disk fail, and every later one too, as after a kill."""
    calls = 0

    def failing(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **options: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls >= call:
                raise CrashError
            return function(*args, **options)

        return run

    from pyspark.sql import DataFrameWriter

    monkeypatch.setattr(DataFrameWriter, "save", failing(DataFrameWriter.save))
    for module, name in ((os, "replace"), (os, "fsync"), (shutil, "rmtree")):
        monkeypatch.setattr(module, name, failing(getattr(module, name)))
    monkeypatch.setattr(Path, "unlink", failing(Path.unlink))
    monkeypatch.setattr(Path, "write_text", failing(Path.write_text))
    return lambda: calls


@pytest.mark.spark
def test_a_crash_at_any_step_neither_loses_nor_repeats_a_row(spark: Any, tmp_path: Path) -> None:
    rows = spark.range(10, 20, numPartitions=3)
    call, crashed = 0, True
    while crashed:
        call += 1
        root = tmp_path / str(call)
        sink().write_batch(spark.range(10), batch(root, 0))
        with pytest.MonkeyPatch.context() as monkeypatch:
            crash_at(call, monkeypatch)
            try:
                sink().write_batch(rows, batch(root, 1))
                crashed = False
            except CrashError:
                seen = ids(root)  # what a reader sees now: whole files, each row at most once
                assert len(seen) == len(set(seen))
                assert set(range(10)) <= set(seen) <= set(range(20))
        sink().write_batch(rows, batch(root, 1))
        sink().write_batch(spark.range(20, 30), batch(root, 2))
        assert ids(root) == list(range(30)), f"after a crash at step {call}"
        assert not list((root / "out/.orders.headrace/staging").iterdir())
    assert call > 12


def test_what_a_dying_engine_still_writes_is_not_published(tmp_path: Path) -> None:
    """Its driver is dead, another engine runs the batch again, and only then do its last tasks end."""
    publication = _publish.Publication(tmp_path / "out", "orders-files-g1", 0)
    written: list[Path] = []

    def put(folder: Path, text: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"part-{text}.json").write_text(text)

    def die(folder: Path) -> None:
        written.append(folder)
        raise CrashError

    def run_again(folder: Path) -> None:
        put(folder, "again")
        put(written[0], "late")

    with pytest.raises(CrashError):
        publication.write(die, lambda file: True)
    publication.write(run_again, lambda file: True)
    publication.finish()
    assert [path.read_text() for path in (tmp_path / "out").iterdir()] == ["again"]
    assert not list((tmp_path / ".out.headrace" / "staging").iterdir())


def trial(request: pytest.FixtureRequest, folder: Path) -> Trial:
    spark = request.getfixturevalue("spark")
    return Trial(sink, lambda: [row.note for row in spark.read.parquet(str(folder / "out/orders")).collect()])
