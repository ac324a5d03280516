from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from headrace.core.context import Context, ReadContext
from headrace.core.errors import ProjectError
from headrace.sources.lake import LakeSource


def source(**options: Any) -> LakeSource:
    return LakeSource.model_validate({"type": "lake", "path": "lake/orders"} | options)


@pytest.fixture
def table(tmp_path: Path) -> str:
    path = str(tmp_path / "lake/orders")
    write_deltalake(path, pa.table({"id": pa.array([1, 2], pa.int64()), "name": ["a", "b"]}))
    return path


def append(table: str, *ids: int) -> None:
    write_deltalake(table, pa.table({"id": pa.array(ids, pa.int64()), "name": [f"n{n}" for n in ids]}), mode="append")


def stream(spark: Any, tmp_path: Path, lake: LakeSource) -> list[Any]:
    rows: list[Any] = []
    query = (
        lake.read(spark, ReadContext(Context(tmp_path, "state"), "orders"))
        .writeStream.foreachBatch(lambda batch, _: rows.extend(batch.collect()))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return rows


def test_the_columns_are_known_without_spark(tmp_path: Path, table: str) -> None:
    assert source().row_schema(Context(tmp_path, "state")) == pa.schema([("id", pa.int64()), ("name", pa.string())])


def test_a_missing_table_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ProjectError) as refused:
        source().check(Context(tmp_path, "state"))
    assert refused.value.code == "lake-missing"


def test_changes_need_a_change_feed(tmp_path: Path, table: str) -> None:
    source().check(Context(tmp_path, "state"))
    with pytest.raises(ProjectError) as refused:
        source(changes=True).check(Context(tmp_path, "state"))
    assert refused.value.code == "lake-no-change-feed"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {}),
        ({"start": "latest"}, {"startingVersion": "latest"}),
        ({"start": 12}, {"startingVersion": "12"}),
        ({"start": datetime(2026, 1, 31, 12)}, {"startingTimestamp": "2026-01-31T12:00:00.000000Z"}),
        ({"start": "2026-01-31T12:00:00+02:00"}, {"startingTimestamp": "2026-01-31T10:00:00.000000Z"}),
        ({"skip_changes": True}, {"skipChangeCommits": "true"}),
        ({"changes": True}, {"readChangeFeed": "true"}),
    ],
)
def test_options_for_delta(options: dict[str, Any], expected: dict[str, str]) -> None:
    assert source(**options).stream_options() == {"maxFilesPerTrigger": "1000"} | expected


@pytest.mark.spark
def test_a_stream_has_what_is_there_and_then_what_is_appended(spark: Any, tmp_path: Path, table: str) -> None:
    rows = stream(spark, tmp_path, source())
    assert sorted((row["id"], row["name"]) for row in rows) == [(1, "a"), (2, "b")]
    assert {row["_change_type"] for row in rows} == {"insert"}
    append(table, 3)
    assert [row["id"] for row in stream(spark, tmp_path, source())] == [3]
    assert source().read(spark, ReadContext(Context(tmp_path, "state"), "s", streaming=False)).count() == 3


@pytest.mark.spark
def test_a_stream_can_begin_at_a_version(spark: Any, tmp_path: Path, table: str) -> None:
    append(table, 3)
    append(table, 4)
    assert [row["id"] for row in stream(spark, tmp_path, source(start=2))] == [4]


@pytest.mark.spark
def test_a_deleted_row_stops_the_stream_unless_changes_are_skipped(spark: Any, tmp_path: Path, table: str) -> None:
    stream(spark, tmp_path, source())
    DeltaTable(table).delete("id = 1")
    append(table, 3)
    with pytest.raises(Exception, match="DELTA_SOURCE"):
        stream(spark, tmp_path, source())
    assert [row["id"] for row in stream(spark, tmp_path, source(skip_changes=True))] == [3]


@pytest.mark.spark
def test_changes_are_read_as_changes(spark: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "lake/orders")
    spark.sql(f"CREATE TABLE delta.`{path}` (id bigint, name string) USING delta "
              "TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')")  # fmt: skip
    spark.sql(f"INSERT INTO delta.`{path}` VALUES (1, 'a'), (2, 'b')")
    source(changes=True).check(Context(tmp_path, "state"))
    assert {row["_change_type"] for row in stream(spark, tmp_path, source(changes=True))} == {"insert"}
    spark.sql(f"UPDATE delta.`{path}` SET name = 'c' WHERE id = 1")
    changes = stream(spark, tmp_path, source(changes=True))
    assert sorted((row["_change_type"], row["name"], row["_commit_version"]) for row in changes) == [
        ("update_postimage", "c", 2),
        ("update_preimage", "a", 2),
    ]
