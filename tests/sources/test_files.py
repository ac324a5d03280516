from __future__ import annotations

import gzip
import os
import shutil
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError
from tests.errors import code_of

from headrace.core.context import Context, ReadContext
from headrace.core.errors import ProjectError
from headrace.sources.files import FilesSource


def source(path: str, **options: Any) -> FilesSource:
    return FilesSource.model_validate({"type": "files", "path": path} | options)


def write(folder: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def test_a_path_that_matches_nothing_is_refused(tmp_path: Path, context: Context) -> None:
    write(tmp_path, {"orders/a.json": b"{}\n"})
    assert code_of(source("order").check, context) == "no-files"
    assert code_of(source("orders/*.csv").check, context) == "no-files"
    with pytest.raises(ProjectError, match="did you mean 'orders'"):
        source("order").check(context)
    source("orders").check(context)
    source("orders/*.{csv,json}").check(context)


def test_files_that_are_not_there_yet_can_be_waited_for(tmp_path: Path, context: Context) -> None:
    waiting = source("{in,out}/orders", missing="wait")
    waiting.check(context)
    assert waiting.sample(context, 10) == []
    with pytest.raises(ValueError, match="needs a glob"):
        source("in/orders", missing="wait")


def test_the_places_of_files_are_folders(tmp_path: Path, context: Context) -> None:
    write(tmp_path, {"one.json": b"{}"})
    names = {
        path: [place.name for place in source(path).places(context)] for path in ("{in,out}/a.b", "in/*.gz", "one.json")
    }
    root = str(tmp_path)
    assert names == {
        "{in,out}/a.b": [f"{root}/in/a.b", f"{root}/out/a.b"],
        "in/*.gz": [f"{root}/in/*.gz", f"{root}/in"],
        "one.json": [f"{root}/one.json", root],
    }
    assert [place.name for place in source("in", recursive=True).places(context)] == [f"{root}/in", f"{root}/in/*"]


def test_an_empty_folder_is_worth_watching(tmp_path: Path, context: Context) -> None:
    (tmp_path / "in").mkdir()
    source("in").check(context)
    assert source("in").sample(context, 10) == []
    assert code_of(source("in", contains="parquet").row_schema, context) == "no-files"
    assert code_of(source("in", header=True).sample, context, 10) == "no-files"


def test_an_unreadable_file_is_refused(tmp_path: Path, context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {"a.json": b"{}"})
    (tmp_path / "a.json").chmod(0)
    if os.geteuid() == 0:  # to root everything is readable
        monkeypatch.setattr(os, "access", lambda *_given, **_named: False)
    assert code_of(source("a.json").check, context) == "file-unreadable"


def test_a_sample_is_decompressed_and_without_header(tmp_path: Path, context: Context) -> None:
    write(tmp_path, {"a.csv.gz": gzip.compress(b"id,name\r\n1,a\r\n"), "b.csv": b"id,name\n2,b\n3,c", "_c.csv": b"4,d"})
    os.utime(tmp_path / "a.csv.gz", (1, 1))
    assert source("*.csv*", header=True).sample(context, 10) == [b"1,a", b"2,b", b"3,c"]
    assert source("*.csv*").sample(context, 2) == [b"id,name", b"1,a"]


def test_columns_come_from_the_newest_file_and_its_folders(tmp_path: Path, context: Context) -> None:
    folder = tmp_path / "in" / "dt=2026-01-31"
    folder.mkdir(parents=True)
    pq.write_table(pa.table({"id": [1], "at": pa.array([0], pa.timestamp("ns", "UTC"))}), folder / "a.parquet")
    expected = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", "UTC")), ("dt", pa.string())])
    assert source("in", contains="parquet").row_schema(context) == expected
    assert source("in/*/*.parquet", contains="parquet").row_schema(context) == expected
    given = source("in", contains="parquet", columns="id int, dt date").row_schema(context)
    assert given == pa.schema([("id", pa.int32()), ("dt", pa.date32())])


def test_a_file_of_another_kind_is_refused(tmp_path: Path, context: Context) -> None:
    write(tmp_path, {"a.parquet": b"not parquet at all"})
    assert code_of(source("a.parquet", contains="parquet").row_schema, context) == "files-not-understood"
    assert code_of(source("a.parquet", contains="avro").row_schema, context) == "bad-avro-file"


@pytest.mark.parametrize("options", [{"columns": "id int"}, {"contains": "avro", "header": True}, {"pathh": "x"}])
def test_options_that_do_not_fit_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        source("in", **options)


def test_lines_need_a_format_and_columns_do_not() -> None:
    assert not source("in").yields_rows
    assert source("in", contains="parquet").yields_rows


def stream(spark: Any, tmp_path: Path, files: FilesSource) -> list[Any]:
    """The rows of the files that are new since the last call, as one flow would see them."""
    rows: list[Any] = []
    frame = files.read(spark, ReadContext(Context(tmp_path, "state"), "orders"))
    query = (
        frame.writeStream.foreachBatch(lambda batch, _: rows.extend(batch.collect()))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return rows


@pytest.mark.spark
def test_lines_keep_their_bytes_and_know_their_place(spark: Any, tmp_path: Path) -> None:
    with pa.output_stream(str(tmp_path / "c.txt.zst"), compression="zstd") as file:
        file.write(b"z\n")
    write(tmp_path, {"a b.txt": b"one\n\xff\xfe\n\nfour\n", "b.txt.gz": gzip.compress(b"x\r\ny")})
    frame = source("*.txt*").read(spark, ReadContext(Context(tmp_path, "state"), "s", streaming=False))
    rows = frame.selectExpr("regexp_extract(_file, '[^/]*$', 0) as file", "_block", "_row", "value").collect()
    assert {(row["file"], row["_block"], row["_row"]): bytes(row["value"]) for row in rows} == {
        ("a%20b.txt", 0, 0): b"one",
        ("a%20b.txt", 0, 1): b"\xff\xfe",
        ("a%20b.txt", 0, 2): b"",
        ("a%20b.txt", 0, 3): b"four",
        ("b.txt.gz", 0, 0): b"x",
        ("b.txt.gz", 0, 1): b"y",
        ("c.txt.zst", 0, 0): b"z",
    }


@pytest.mark.spark
def test_a_stream_picks_up_new_files_however_old_they_claim_to_be(spark: Any, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    write(folder, {"a.csv": b"id,name\n1,a\n", "b.csv": b"id,name\n2,b\n"})
    files = source("in", header=True)
    assert sorted(bytes(row["value"]) for row in stream(spark, tmp_path, files)) == [b"1,a", b"2,b"]
    write(folder, {"c.csv": b"id,name\n3,c\n"})
    os.utime(folder / "c.csv", (1_000_000_000, 1_000_000_000))
    again = stream(spark, tmp_path, files)
    assert [(bytes(row["value"]), row["_row"]) for row in again] == [(b"3,c", 1)]
    assert again[0]["_timestamp"].year == 2001
    assert stream(spark, tmp_path, files) == []


@pytest.mark.spark
def test_every_line_of_a_split_file_has_its_own_position(spark: Any, tmp_path: Path) -> None:
    write(tmp_path, {"a.txt": b"".join(b"%099d\n" % n for n in range(120_000))})
    frame = source("a.txt").read(spark, ReadContext(Context(tmp_path, "state"), "s", streaming=False))
    places = frame.selectExpr("_block", "_row", "cast(cast(value as string) as bigint) as n").toArrow()
    assert len(set(places.column("_block").to_pylist())) > 1
    assert len(set(zip(*(places.column(name).to_pylist() for name in ("_block", "_row")), strict=True))) == 120_000
    assert set(places.column("n").to_pylist()) == set(range(120_000))


@pytest.mark.spark
def test_parquet_rows_carry_partition_folders_and_row_numbers(spark: Any, tmp_path: Path) -> None:
    for day in ("2026-01-30", "2026-01-31"):
        (tmp_path / f"in/dt={day}").mkdir(parents=True)
        pq.write_table(pa.table({"id": [1, 2], "a.b": ["x", "y"]}), tmp_path / f"in/dt={day}/a.parquet")
    expected = [(n, "xy"[n - 1], day, n - 1) for n in (1, 2) for day in ("2026-01-30", "2026-01-31")]
    for path in ("in", "in/*/*.parquet"):
        shutil.rmtree(tmp_path / "checkpoint", ignore_errors=True)
        rows = stream(spark, tmp_path, source(path, contains="parquet"))
        assert sorted((row["id"], row["a.b"], row["dt"], row["_row"]) for row in rows) == expected


@pytest.mark.spark
def test_avro_containers_are_streamed(spark: Any, tmp_path: Path) -> None:
    fields = [{"name": "id", "type": "long"}, {"name": "name", "type": "string"}]
    for number, day in enumerate(("30", "31")):
        schema = {"type": "record", "name": "order", "fields": fields[: number + 1]}
        file = tmp_path / f"in put/day={day}/a.avro"
        file.parent.mkdir(parents=True)
        with file.open("wb") as out:
            fastavro.writer(out, schema, [{"id": n, "name": f"n{n}"} for n in range(2)])
        os.utime(file, (number, number))
    rows = stream(spark, tmp_path, source("in put", contains="avro"))
    found = sorted((row["day"], row["id"], row["name"], row["_row"]) for row in rows)
    assert found == [("30", 0, None, 0), ("30", 1, None, 1), ("31", 0, "n0", 0), ("31", 1, "n1", 1)]
