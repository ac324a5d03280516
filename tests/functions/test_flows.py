"""Functions of the project, lookups and protobuf bytes in flows of a project."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from headrace.core.errors import ProjectError, ProjectErrors
from headrace.plan.checkpoint_shape import shape_of
from headrace.plan.compare import compare
from headrace.plan.planner import make_plan
from headrace.project.loader import load
from headrace.testing.harness import ProjectHarness

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PROTO = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
enum Status { NEW = 0; DONE = 1; }
message Place { string city = 1; }
message Order { string number = 1; Status status = 2; double price = 3; Place place = 4; repeated string tags = 5;
  google.protobuf.Timestamp made = 6; }
message History { string customer = 1; repeated bytes orders = 2; int64 at = 3; }
"""

PROJECT = """
project: shop
functions: {lookups: {path: lookups}}
streams:
  histories:
    source: {type: files, path: data, contains: lines}
    format: {type: protobuf, message: shop.History, proto: shop.proto}
    event_time: {column: at, unit: s, watermark: 1s, max_future: null}
flows:
  fields:
    sql: >
      SELECT customer, SelectFields(orders, 'shop.Order', 'number') AS numbers,
        SelectFields(Filters(orders, 'shop.Order', CondEq('status', 'DONE'), CondEq('place.city', 'Oslo')),
          'price') AS prices,
        SelectFields(orders, 'shop.Order', 'place.city') AS cities, SelectFields(orders, 'shop.Order', 'tags') AS tags,
        size(Filters(orders, 'shop.Order', CondEq('price', 2))) AS twos,
        shout(customer) AS loud, DartGet('names', customer) AS name, DartContains('vip', customer) AS vip
      FROM histories
    sinks: [noop]
  spreads:
    sql: SELECT widest(size(orders)) AS w, window.start AS s FROM histories GROUP BY window(at, '1 minute')
    sinks: [noop]
"""

