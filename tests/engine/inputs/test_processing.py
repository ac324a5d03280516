"""Steps before and after SQL: planned, run in their order, and kept out of each other's way."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from headrace.core.errors import ProjectErrors
from headrace.core.processor import ArrowProcessor, Batches, StepContext, Work, require
from headrace.plan.planner import make_plan
from headrace.project.loader import load
from headrace.testing.harness import ProjectHarness

PROJECT = """
project: steps
streams:
  orders:
    source: {type: files, path: in}
    format: {type: json, columns: "id bigint, amount bigint, unused string, at timestamp"}
    event_time: {column: at, max_future: null}
flows:
  marked:
    before: {orders: [{type: constant, values: {country: ID, amount: 7}}]}
    sql: SELECT id, country, amount FROM orders
    after: [{type: constant, values: {version: 2}}, {type: constant, values: {version: 3, note: null}}]
    sinks: [console]
  counted:
    before: {orders: [{type: constant, values: {country: ID}}]}
    sql: SELECT window.start AS start, country, count(*) AS n FROM orders GROUP BY window(at, '10 seconds'), country
    sinks: [console]
"""
START = datetime(2026, 1, 1, tzinfo=UTC)


class Halve(ArrowProcessor):
    """A step of a test: odd amounts become dead letters."""

    type: Literal["halve"] = "halve"

    def output(self, given: pa.Schema) -> pa.Schema:
        require(given, ["amount"], "halve")
        return given

    def work(self, given: pa.Schema, at: StepContext) -> Work:
        def halve(batches: Batches) -> Batches:
            for batch in batches:
                amounts = batch.column("amount")
                odd = pc.equal(pc.bit_wise_and(amounts, 1), 1)
                for index in pc.indices_nonzero(odd).to_pylist():
                    at.letters.keep(batch, index, "odd", f"{amounts[index]} is odd")
                index = batch.schema.get_field_index("amount")
                halved = batch.set_column(index, "amount", pc.divide(amounts, 2))
                yield halved.filter(pc.invert(odd))

        return halve


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "headrace.yaml").write_text(PROJECT)
    return tmp_path


def order(number: int, **more: Any) -> dict[str, Any]:
    return {"id": number, "amount": number, "at": START + timedelta(seconds=number), **more}


def test_only_columns_that_are_used_are_read(project: Path) -> None:
    plan = make_plan(load(project))
    marked = plan.flow("marked")
    assert next(marked.streams()).columns == ("id",)
    assert marked.output_columns == ("id", "country", "amount", "version", "note")
    assert [step.id for step in marked.steps()] == ["before.orders.0", "after.0", "after.1"]


@pytest.mark.parametrize(
    ("old", "new", "code", "place"),
    [
        ("before: {orders: [{type: constant, values: {country: ID, amount: 7}}]}",
         "before: {order: [{type: constant, values: {a: 1}}]}", "unknown-input", "flows.marked.before.order"),
        ("SELECT id, country, amount FROM", "SELECT id, contry FROM", "unknown-column", "flows.marked.sql, line 1"),
        ("type: constant, values: {version: 2}", "type: konstant", "unknown-kind", "flows.marked.after[0]"),
        ("values: {version: 2}", "value: {version: 2}", "unknown-key", "flows.marked.after[0].value"),
    ],
)  # fmt: skip
def test_mistakes_are_found_without_spark(project: Path, old: str, new: str, code: str, place: str) -> None:
    assert old in PROJECT
    (project / "headrace.yaml").write_text(PROJECT.replace(old, new))
    with pytest.raises(ProjectErrors) as caught:
        make_plan(load(project))
    found = {error.code: error.where for error in caught.value.errors}
    where = found[code]
    assert where is not None
    assert where.path == place


def test_sql_of_steps_may_use_the_functions_of_the_library_and_of_the_project(project: Path) -> None:
    (project / "functions").mkdir()
    (project / "functions" / "own.py").write_text("def doubled(n: int) -> int:\n    return 2 * n\n")
    step = "{type: sql, sql: 'SELECT *, doubled(id) AS twice, Distance(1, 1, 2, 2) AS far FROM rows'}"
    text = PROJECT.replace("after: [{type: constant", f"after: [{step}, {{type: constant", 1)
    (project / "headrace.yaml").write_text(text)
    marked = make_plan(load(project)).flow("marked")
    assert "doubled" in marked.functions
    assert "distance" not in marked.after[0].processor.statements[0].lower()
    assert marked.output_columns[-4:] == ("twice", "far", "version", "note")


@pytest.mark.spark
def test_steps_run_in_their_order(project: Path, spark: Any) -> None:
    with ProjectHarness(project, spark) as harness:
        harness.feed("orders", [order(n) for n in range(3)])
        harness.run("marked")
        assert sorted(harness.rows("marked"), key=lambda row: row["id"]) == [
            {"id": n, "country": "ID", "amount": 7, "version": 3, "note": None} for n in range(3)
        ]


@pytest.mark.spark
def test_a_window_after_a_step_through_python(project: Path, spark: Any) -> None:
    loaded = load(project)
    flow = loaded.spec.flows["counted"]
    loaded.spec.flows["counted"] = flow.model_copy(update={"before": {"orders": [Halve(), *flow.before["orders"]]}})
    with ProjectHarness(loaded, spark) as harness:
        harness.feed("orders", [order(n) for n in range(30)])
        harness.run("counted")
        harness.feed("orders", [order(1000)])
        harness.run("counted")
        rows = sorted(harness.rows("counted"), key=lambda row: row["start"])
        assert [(row["start"], row["n"]) for row in rows] == [
            (START + timedelta(seconds=begin), 5) for begin in (0, 10, 20)
        ]
        letters = harness.dead_letters("counted")
        assert len(letters) == 15
        assert {letter["stream"] for letter in letters} == {"before.orders.0"}
        assert {letter["reason"] for letter in letters} == {"odd"}


def test_steps_of_a_flow_inside_another_have_names_of_their_own(project: Path) -> None:
    inner = """
  outer:
    before: {marked: [{type: constant, values: {a: 1}}], orders: [{type: constant, values: {b: 1}}]}
    sql: SELECT m.id, m.a, o.b FROM marked m JOIN orders o ON m.id = o.id
    after: [{type: constant, values: {c: 1}}]
    sinks: [console]
"""
    (project / "headrace.yaml").write_text(PROJECT + inner)
    steps = list(make_plan(load(project)).flow("outer").steps())
    assert len({step.id for step in steps}) == len(steps)
    places = {(step.of, step.path) for step in steps}
    assert {("marked", ("before", "orders", 0)), ("marked", ("after", 1)), (None, ("after", 0))} <= places
    assert "marked.after.1" in [step.id for step in steps]
