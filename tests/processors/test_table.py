from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from pydantic import ValidationError
from tests.processors.steps import Around

from headrace.core.errors import ProjectError
from headrace.core.processor import FlowLakeTable
from headrace.processors._lookup.lookup import LookupSpec
from headrace.processors._lookup.tables import LookupTable, PinnedVersions, TableAt
from headrace.processors.table import TableStep
from headrace.testing.harness import ProjectHarness

CUSTOMERS = pa.table({"id": [1, 2, 3], "name": ["ann", "bob", None], "tier": pa.array([1, 2, 3], pa.int32())})
ROWS = pa.RecordBatch.from_pydict(
    {"customer": pa.array([2, 9, None, 1, 2], pa.int32()), "who": [{"id": 3}] * 5, "name": ["x"] * 5}
)
PROJECT = """
project: joined
streams:
  orders:
    source: {type: generate, fields: {id: {sequence: 1}}}
    format: {type: json, columns: "id bigint, customer bigint"}
flows:
  named:
    sql: SELECT id, customer FROM orders
    after:
      - {type: table, table: {lake: customers}, key: {customer: id}, columns: [name]}
      - {type: sql, sql: "SELECT id, upper(name) AS name FROM rows"}
    sinks: [console]
"""


@pytest.fixture
def around(tmp_path: Path) -> Around:
    write_deltalake(str(tmp_path / "customers"), CUSTOMERS)
    return Around(tmp_path, {"people": FlowLakeTable("customers", ("id", "name", "tier"))})


def step(**options: Any) -> TableStep:
    return TableStep(**{"table": TableAt(lake="customers"), "key": {"customer": "id"}, **options})


def test_columns_are_found_by_key_in_their_order(around: Around) -> None:
    made = around.work(step(prefix="c_"), ROWS)
    assert made.column_names == ["customer", "who", "name", "c_name", "c_tier"]
    assert made["c_name"].to_pylist() == ["bob", None, None, "ann", "bob"]
    assert made["c_tier"].to_pylist() == [2, None, None, 1, 2]
    nested = around.work(step(table=TableAt(flow="people"), key={"who.id": "id"}, columns=["tier"]), ROWS)
    assert nested["tier"].to_pylist() == [3] * 5
    replaced = around.work(step(columns=["name"]), ROWS)
    assert replaced["name"].to_pylist() == ["bob", None, None, "ann", "bob"]


def test_rows_without_a_partner(around: Around) -> None:
    assert around.work(step(missing="drop"), ROWS)["customer"].to_pylist() == [2, 1, 2]
    assert around.work(step(missing="dead_letter"), ROWS)["customer"].to_pylist() == [2, 1, 2]
    assert [letter["reason"] for letter in around.letters()] == ["not-in-table"] * 2


def test_a_key_that_is_there_twice(around: Around) -> None:
    path = str(around.root / "customers")
    write_deltalake(path, pa.table({"id": [2], "name": ["bea"], "tier": pa.array([9], pa.int32())}), mode="append")
    with pytest.raises(ProjectError) as caught:
        around.work(step(), ROWS)
    assert caught.value.code == "table-duplicate-keys"
    assert around.work(step(latest="tier"), ROWS)["name"].to_pylist() == ["bea", None, None, "ann", "bea"]


@pytest.mark.parametrize("form", ["parquet", "csv", "json"])
def test_files_are_read_again_when_they_changed(tmp_path: Path, form: Any) -> None:
    around, file = Around(tmp_path), tmp_path / f"areas.{form}"

    def write(name: str) -> None:
        match form:
            case "parquet":
                pq.write_table(pa.table({"id": [1, 2], "name": ["a", name]}), file)
            case "csv":
                file.write_text(f"id,name\n1,a\n2,{name}\n")
            case "json":
                file.write_text(f'{{"id": 1, "name": "a"}}\n{{"id": 2, "name": "{name}"}}\n')

    where = TableAt(files=file.name, format=form)
    for name in ("b", "longer"):
        write(name)
        made = around.work(step(table=where, columns="name string"), ROWS.select(["customer"]))
        assert made["name"].to_pylist() == [name, None, None, "a", name]


