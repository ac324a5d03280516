from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pydantic import ValidationError

from headrace.core.context import Context, ReadContext
from headrace.core.errors import ProjectError
from headrace.sources.generate import GenerateSource

RIDES = {
    "order_id": {"sequence": "order-{}"},
    "number": {"sequence": 1},
    "service": {"choice": ["RIDE", "FOOD", "PARCEL"], "weights": [6, 3, 1]},
    "driver.id": {"key": "driver-{}", "of": 20},
    "driver.name": {"name": "person"},
    "seats": {"integer": [1, 4]},
    "amount": {"decimal": [2.5, 80], "digits": 2},
    "paid": {"boolean": 0.25},
    "currency": {"constant": "EUR"},
    "pickup": {"point": [52.52, 13.405], "radius_km": 3},
    "trace": {"uuid": True},
    "note": {"name": "street", "nulls": 0.5},
    "at": {"time": "event"},
}
START = "2026-01-01T00:00:00Z"


def source(**options: Any) -> GenerateSource:
    return GenerateSource.model_validate({"type": "generate", "fields": RIDES, "start": START} | options)


def made(generator: GenerateSource, start: int, stop: int) -> pa.RecordBatch:
    return generator.maker(generator.epoch_ms()).batch(start, stop)


def test_columns_and_types_are_known_without_spark(tmp_path: Path) -> None:
    schema = source().row_schema(Context(tmp_path, "state"))
    assert schema.field("driver").type == pa.struct([("id", pa.string()), ("name", pa.string())])
    assert schema.field("number").type == pa.int64()
    assert schema.field("at").type == pa.timestamp("us", tz="UTC")
    assert made(source(), 0, 5).schema.names == [*schema.names, "_offset", "_timestamp"]


def test_a_row_is_the_same_in_whatever_batch_it_comes() -> None:
    whole = made(source(disorder="5s", skew=1), 0, 1000)
    parts = [made(source(disorder="5s", skew=1), at, at + 100) for at in range(0, 1000, 100)]
    assert pa.Table.from_batches(parts).combine_chunks().to_batches()[0].equals(whole)
    assert not made(source(seed=1), 0, 1000).column("amount").equals(whole.column("amount"))


def test_values_keep_to_their_options() -> None:
    rows = made(source(rate=100, disorder="5s"), 0, 20_000).to_pylist()
    services = Counter(row["service"] for row in rows)
    assert services["RIDE"] == pytest.approx(12_000, rel=0.05)
    assert services["PARCEL"] == pytest.approx(2_000, rel=0.1)
    assert {row["seats"] for row in rows} == {1, 2, 3, 4}
    assert all(2.5 <= row["amount"] <= 80 for row in rows)
    assert sum(row["paid"] for row in rows) == pytest.approx(5_000, rel=0.1)
    assert sum(row["note"] is None for row in rows) == pytest.approx(10_000, rel=0.05)
    assert len({row["trace"] for row in rows}) == 20_000
    assert {row["driver"]["id"] for row in rows} == {f"driver-{n}" for n in range(20)}
    assert (rows[7]["order_id"], rows[7]["number"], rows[7]["currency"]) == ("order-7", 8, "EUR")
    assert all(abs(row["pickup"]["lat"] - 52.52) < 0.03 for row in rows)


def test_times_advance_by_the_rate_and_disorder_holds_them_back() -> None:
    rows = made(source(rate=100, disorder="5s"), 0, 1000).to_pylist()
    assert rows[250]["_timestamp"] == datetime(2026, 1, 1, 0, 0, 2, 500_000, tzinfo=UTC)
    delays = [(row["_timestamp"] - row["at"]).total_seconds() for row in rows]
    assert min(delays) >= 0
    assert 4.5 < max(delays) <= 5
    assert [row["at"] for row in rows] != sorted(row["at"] for row in rows)
    assert all(row["at"] == row["_timestamp"] for row in made(source(), 0, 100).to_pylist())


