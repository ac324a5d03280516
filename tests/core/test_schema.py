from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from headrace.core.errors import ProjectError
from headrace.core.records import spark_schema
from headrace.core.schema import TIMESTAMP, from_ddl, to_ddl


@pytest.mark.parametrize(
    ("ddl", "kind"),
    [
        ("boolean", pa.bool_()),
        ("tinyint", pa.int8()),
        ("short", pa.int16()),
        ("integer", pa.int32()),
        ("long", pa.int64()),
        ("real", pa.float32()),
        ("double", pa.float64()),
        ("string", pa.string()),
        ("varchar(4)", pa.string()),
        ("char(3)", pa.string()),
        ("binary", pa.binary()),
        ("date", pa.date32()),
        ("timestamp", TIMESTAMP),
        ("timestamp_ltz", TIMESTAMP),
        ("timestamp_ntz", pa.timestamp("us")),
        ("decimal", pa.decimal128(10, 0)),
        ("decimal(5)", pa.decimal128(5, 0)),
        ("decimal(38,18)", pa.decimal128(38, 18)),
        ("array<int>", pa.list_(pa.int32())),
        ("map<string, decimal(20,0)>", pa.map_(pa.string(), pa.decimal128(20, 0))),
        (
            "struct<a: int, b array<struct<c: date>>>",
            pa.struct([("a", pa.int32()), ("b", pa.list_(pa.struct([("c", pa.date32())])))]),
        ),
    ],
)
def test_every_type_is_read_and_written(ddl: str, kind: pa.DataType) -> None:
    schema = from_ddl(f"x {ddl}")
    assert schema == pa.schema([("x", kind)])
    assert from_ddl(to_ddl(schema)) == schema


@pytest.mark.parametrize(
    "name", ["any", "case", "select", "unique", "date", "timestamp", "key", "not", "struct", "map"]
)
def test_keywords_are_names(name: str) -> None:
    schema = from_ddl(f"{name} string, b struct<{name}: int, m map<string, struct<{name} decimal(3,1)>>>")
    assert schema.names == [name, "b"]
    assert schema.field("b").type.field(0).name == name
    assert from_ddl(to_ddl(schema)) == schema


def test_fields_of_spark_keep_their_names() -> None:
    from pyspark.sql.types import ArrayType, DecimalType, LongType, MapType, StringType, StructField, StructType

    inner = StructType([StructField("@timestamp", StringType()), StructField("a.b", DecimalType(5, 2))])
    outer = StructType([StructField("x y", ArrayType(inner)), StructField("case", MapType(StringType(), LongType()))])
    rows: Any = SimpleNamespace(schema=StructType([StructField("a`b", outer)]))
    parts = pa.list_(pa.struct([("@timestamp", pa.string()), ("a.b", pa.decimal128(5, 2))]))
    expected = pa.struct([("x y", parts), ("case", pa.map_(pa.string(), pa.int64()))])
    assert spark_schema(rows) == pa.schema([("a`b", expected)])


def test_any_name_can_be_quoted() -> None:
    schema = pa.schema([("@timestamp", pa.int32()), ("a`b", pa.struct([("c d-e", pa.string())]))])
    assert from_ddl(to_ddl(schema)) == schema


@pytest.mark.parametrize(
    "ddl",
    [
        "a",
        "a int b",
        "a nope",
        "a-b int",
        "a int, a string",
        "a decimal(50,2)",
        "a struct<x>",
        "a map<string>",
        "a int)",
    ],
)
def test_what_is_no_list_of_columns_is_refused(ddl: str) -> None:
    with pytest.raises(ProjectError) as caught:
        from_ddl(ddl)
    assert caught.value.code == "bad-schema"
    assert ddl in caught.value.message


def test_the_column_at_fault_is_named() -> None:
    with pytest.raises(ProjectError, match=r"\('amount dubble' is not a name and a type\)") as caught:
        from_ddl("id map<string, array<int>>, amount dubble, at timestamp")
    assert "did you mean 'double'?" in str(caught.value.hint)