FUNCTIONS = """
import pandas as pd

SUFFIX = "!"


def shout(text: str) -> str:
    return text.upper() + SUFFIX


def widest(v: pd.Series) -> int:
    return int(v.max() - v.min())
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in {
        "headrace.yaml": PROJECT,
        "shop.proto": PROTO,
        "functions/texts.py": FUNCTIONS,
        "lookups/dart-get/names": '{"ann": "Ann Smith"}',
        "lookups/dart-contains/vip": '{"data": ["bob"]}',
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def orders(folder: Path, rows: list[dict[str, Any]]) -> list[bytes]:
    from google.protobuf.json_format import ParseDict
    from google.protobuf.message_factory import GetMessageClass

    from headrace.core.context import Context
    from headrace.core.encoding.descriptors import compile_protos, find_message

    found = find_message(compile_protos(Context(folder, ""), ["shop.proto"], []), "shop.Order")
    return [ParseDict(row, GetMessageClass(found)()).SerializeToString() for row in rows]


@pytest.mark.spark
def test_they_run_in_flows(folder: Path, spark: SparkSession) -> None:
    made = orders(
        folder,
        [
            {"number": "1", "status": "DONE", "price": 2, "place": {"city": "Oslo"}, "tags": ["a"]},
            {"number": "2", "status": "NEW", "price": 3, "place": {"city": "Oslo"}},
            {"number": "3", "status": "DONE", "price": 2},
        ],
    )
    with ProjectHarness(folder, spark) as harness:
        harness.feed(
            "histories", [{"customer": "ann", "orders": made, "at": 0}, {"customer": "bob", "orders": [], "at": 1}]
        )
        harness.feed("histories", [{"customer": "cat", "orders": [], "at": 1000}])
        harness.run()
        ann, bob, _ = harness.rows("fields")
        assert ann == {
            "customer": "ann", "numbers": ["1", "2", "3"], "prices": [2.0], "cities": ["Oslo", "Oslo", None],
            "tags": [["a"], [], []], "twos": 2, "loud": "ANN!", "name": "Ann Smith", "vip": False,
        }  # fmt: skip
        assert (bob["numbers"], bob["prices"], bob["name"], bob["vip"]) == ([], [], None, True)
        assert [row["w"] for row in harness.rows("spreads")] == [3]


def flow_of(folder: Path, sql: str, more: str = "") -> Path:
    start = PROJECT.index("flows:")
    text = PROJECT[:start] + f'flows:\n  one: {{sql: "{sql}", sinks: [noop]{more}}}\n'
    (folder / "headrace.yaml").write_text(text)
    return folder


@pytest.mark.parametrize(
    ("sql", "code"),
    [
        ("SELECT shout(customer, 1) AS a FROM histories", "function-argument"),
        ("SELECT EndOfMonth(at, 'Nowhere/City') AS a FROM histories", "function-argument"),
        ("SELECT SelectFields(orders, 'shop.Ordr', 'number') AS a FROM histories", "unknown-message"),
        ("SELECT SelectFields(orders, 'shop.Order', 'numbr') AS a FROM histories", "unknown-column"),
    ],
)
def test_wrong_calls_are_refused_by_the_plan_with_their_place(folder: Path, sql: str, code: str) -> None:
    with pytest.raises(ProjectErrors) as found:
        make_plan(load(flow_of(folder, sql)))
    assert found.value.code == code
    assert "headrace.yaml:" in str(found.value.where)


def test_bad_functions_of_the_project_are_refused_by_the_plan(folder: Path) -> None:
    (folder / "functions" / "bad.py").write_text("def bad(a: int, b) -> int:\n    return a\n")
    with pytest.raises(ProjectErrors) as found:
        make_plan(load(flow_of(folder, "SELECT bad(1, 2) AS a FROM histories")))
    assert (found.value.code, str(found.value.where)) == ("function-hints", "functions/bad.py:1 (bad)")
    assert make_plan(load(flow_of(folder, "SELECT customer FROM histories"))).flows  # nobody uses it


def test_lookups_need_a_folder(folder: Path) -> None:
    path = flow_of(folder, "SELECT DartGet('a', customer) AS a FROM histories")
    text = (path / "headrace.yaml").read_text().replace("functions: {lookups: {path: lookups}}\n", "")
    (path / "headrace.yaml").write_text(text)
    with pytest.raises(ProjectErrors) as found:
        make_plan(load(path))
    assert found.value.code == "lookups-missing"


def test_only_the_columns_that_are_used_are_decoded(folder: Path) -> None:
    plan = make_plan(load(flow_of(folder, "SELECT Distance(at, 1, at, 2) AS d FROM histories")))
    (stream,) = plan.flow("one").streams()
    assert stream.columns == ("at",)


def test_a_changed_function_is_a_change_that_is_told(folder: Path) -> None:
    flow_of(folder, "SELECT shout(customer) AS a, S2Id(1, 2, 3) AS s FROM histories")
    before = shape_of(make_plan(load(folder)).flow("one"))
    (folder / "functions" / "texts.py").write_text(FUNCTIONS.replace('"!"', '"?"'))
    after = shape_of(make_plan(load(folder)).flow("one"))
    verdict = compare(before, after, {}, {})
    assert verdict.kind == "safe"
    assert any("the file of function shout changed" in reason for reason in verdict.reasons)


def test_python_functions_are_refused_in_real_time(folder: Path) -> None:
    with pytest.raises(ProjectErrors) as found:
        make_plan(load(flow_of(folder, "SELECT S2Id(1, 2, 3) AS a FROM histories", ", mode: realtime")))
    assert any("S2Id runs in Python" in error.message for error in found.value.errors)
    with pytest.raises(ProjectErrors) as found:
        make_plan(load(flow_of(folder, "SELECT GeoHash(1, 2, 3) AS a FROM histories", ", mode: realtime")))
    assert not any("runs in Python" in error.message for error in found.value.errors)


def test_an_unknown_message_or_field_is_refused(folder: Path) -> None:
    from headrace.functions.families.messages import pick
    from headrace.plan.functions import resources_of

    resources = resources_of(load(folder))
    assert pick(resources, "shop.Order", "place.city").returns == "array<string>"
    for message, path, code in [
        ("shop.Ordr", "number", "unknown-message"),
        ("shop.Order", "numbr", "unknown-column"),
        ("shop.Order", "place.town", "unknown-column"),
        ("shop.Order", "tags.x", "unknown-column"),
    ]:
        with pytest.raises(ProjectError) as found:
            pick(resources, message, path)
        assert found.value.code == code
    assert pick(resources, "", "customer").returns == "array<string>"  # the only message of a stream


def test_a_timestamp_of_a_message_has_seconds_and_nanos(folder: Path) -> None:
    from headrace.functions.families.messages import Filters, pick
    from headrace.plan.functions import resources_of

    resources = resources_of(load(folder))
    made = orders(folder, [{"made": "1970-01-01T00:01:40.5Z"}, {}, {"made": "1969-12-31T23:59:59.750Z"}])
    column = pa.array([made], pa.list_(pa.binary()))
    for path, kind, wanted in [
        ("made.seconds", "bigint", [100, None, -1]),
        ("made.nanos", "int", [500_000_000, None, 750_000_000]),
    ]:
        picked = pick(resources, "shop.Order", path)
        assert picked.returns == f"array<{kind}>"
        assert picked.compute(column).to_pylist() == [wanted]
    condition = pa.array([{"field": "made.seconds", "value": 100}])
    assert resources.messages is not None
    left = Filters(resources.messages)(column, pa.array(["shop.Order"]), condition)
    assert left.to_pylist() == [made[:1]]
