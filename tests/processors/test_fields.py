from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from tests.processors.steps import Around

from headrace.core.errors import ProjectError
from headrace.core.python_stage import PythonStage
from headrace.processors._steps.json_text import path_of
from headrace.processors.explode import Explode
from headrace.processors.fields import Fields
from headrace.processors.fields.json import reader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAMES = ("a", "b", "c.d", "ä")
SCALARS = st.none() | st.booleans() | st.integers() | st.text(st.characters(codec="utf-8"), max_size=4)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(NAMES), inner), max_leaves=12
)
PATHS = st.lists(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3).map(tuple), min_size=1, max_size=6)


def rows(texts: list[Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"key": list(range(len(texts))), "value": pa.array(texts, pa.string())})


def test_texts_are_read_and_the_rest_stands_as_written(tmp_path: Path) -> None:
    step = Fields(fields={"kind": "kind", "id": "order.id", "order": "order", "at": "@t", "dotted": r"c\.d"})
    full = '{"kind":"a\\"\\u00e9","order":{"id":1.50,\n"x":[1]},"@t":true,"c.d":"e","kind":"last"}'
    texts = [full, '{"order":5,"kind":null}', "{}", "[1]", '{"kind":"x"', None]
    made = Around(tmp_path).work(step, rows(texts))
    assert made.schema.names == ["key", "value", "kind", "id", "order", "at", "dotted"]
    assert made.select(list(step.fields)).to_pylist() == [
        {"kind": "last", "id": "1.50", "order": '{"id":1.50,"x":[1]}', "at": "true", "dotted": "e"},
        {"kind": None, "id": None, "order": "5", "at": None, "dotted": None},
        *[dict.fromkeys(step.fields)] * 4,
    ]
    assert made["value"].to_pylist() == texts
    assert Around(tmp_path).work(step, rows([])).num_rows == 0


def picked(value: Any, path: tuple[str, ...]) -> str | None:
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False)


@settings(max_examples=150)
@given(document=st.dictionaries(st.sampled_from(NAMES), VALUES), paths=PATHS)
def test_any_field_of_any_document(document: dict[str, Any], paths: list[tuple[str, ...]]) -> None:
    found = reader(paths)(json.dumps(document, ensure_ascii=False))
    assert found is not None
    assert [None if text is None else text.decode() for text in found] == [picked(document, path) for path in paths]


def test_fields_of_elements_are_read_on_the_same_way(tmp_path: Path) -> None:
    step = Explode(path="events", elements="objects", position="n", count="many", outer=True, invalid="keep")
    texts = ['{"events":[{"eid":"A"},{"eid":"B"}]}', '{"events":[]}', '{"events":[{"eid":"A"},null]}', "x"]
    exploded = Around(tmp_path).work(step, rows(texts))
    (batch,) = exploded.combine_chunks().to_batches()
    made = Around(tmp_path).work(Fields(fields={"eid": "eid"}), batch)
    assert made.select(["value", "n", "many", "eid"]).to_pylist() == [
        {"value": '{"eid":"A"}', "n": 0, "many": 2, "eid": "A"},
        {"value": '{"eid":"B"}', "n": 1, "many": 2, "eid": "B"},
        {"value": None, "n": None, "many": 0, "eid": None},
        {"value": texts[2], "n": None, "many": None, "eid": None},
        {"value": "x", "n": None, "many": None, "eid": None},
    ]


ODD = (
    None, "", " ", "null", "[]", '"a"', "{", "{}x", '{"a":1,}', '{"a":01}', '{"a":-0}', '{"a":1.50,"b":1e400}',
    ' \n{"a" :\r\n[1,\n2 ] }\t', '{"a":{"b":1},"a":{"c.d":2}}', '{"a":{"b":1},"a":3}', '{"a":"x","a":null}',
    '{"a":"\\ud83d\\ude00","b":"\\ud83d"}', '{"a":"\\ude00"}', '{"a":"\\\\ud800"}', '{"a":"\\ud83d\\ude00\\\\"}',
    '{"a":"\\uD83D\\n","b":1}', '{"z":"\\uDE00"}', '{"a":"\\ud83d\\ud83d\\ude00"}', '{"a":"\\x"}', '{"a":"\x01"}',
    '{"a":"\\u00"}', '{"a":"\\ud83', "\ufeff{}", "\x00{}", '{\x00"a":1}', '{"ä":"ö","a":"\U0001f600"}', '{"a":NaN}',
    '{"a":' + "7" * 2000 + "}", '{"a":"' + "y" * 70_000 + '","' + "n" * 60_000 + '":1}',
)  # fmt: skip


@st.composite
def texts(draw: st.DrawFn) -> str:
    """A document, now and then with a fault."""
    document = draw(st.dictionaries(st.sampled_from(NAMES), VALUES))
    text = json.dumps(document, ensure_ascii=draw(st.booleans()), indent=draw(st.sampled_from([None, 1])))
    if draw(st.integers(0, 3)):
        return text
    place, inserted = draw(st.integers(0, len(text))), draw(st.sampled_from(["", '"', "\\", "{", "}", ",", "0", "e"]))
    return text[:place] + inserted + text[place + draw(st.integers(0, 1)) :]


@pytest.mark.usefixtures("accelerated")
@pytest.mark.spark
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(given_texts=st.lists(texts(), min_size=40, max_size=80), paths=PATHS)
def test_java_reads_them_as_python_does(
    spark: SparkSession, given_texts: list[str], paths: list[tuple[str, ...]]
) -> None:
    named = {f"f{place}": ".".join(name.replace(".", "\\.") for name in path) for place, path in enumerate(paths)}
    step = Fields(fields=named)
    table = pa.Table.from_pydict({"value": pa.array([*ODD, *given_texts], pa.string())})
    frame = spark.createDataFrame(table)
    around = Around(Path("/"))
    native = step.extend(PythonStage.of(frame), around.at())
    assert native.is_empty, "this one is read by Java"
    (batch,) = table.combine_chunks().to_batches()
    assert native.finish().toArrow().to_pylist() == around.work(step, batch).to_pylist()


@pytest.mark.spark
def test_java_takes_what_is_no_utf8_as_python_does(spark: SparkSession, tmp_path: Path) -> None:
    broken = "CAST(X'7B2261223A22FF222C2262223A2231227D' AS STRING)"
    step = Fields(fields={"a": "a", "b": "b"})
    made = step.apply(spark.sql(f"SELECT {broken} AS value, 7 AS _fields"), Around(tmp_path).at()).collect()
    assert [(row["a"], row["b"], row["_fields"]) for row in made] == [("\ufffd", "1", 7)]


def test_options_are_checked() -> None:
    step = Fields(fields={"kind": "kind", "n": "a.n"})
    given_columns = pa.schema([("value", pa.string()), ("n", pa.int64())])
    assert step.output(given_columns) == pa.schema([("value", pa.string()), ("n", pa.string()), ("kind", pa.string())])
    assert step.uses(frozenset({"kind", "key"})) == {"key", "value"}
    assert step.label == "fields of value: kind, n"
    assert path_of(step.fields["n"]) == ("a", "n")
    with pytest.raises(ValidationError):
        Fields(fields={"a": "a..b"})
    with pytest.raises(ProjectError) as caught:
        step.output(pa.schema([("value", pa.int64())]))
    assert caught.value.code == "step-type"
