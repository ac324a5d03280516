"""The steps that are native expressions, all in one query."""

from __future__ import annotations

import hashlib
import json
import struct
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.processors.steps import Around

from headrace.core.records import spark_schema
from headrace.core.schema import from_ddl
from headrace.processors.clear import Clear
from headrace.processors.column import ColumnStep
from headrace.processors.constant import Constant
from headrace.processors.feature import Feature, FeatureOf
from headrace.processors.filter import Filter
from headrace.processors.hash import Hash
from headrace.processors.json_payload import JsonPayload
from headrace.processors.now import Now
from headrace.processors.sql import SqlStep

VECTORS = json.loads((Path(__file__).parent.parent / "functions" / "vectors.json").read_text())["cases"]
COLUMNS = "text string, number int, big bigint, who struct<name: string, phone: string>, tags array<string>, n bigint"
STEPS = [
    Filter(where="n > 0"),
    Hash(columns=["text", "number", "big", "who.name"]),
    Clear(columns=["tags"], to="empty"),
    Clear(columns=["who.phone"]),
    ColumnStep(columns={"name": "who.name", "m": "n"}, keep="others"),
    Feature(features=[FeatureOf(key="m", value="big"), FeatureOf(key="m", value="m", type="double")]),
    Now(),
    Constant(values={"country": "ID"}),
    SqlStep(sql="SELECT *, m + 1 AS more FROM rows WHERE m < 100"),
    JsonPayload(columns=["m", "country"]),
]


def digest_of(value: int, form: str, width: int) -> int:
    return int(struct.unpack(form, hashlib.sha256(struct.pack(form, value)).digest()[:width])[0])


@pytest.mark.spark
def test_all_of_them_in_a_row(tmp_path: Path, spark: Any) -> None:
    around = Around(tmp_path)
    rows = [
        ("test", 1, 1, ("a", "1"), ["x"], 1),
        ("é", -5, -(2**60), None, None, 2),
        (None, None, None, (None, "2"), [], 3),
        ("dropped", 1, 1, None, None, 0),
        ("dropped", 1, 1, None, None, None),
        ("dropped", 1, 1, None, None, 100),
    ]
    frame, expected = spark.createDataFrame(rows, COLUMNS), from_ddl(COLUMNS)
    assert all(type(step).realtime for step in STEPS if not isinstance(step, Now))
    for step in STEPS:
        frame, expected = step.bound(around).apply(frame, around.at()), step.output(expected)
        assert spark_schema(frame).names == expected.names
        known = [field for field in expected if str(field.type) != "null"]
        assert [spark_schema(frame).field(field.name).type for field in known] == [field.type for field in known]
    made = sorted(frame.toArrow().to_pylist(), key=lambda row: row["m"])
    assert [row["m"] for row in made] == [1, 2, 3]
    cases = {case["type"]: case["expect"] for case in VECTORS if case.get("kind") == "transformer"}
    assert made[0]["text"] == cases["string"]
    assert made[0]["number"] == cases["int"]
    assert made[1]["text"] == hashlib.sha256("é".encode()).hexdigest()
    assert made[1]["number"] == digest_of(-5, "<i", 4)
    assert [row["big"] for row in made] == [digest_of(1, "<q", 8), digest_of(-(2**60), "<q", 8), None]
    assert [row["name"] for row in made] == [hashlib.sha256(b"a").hexdigest(), None, None]
    assert [row["who"] for row in made] == [
        {"name": made[0]["name"], "phone": None},
        None,
        {"name": None, "phone": None},
    ]
    assert [row["tags"] for row in made] == [[], [], []]
    assert made[0]["features"][0]["value"]["int64_value"] == made[0]["big"]
    assert made[0]["features"][1] | {"value": made[0]["features"][1]["value"]["double_value"]} == {
        "key": "1", "value": 1.0, "name": "1",
    }  # fmt: skip
    assert abs((made[0]["processed_at"] - datetime.now(UTC)).total_seconds()) < 600
    assert json.loads(made[2]["payload"]) == {"m": 3, "country": "ID"}
    assert made[2]["more"] == 4
