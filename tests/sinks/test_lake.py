from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pydantic import ValidationError
from tests.errors import code_of
from tests.sinks.changes import KEY, LIFE, Row, after, frame, live
from tests.sinks.trials import Trial

from headrace.core.capabilities import Candidate
from headrace.core.context import Batch, Context
from headrace.core.endpoints import Op
from headrace.sinks.lake import LakeSink
from headrace.sinks.lake.schema import require_fit
from headrace.sinks.lake.upsert import Upsert


def sink(**options: Any) -> LakeSink:
    return LakeSink.model_validate({"type": "lake", "path": "lake/orders"} | options)


def batch(root: Path, number: int = 0, generation: str = "g1", flow: str = "orders") -> Batch:
    return Batch(flow, generation, number, "lake", "append", Context(root, "state"))


def table(root: Path) -> DeltaTable:
    return DeltaTable(root / "lake/orders")


def rows_of(root: Path) -> list[dict[str, Any]]:
    found = pa.table(table(root).to_pyarrow_table()).to_pylist()
    return sorted(found, key=lambda row: [str(value) for value in row.values()])


def ids(root: Path) -> list[int]:
    return sorted(row["id"] for row in rows_of(root))


def test_plans_are_refused_before_they_run(tmp_path: Path) -> None:
    context = Context(tmp_path, "state")
    assert code_of(lambda: sink().check_rows(context, ["id"], "update", None)) == "lake-needs-key"
    assert code_of(lambda: sink(key=["idd"]).check_rows(context, ["id"], "update", None)) == "unknown-column"
    assert code_of(lambda: sink(partition_by=["dt"]).check_rows(context, ["id"], "append", None)) == "unknown-column"
    sink(key=["id"], sequence="at", partition_by=["dt"]).check_rows(context, ["id", "at", "dt"], "update", None)
    with pytest.raises(ValidationError, match="needs 'key'"):
        sink(sequence="at")


@pytest.mark.parametrize(
    ("rows", "may_add", "code"),
    [
        ("id bigint, name string", False, None),
        ("id int", False, None),
        ("id bigint, more string", True, None),
        ("id bigint, more string", False, "lake-column-added"),
        ("id string", True, "lake-type-changed"),
        ("who struct<name: string, age: int>", True, None),
        ("who struct<name: string, age: int>", False, "lake-column-added"),
        ("who struct<name: int>", True, "lake-type-changed"),
    ],
)
def test_what_a_table_can_take(rows: str, may_add: bool, code: str | None) -> None:
    from headrace.core.schema import from_ddl

    def fit() -> None:
        require_fit("orders", from_ddl("id bigint, name string, who struct<name: string>"), from_ddl(rows), may_add)

    if code is None:
        fit()
    else:
        assert code_of(fit) == code


