from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pydantic import ValidationError
from tests.processors.steps import Around

from headrace.core.errors import ProjectError
from headrace.processors.route import Route, RouteStep

ROUTES = [
    Route(to="dev.log", when="eid = 'LOG' -- they are many"),
    Route(to="dev.raw", when="eid <> 'LOG'"),
    Route(to="it's", when="n > 1"),
]


def test_conditions_are_checked() -> None:
    given = pa.schema([("eid", pa.string()), ("n", pa.int64())])
    step = RouteStep(routes=ROUTES, otherwise="x")
    assert step.output(given) == given.append(pa.field("topic", pa.string()))
    assert {"eid", "n", "q"} <= (step.uses(frozenset({"topic", "q"})) or set())
    assert "topic" not in (step.uses(frozenset({"topic"})) or set())
    assert step.label == "route by topic to dev.log, dev.raw, it's, x"
    for when in ("n >", "EXISTS (SELECT 1 FROM other)"):
        with pytest.raises(ValidationError):
            Route(to="x", when=when)
    with pytest.raises(ProjectError) as caught:
        RouteStep(routes=[Route(to="x", when="eidd = 1")]).output(given)
    assert caught.value.code == "unknown-column"


@pytest.mark.spark
def test_a_row_for_each_route_and_none_is_lost(tmp_path: Path, spark: Any) -> None:
    rows = [
        {"topic": "old", "eid": eid, "n": n} for eid, n in (("LOG", 1), ("A", 2), ("LOG", 5), (None, 0), (None, None))
    ]
    expected = [("dev.log", 1), ("dev.raw", 2), ("it's", 2), ("dev.log", 5), ("it's", 5)]
    around = Around(tmp_path)
    columns = "topic string, eid string, n bigint"
    made = around.run(spark, RouteStep(routes=ROUTES, otherwise="x"), rows, columns)
    assert [(row["topic"], row["n"]) for row in made] == [*expected, ("x", 0), ("x", None)]
    assert not around.letters()
    made = around.run(spark, RouteStep(routes=ROUTES), rows, columns)
    assert [(row["topic"], row["n"]) for row in made] == expected
    assert [letter["reason"] for letter in around.letters()] == ["no-route"] * 2
    every = RouteStep(column="to", routes=[Route(to="a"), Route(to="b", when="topic = 'old'")], otherwise="x")
    assert [row["to"] for row in around.run(spark, every, rows[:1], columns)] == ["a", "b"]


@pytest.mark.spark
def test_routes_together_are_a_list(tmp_path: Path, spark: Any) -> None:
    rows = [{"eid": eid, "n": n} for eid, n in (("LOG", 1), ("A", 2), (None, 0))]
    around = Around(tmp_path)
    step = RouteStep(routes=ROUTES, otherwise="x", together=True)
    given = pa.schema([("eid", pa.string()), ("n", pa.int64())])
    assert step.output(given).field("topic").type == pa.list_(pa.string())
    made = around.run(spark, step, rows, "eid string, n bigint")
    assert [row["topic"] for row in made] == [["dev.log"], ["dev.raw", "it's"], ["x"]]
    made = around.run(spark, RouteStep(routes=ROUTES, together=True), rows, "eid string, n bigint")
    assert [row["topic"] for row in made] == [["dev.log"], ["dev.raw", "it's"]]
    assert [letter["reason"] for letter in around.letters()] == ["no-route"]