def test_a_batch_that_runs_again_reads_the_same_version(around: Around) -> None:
    pins = PinnedVersions(around.root / "pins", "g1-aaaaaa")
    place = TableAt(lake="customers").locate(around)
    wanted = LookupSpec(place, ("id",), pa.schema([("name", pa.string())]))
    assert pins.version(7, place.version) == "0"
    write_deltalake(place.path, CUSTOMERS.slice(0, 1).set_column(1, "name", pa.array(["new"])), mode="overwrite")
    assert pins.version(8, place.version) == "1"
    assert pins.version(7, place.version) == "0"
    keys = [pa.array([1, 2])]
    for version, names in (("0", ["ann", "bob"]), ("1", ["new", None]), ("0", ["ann", "bob"])):
        lookup = wanted.lookup(version)
        assert lookup.values.take(lookup.find(keys))["name"].to_pylist() == names
    pins.version(100, place.version)
    assert PinnedVersions(pins.folder, "g2-bbbbbb").version(0, place.version) == "1"
    assert sorted(file.name for file in (around.root / "pins").iterdir()) == ["g2-bbbbbb-0000000000"]


def test_a_table_that_is_not_there_yet(tmp_path: Path) -> None:
    around = Around(tmp_path, {"people": FlowLakeTable("people", ("id", "name"))})
    unknown = step(table=TableAt(flow="people")).bound(around)
    assert unknown.output(pa.schema([("customer", pa.int64())])).names == ["customer", "name"]
    with pytest.raises(ProjectError) as caught:
        unknown.check(around.context)
    assert caught.value.code == "table-missing"
    declared = step(table=TableAt(flow="people"), columns="name string, tier int")
    declared.bound(around).check(around.context)
    assert around.work(declared, ROWS.select(["customer"]))["tier"].to_pylist() == [None] * 5


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"key": {"custmer": "id"}}, "unknown-column"),
        ({"key": {"customer": "idd"}}, "unknown-column"),
        ({"key": {"customer": "name"}}, "step-type"),
        ({"columns": ["nam"]}, "unknown-column"),
        ({"table": TableAt(flow="persons")}, "unknown-flow"),
        ({"table": TableAt(files="nothing.csv", format="csv")}, None),
    ],
)
def test_mistakes(around: Around, options: dict[str, Any], code: str | None) -> None:
    if code is None:
        with pytest.raises(ProjectError) as caught:
            step(**options).bound(around).check(around.context)
        assert caught.value.code == "table-missing"
        return
    with pytest.raises(ProjectError) as caught:
        step(**options).bound(around).output(ROWS.schema)
    assert caught.value.code == code
    for wrong in ({}, {"lake": "a", "flow": "b"}):
        with pytest.raises(ValidationError):
            TableAt(**wrong)


def test_keys_and_columns_that_are_read(around: Around) -> None:
    bound = step(key=["customer"], table=TableAt(lake="customers"), prefix="c_")
    assert bound.key == {"customer": "customer"}
    assert step(prefix="c_").bound(around).uses(frozenset({"c_name", "at"})) == {"customer", "at"}
    assert LookupTable("lake", "x", "x").label == "x"


@pytest.mark.spark
def test_a_change_of_the_table_counts_from_the_next_batch_on(tmp_path: Path, spark: Any) -> None:
    (tmp_path / "headrace.yaml").write_text(PROJECT)
    write_deltalake(str(tmp_path / "customers"), CUSTOMERS)
    with ProjectHarness(tmp_path, spark) as harness:
        harness.feed("orders", [{"id": 1, "customer": 2}, {"id": 2, "customer": 8}])
        harness.run("named")
        write_deltalake(
            str(tmp_path / "customers"), CUSTOMERS.set_column(0, "id", pa.array([1, 8, 2])), mode="overwrite"
        )
        harness.feed("orders", [{"id": 3, "customer": 8}])
        harness.run("named")
        assert sorted((row["id"], row["name"]) for row in harness.rows("named")) == [(1, "BOB"), (2, None), (3, "BOB")]