def test_the_merge_statement() -> None:
    assert Upsert(("id", "at"), "n").statement("/lake", "batch", True) == (
        "MERGE WITH SCHEMA EVOLUTION INTO delta.`/lake` AS t USING batch AS s "
        "ON t.`id` <=> s.`id` AND t.`at` <=> s.`at` "
        "WHEN MATCHED AND (t.`n` IS NULL OR s.`n` >= t.`n`) THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    )


def test_the_merge_statement_of_a_view() -> None:
    assert Upsert(("id",), gone="gone").statement("/lake", "batch", False, ["id", "n"]) == (
        "MERGE INTO delta.`/lake` AS t USING batch AS s ON t.`id` <=> s.`id` "
        "WHEN MATCHED AND s.`gone` THEN DELETE WHEN MATCHED THEN UPDATE SET `id` = s.`id`, `n` = s.`n` "
        "WHEN NOT MATCHED AND NOT s.`gone` THEN INSERT (`id`, `n`) VALUES (s.`id`, s.`n`)"
    )


@pytest.mark.spark
def test_a_replayed_batch_is_there_once_and_a_new_generation_writes_again(spark: Any, tmp_path: Path) -> None:
    for number in (0, 1, 1):
        sink().write_batch(spark.range(number * 10, number * 10 + 10), batch(tmp_path, number))
    assert ids(tmp_path) == list(range(20))
    sink().write_batch(spark.range(20, 30), batch(tmp_path, 0, generation="g2"))
    sink().write_batch(spark.range(30, 40), batch(tmp_path, 0, flow="other"))
    assert ids(tmp_path) == list(range(40))


@pytest.mark.spark
def test_keyed_rows_replace_each_other_whatever_order_they_come_in(spark: Any, tmp_path: Path) -> None:
    changes = [(1, 1, "a"), (1, 3, "c"), (2, 1, "x"), (1, 2, "b"), (None, 1, "n"), (None, 2, "m")]
    for order, permutation in enumerate((changes, changes[::-1])):
        root = tmp_path / str(order)
        upsert = sink(key=["id"], sequence="n")
        for number, part in enumerate((permutation[:3], permutation[3:])):
            upsert.write_batch(spark.createDataFrame(part, "id bigint, n int, name string"), batch(root, number))
        found = {(row["id"], row["n"], row["name"]) for row in rows_of(root)}
        assert found == {(1, 3, "c"), (2, 1, "x"), (None, 2, "m")}
        assert len(rows_of(root)) == 3


@pytest.mark.spark
def test_an_upsert_is_committed_once(spark: Any, tmp_path: Path) -> None:
    upsert = sink(key=["id"])
    for number in (0, 1, 1):
        upsert.write_batch(spark.sql(f"SELECT id, {number} AS n FROM range(3)"), batch(tmp_path, number))
    assert [row["n"] for row in rows_of(tmp_path)] == [1, 1, 1]
    assert table(tmp_path).version() == 1
    assert spark.conf.get("spark.databricks.delta.write.txnAppId", None) is None


@pytest.mark.spark
def test_two_rows_with_one_key_and_no_sequence_are_refused(spark: Any, tmp_path: Path) -> None:
    twice = spark.sql("SELECT 1 AS id, n FROM range(2) AS r(n)")
    upsert = sink(key=["id"])
    assert code_of(lambda: upsert.write_batch(twice, batch(tmp_path, 0))) == "lake-duplicate-key"
    upsert.write_batch(twice.limit(1), batch(tmp_path, 0))
    assert code_of(lambda: upsert.write_batch(twice, batch(tmp_path, 1))) == "lake-duplicate-key"
    assert len(rows_of(tmp_path)) == 1


@pytest.mark.spark
def test_columns_are_added_or_refused(spark: Any, tmp_path: Path) -> None:
    sink().write_batch(spark.range(1), batch(tmp_path, 0))
    wider = spark.sql("SELECT id, 'a' AS name FROM range(1, 2)")
    assert (
        code_of(lambda: sink(schema_evolution="refuse").write_batch(wider, batch(tmp_path, 1))) == "lake-column-added"
    )
    sink().write_batch(wider, batch(tmp_path, 1))
    sink(key=["id"]).write_batch(spark.sql("SELECT 1L AS id, 2 AS more"), batch(tmp_path, 2))
    assert rows_of(tmp_path) == [{"id": 0, "name": None, "more": None}, {"id": 1, "name": "a", "more": 2}]
    text = spark.sql("SELECT 'x' AS id")
    assert code_of(lambda: sink().write_batch(text, batch(tmp_path, 3))) == "lake-type-changed"
    schema = pa.schema([("id", pa.string())])
    context = Context(tmp_path, "state")
    assert code_of(lambda: sink().check_rows(context, ["id"], "append", schema)) == "lake-type-changed"


@pytest.mark.spark
def test_partitions_structs_and_change_feed(spark: Any, tmp_path: Path) -> None:
    rows = spark.sql("SELECT id, id % 2 AS part, concat('n', id) AS `driver.name` FROM range(0, 10, 1, 4)")
    sink(partition_by=["part"], change_feed=True).write_batch(rows, batch(tmp_path))
    metadata = table(tmp_path).metadata()
    assert metadata.partition_columns == ["part"]
    assert metadata.configuration["delta.enableChangeDataFeed"] == "true"
    assert rows_of(tmp_path)[3]["driver"] == {"name": "n3"}
    assert len(table(tmp_path).file_uris()) == 2


@pytest.mark.spark
def test_small_files_are_merged_and_old_ones_removed(spark: Any, tmp_path: Path) -> None:
    lake = sink(compact_every=4, retention="1ms")
    for number in range(3):
        lake.write_batch(spark.range(number * 10, number * 10 + 10, numPartitions=2), batch(tmp_path, number))
    assert len(table(tmp_path).file_uris()) == 6
    lake.write_batch(spark.range(30, 40, numPartitions=2), batch(tmp_path, 3))
    assert len(table(tmp_path).file_uris()) == 1
    assert len(list((tmp_path / "lake/orders").glob("*.parquet"))) == 1
    assert ids(tmp_path) == list(range(40))
    lake.write_batch(spark.range(40, 50), batch(tmp_path, 4))
    assert ids(tmp_path) == list(range(50))


@pytest.mark.spark
def test_compaction_is_no_news_to_a_stream(spark: Any, tmp_path: Path) -> None:
    lake = sink(compact_every=2)
    lake.write_batch(spark.range(10, numPartitions=2), batch(tmp_path, 0))
    seen: list[int] = []

    def read_on() -> None:
        query = (
            spark.readStream.format("delta")
            .load(str(tmp_path / "lake/orders"))
            .writeStream.foreachBatch(lambda rows, _: seen.extend(row["id"] for row in rows.collect()))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    read_on()
    lake.write_batch(spark.range(10, 20, numPartitions=2), batch(tmp_path, 1))
    assert len(table(tmp_path).file_uris()) == 1
    read_on()
    assert sorted(seen) == list(range(20))


@pytest.mark.spark
def test_a_stateful_flow_that_died_after_its_commit_goes_on(spark: Any, tmp_path: Path) -> None:
    """The batch runs again and is skipped, but is read: else Spark would miss the commit of its state."""
    (tmp_path / "in").mkdir()
    upsert = sink(key=["value"])

    def run(die: bool = False) -> None:
        def write(rows: Any, number: int) -> None:
            upsert.write_batch(rows, batch(tmp_path, number))
            if die:
                raise RuntimeError("killed between the sink and Spark's own commit")

        counts = spark.readStream.text(str(tmp_path / "in")).groupBy("value").count()
        query = (
            counts.writeStream.outputMode("update")
            .foreachBatch(write)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    (tmp_path / "in/a.txt").write_text("x\ny\nx\n")
    with pytest.raises(Exception, match="killed between"):
        run(die=True)
    run()
    (tmp_path / "in/b.txt").write_text("x\nz\n")
    run()
    assert {row["value"]: row["count"] for row in rows_of(tmp_path)} == {"x": 3, "y": 1, "z": 1}


@pytest.mark.spark
def test_a_table_built_beside_takes_the_place_of_the_rows_once(tmp_path: Path, spark: Any) -> None:
    side = Candidate("orders", "lake", "g2-abc", Context(tmp_path, "state"))
    out = sink(partition_by=["id"])
    beside = out.candidate_sink(side)

    def write(to: LakeSink, text: str, number: int, generation: str) -> None:
        to.write_batch(spark.sql(text), batch(tmp_path, number, generation))

    write(out, "SELECT 1 AS id, 'a' AS name", 0, "g1")
    assert isinstance(beside, LakeSink)
    write(beside, "SELECT 2 AS id, 5 AS name", 0, "g2-abc")
    write(beside, "SELECT 3 AS id, 6 AS name", 1, "g2-abc")
    assert ids(tmp_path) == [1]
    version = table(tmp_path).version()
    out.publish(side, spark)
    assert rows_of(tmp_path) == [{"id": 2, "name": 5}, {"id": 3, "name": 6}]
    assert table(tmp_path).version() == version + 1, "readers see the old rows or the new, nothing between"
    write(out, "SELECT 4 AS id, 7 AS name", 2, "g2-abc")
    out.publish(side, spark)
    assert ids(tmp_path) == [2, 3, 4], "published once, however often it is tried"
    for _twice in range(2):
        out.drop_candidate(side)
    assert [path.name for path in (tmp_path / "lake").iterdir()] == ["orders"]


@pytest.mark.spark
def test_a_table_beside_which_nothing_was_written_is_emptied(tmp_path: Path, spark: Any) -> None:
    side = Candidate("orders", "lake", "g2-abc", Context(tmp_path, "state"))
    sink().publish(side, spark)
    assert not (tmp_path / "lake/orders").exists()
    sink().write_batch(spark.sql("SELECT 1 AS id"), batch(tmp_path))
    sink().publish(side, spark)
    assert ids(tmp_path) == []


@pytest.mark.spark
def test_a_view_is_held_by_its_key(spark: Any, tmp_path: Path) -> None:
    def held() -> list[Row]:
        return [tuple(row.values()) for row in rows_of(tmp_path)]

    live(spark, lambda: sink(partition_by=["note"]), lambda number: batch(tmp_path, number), held)
    assert table(tmp_path).version() == 2
    assert table(tmp_path).metadata().partition_columns == ["note"]
    wider = "region string, id bigint, amount decimal(9,2), note string, more struct<a: int>"
    row = (None, 7, None, "x", (1,))
    for op, old in ((Op.INSERT, None), (Op.UPDATE, row), (Op.DELETE, row)):
        sink().write_changes(frame(spark, [(op, row, old)], wider), KEY, batch(tmp_path, 2 + op))
        found = [one["more"] for one in rows_of(tmp_path) if one["region"] is None]
        assert found == ([] if op is Op.DELETE else [{"a": 1}]), "a null in a key is a value like others"
    refuse = sink(schema_evolution="refuse")
    widest = frame(spark, [(Op.INSERT, (*row, 1), None)], f"{wider}, most int")
    assert code_of(lambda: refuse.write_changes(widest, KEY, batch(tmp_path, 9))) == "lake-column-added"
    for _ in range(2):
        sink().write_changes(frame(spark, LIFE[0]), KEY, batch(tmp_path, 0, generation="g2"))
        assert {row[:4] for row in held()} == after(0), "a new generation has only its own rows"
    sink().write_changes(frame(spark, LIFE[1]), KEY, batch(tmp_path, 1, generation="g2"))
    sink().write_changes(frame(spark, LIFE[2]), KEY, batch(tmp_path, 0, flow="other"))
    assert {row[:4] for row in held()} == after(2), "what others wrote is not replaced"


def trial(request: pytest.FixtureRequest, folder: Path) -> Trial:
    table, spark = str(folder / "lake/orders"), request.getfixturevalue("spark")
    return Trial(sink, lambda: [row.note for row in spark.read.format("delta").load(table).collect()])