def test_skew_makes_a_few_keys_hot() -> None:
    even = Counter(row["driver"]["id"] for row in made(source(), 0, 10_000).to_pylist())
    hot = Counter(row["driver"]["id"] for row in made(source(skew=1.5), 0, 10_000).to_pylist())
    assert max(even.values()) < 700
    assert hot["driver-0"] > 4000


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"a": {"chioce": [1]}}, "has one of the keys sequence, key, choice"),
        ({"a": {"choice": [1, 2], "weights": [1]}}, "2 values need 2 weights, not 1"),
        ({"a": {"constant": 1}, "a.b": {"constant": 1}}, "'a' cannot be both a value and the struct of 'a.b'"),
        ({"a": {"integer": [1, 2], "digits": 3}}, "Extra inputs are not permitted"),
        ({"a": {"integer": [2, 1]}}, "the least value 2 is greater than the greatest 1"),
        ({"a": {"decimal": [2, 1.5]}}, "is greater than the greatest 1.5"),
        ({"_a": {"constant": 1}}, "should match pattern"),
    ],
)
def test_wrong_fields_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        source(fields=fields)


def read_context(tmp_path: Path, **how: Any) -> ReadContext:
    return ReadContext(Context(tmp_path, "state"), "rides", **how)


@pytest.mark.spark
def test_an_endless_stream_cannot_be_caught_up_with(spark: Any, tmp_path: Path) -> None:
    with pytest.raises(ProjectError) as refused:
        source().read(spark, read_context(tmp_path, until_caught_up=True))
    assert refused.value.code == "generate-unbounded"


@pytest.mark.spark
def test_a_batch_read_has_the_rows_that_were_made(spark: Any, tmp_path: Path) -> None:
    frame = source(count=12_345).read(spark, read_context(tmp_path, streaming=False))
    table = frame.orderBy("_offset").toArrow()
    assert table.column("order_id").to_pylist() == made(source(), 0, 12_345).column("order_id").to_pylist()
    assert table.column("driver").to_pylist()[77] == made(source(), 77, 78).to_pylist()[0]["driver"]
    assert source().read(spark, read_context(tmp_path, streaming=False)).count() == 1000


@pytest.mark.spark
def test_a_stream_goes_on_after_a_restart_with_the_same_clock(spark: Any, tmp_path: Path) -> None:
    batches: list[tuple[int, list[Any]]] = []

    def run(count: int) -> None:
        frame = source(count=count, start=None).read(
            spark, read_context(tmp_path, until_caught_up=True, max_records=2_000)
        )
        query = (
            frame.select("_offset", "_timestamp")
            .writeStream.foreachBatch(lambda rows, batch_id: batches.append((batch_id, rows.collect())))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    run(5_000)
    run(7_000)
    assert [len(rows) for _, rows in batches] == [2_000, 2_000, 1_000, 2_000]
    rows = sorted(row for _, batch in batches for row in batch)
    assert [row["_offset"] for row in rows] == list(range(7_000))
    assert (rows[6_999]["_timestamp"] - rows[0]["_timestamp"]).total_seconds() == 699.9
    last_offset = (tmp_path / "checkpoint/offsets/3").read_text().splitlines()[-1]
    assert json.loads(last_offset)["row"] == 7_000


@pytest.mark.spark
def test_a_live_stream_keeps_its_rate(spark: Any, tmp_path: Path) -> None:
    seen: list[int] = []
    frame = source(rate=500, count=400).read(spark, read_context(tmp_path))
    query = (
        frame.writeStream.foreachBatch(lambda rows, _: seen.extend(row["_offset"] for row in rows.collect()))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(processingTime="100 milliseconds")
        .start()
    )
    try:
        while len(seen) < 400:
            assert not query.awaitTermination(0.1)
    finally:
        query.stop()
    assert sorted(seen) == list(range(400))


@pytest.mark.spark
def test_the_same_share_of_records_is_bad_every_time(spark: Any) -> None:
    records = spark.range(10_000).selectExpr("id as _offset", "cast(to_json(struct(id)) as binary) as value")

    def bad() -> set[int]:
        spoilt = source(bad_records=0.01).encoded(records).collect()
        return {row["_offset"] for row in spoilt if not _is_json(bytes(row["value"]))}

    assert len(bad()) == pytest.approx(100, rel=0.4)
    assert bad() == bad()
    assert source().encoded(records) is records


def _is_json(value: bytes) -> bool:
    try:
        json.loads(value)
    except ValueError:
        return False
    return True
