from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.core.schema import from_ddl
from headrace.plan.model import FlowInput, LakeInput, StreamInput
from headrace.sql.lateness import LateRule

BEFORE = 13  # lines of the streams in the fixture's project, with `flows:`


def flow(name: str, sql: str, rest: str = "sinks: [noop]") -> str:
    return f'  {name}: {{sql: "{sql}", {rest}}}\n'


def test_a_flow_reads_the_columns_and_rows_it_uses(planned: Any) -> None:
    plan = planned(flow("f", "SELECT id, _offset FROM orders WHERE status = 'new' AND ts > '2020-01-01'")).flow("f")
    (orders,) = plan.inputs
    assert isinstance(orders, StreamInput)
    assert orders.columns == ("id", "status", "ts", "_offset")
    assert [str(one) for one in orders.filters] == ["status = 'new'"]
    assert orders.wanted.names == ["id", "status", "ts"]
    assert orders.metadata == ("_offset",)
    assert plan.output_columns == ("id", "_offset")
    assert plan.state == ()


def test_conditions_on_metadata_are_left_to_spark(planned: Any) -> None:
    (orders,) = planned(flow("f", "SELECT id FROM orders WHERE _partition = 0 AND _topic = 'orders'")).flow("f").inputs
    assert orders.filters == ()


def test_rows_that_are_only_counted_still_have_a_column(planned: Any) -> None:
    plan = planned(flow("f", "SELECT count(*) AS n FROM payments", "sinks: [noop], output: update")).flow("f")
    assert plan.inputs[0].wanted.names == ["id"]


def test_settings_come_from_the_flow_or_the_defaults(planned: Any) -> None:
    plan = planned(flow("f", "SELECT id FROM orders", "sinks: [noop], trigger: 5s, partitions: 7")).flow("f")
    assert (plan.trigger.total_seconds(), plan.partitions) == (5, 7)
    assert plan.max_records > 0


def test_columns_nobody_knows_are_all_read_unless_a_sample_tells(planned: Any) -> None:
    text = flow("f", "SELECT a FROM events e JOIN orders o ON e.id = o.id")
    unknown = {one.name: one for one in planned(text).flow("f").inputs}
    assert (unknown["events"].schema, unknown["events"].columns) == (None, None)
    assert unknown["orders"].columns == ("id",)
    sampled = planned(text, schema_of=lambda _name, _spec: from_ddl("a int, b int, id bigint"))
    assert {one.name: one.columns for one in sampled.flow("f").inputs}["events"] == ("a", "id")


def test_flows_are_read_through_their_lake_table_or_become_part(planned: Any) -> None:
    text = (
        flow("c", "SELECT b.n, a.id FROM a JOIN b ON a.id = b.n JOIN orders o ON o.id = a.id")
        + flow("a", "SELECT id FROM orders", "sinks: [{type: lake, path: lake/a}], event_time: ts")
        + flow("b", "SELECT id AS n FROM payments", "sinks: []")
    )
    plan = planned(text)
    assert [one.name for one in plan.flows] == ["a", "c"]
    inlined, lake, stream = plan.flow("c").inputs
    assert isinstance(inlined, FlowInput), "flows first: registering them must not hide what this flow reads itself"
    assert isinstance(lake, LakeInput)
    assert isinstance(stream, StreamInput)
    assert (lake.path.endswith("/lake/a"), lake.event_time.column) == (True, "ts")
    assert inlined.inputs[0].columns == ("id",)
    assert [one.name for one in plan.flow("c").streams()] == ["payments", "orders"]
    assert plan.flow("c").state == ("join",)


def test_state_of_a_flow_that_became_part_counts(planned: Any) -> None:
    counted = flow("a", "SELECT window(ts, '1 minute') AS w, count(*) AS n FROM orders GROUP BY 1", "sinks: []")
    assert planned(counted + flow("b", "SELECT n FROM a")).flow("b").state == ("aggregate",)


def test_only_the_flows_asked_for_are_planned(planned: Any, errors: Any) -> None:
    text = (
        flow("good", "SELECT id FROM orders") + flow("bad", "SELECT nothing FROM orders") + flow("dry", "SELECT 1", "")
    )
    assert [one.name for one in planned(text, ("good",)).flows] == ["good"]
    assert [e.code for e in errors(text, ("dry",))] == ["no-sinks"]
    (unknown,) = errors(text, ("god",))
    assert (unknown.code, int(unknown.exit_code)) == ("unknown-flow", 4)
    assert "'good'?" in str(unknown.hint)


@pytest.mark.parametrize(
    ("text", "code", "line", "words"),
    [
        (flow("f", "SELECT ammount FROM orders"), "unknown-column", 1, "'amount'?"),
        (flow("f", "SELECT id FROM ordrs"), "unknown-input", 1, "'orders'?"),
        (flow("f", "SELECT id FROM"), "sql-syntax", 1, "check"),
        (flow("f", "DROP TABLE orders"), "sql-not-a-query", 1, "single SELECT"),
        (
            "  f:\n    sinks: [noop]\n    sql: |\n      SELECT\n        ammount\n      FROM orders",
            "unknown-column",
            5,
            "amount",
        ),
        (
            "  f:\n    sinks: [noop]\n    sql: >\n      SELECT\n        id\n      FROM ordrs",
            "unknown-input",
            6,
            "orders",
        ),
        (flow("f", "SELECT id FROM orders ORDER BY id"), "sql-not-streamable", 1, "mode: batch"),
        (flow("f", "SELECT count(*) AS n FROM orders"), "sql-needs-watermark", 1, "output: update"),
        (flow("f", "SELECT id FROM g") + flow("g", "SELECT id FROM f"), "flow-cycle", 1, "stream"),
        (flow("f", "SELECT id FROM f"), "flow-cycle", 1, "stream"),
        (flow("f", "SELECT id FROM orders", "mode: realtime, sinks: [noop]"), "realtime-unsupported", 1, "micro_batch"),
        (
            flow("f", "SELECT id FROM g") + flow("g", "SELECT id FROM orders ORDER BY id", "mode: batch"),
            "sql-not-streamable",
            2,
            "",
        ),
        (
            flow("f", "SELECT x FROM g") + flow("g", "SELECT id FROM orders", ""),
            "unknown-column",
            1,
            "columns of 'g': id",
        ),
        (
            flow("f", "SELECT id FROM orders", "sinks: [endpoint]")
            + flow("g", "SELECT id FROM orders", "sinks: [{type: endpoint, name: f}]"),
            "endpoint-twice",
            2,
            "another `name`",
        ),
        (flow("health", "SELECT id FROM orders", "sinks: [endpoint]"), "endpoint-name", 1, "another `name`"),
        (
            flow("f", "SELECT id, amount FROM orders", "sinks: [{type: endpoint, key: idd}]"),
            "unknown-column",
            1,
            "did you mean 'id'?",
        ),
    ],
)
def test_what_is_wrong_with_a_flow_has_its_place(errors: Any, text: str, code: str, line: int, words: str) -> None:
    found = errors(text)
    assert {error.code for error in found} == {code}
    assert found[0].where.line == BEFORE + line
    assert words in str(found[0].hint)


def test_batches_may_have_an_end(planned: Any) -> None:
    assert planned(flow("f", "SELECT id FROM orders ORDER BY id LIMIT 3", "mode: batch, sinks: [noop]")).flows


def test_an_error_of_one_flow_is_not_repeated_for_those_that_read_it(errors: Any) -> None:
    readers = "".join(flow(name, "SELECT id FROM bad JOIN broken USING (id)") for name in ("a", "b", "c"))
    bad = flow("bad", "SELECT idd AS id FROM orders") + flow("broken", "SELECT id,, FROM orders WHERE")
    assert sorted(error.code for error in errors(readers + bad)) == ["sql-syntax", "unknown-column"]


def test_all_errors_of_all_flows_come_at_once(errors: Any) -> None:
    text = flow("a", "SELECT idd, statuss FROM orders") + flow(
        "b", "SELECT x.id FROM nowhere x JOIN neither y USING (id)"
    )
    assert [e.code for e in errors(text)] == ["unknown-column", "unknown-column", "unknown-input", "unknown-input"]


@pytest.mark.parametrize(("column", "code"), [("tss", "unknown-column"), ("driver", "bad-event-time")])
def test_the_event_time_must_be_able_to_be_a_time(errors: Any, tmp_path: Path, column: str, code: str) -> None:
    source = "{type: kafka, brokers: ['a:1'], topic: t}"
    form = "{type: json, columns: 'id bigint, ts timestamp, driver struct<a: int>'}"
    stream = f"{{source: {source}, format: {form}, event_time: {column}}}"
    (tmp_path / "more.yaml").write_text(f"streams: {{timed: {stream}}}\n")
    (error,) = errors(flow("f", "SELECT id FROM timed") + "include: [more.yaml]\n")
    assert (error.code, error.where.file) == (code, "more.yaml")


def test_a_stream_of_bytes_needs_a_format(errors: Any, tmp_path: Path) -> None:
    (tmp_path / "more.yaml").write_text("streams: {bare: {source: {type: kafka, brokers: ['a:1'], topic: t}}}\n")
    (error,) = errors(flow("f", "SELECT value FROM bare") + "include: [more.yaml]\n")
    assert error.code == "missing-format"


def test_a_catalogue_table_is_left_to_spark(planned: Any) -> None:
    (orders,) = planned(flow("f", "SELECT o.id FROM orders o JOIN lake.other x ON o.id = x.k")).flow("f").inputs
    assert orders.columns == ("id",)


def test_the_guarantee_is_that_of_the_weakest_sink(planned: Any) -> None:
    plan = planned(flow("f", "SELECT id FROM orders", "sinks: [{type: lake, path: x}, console]")).flow("f")
    by_kind = {step.sink.kind(): step.sink.guarantee for step in plan.sinks}
    assert by_kind["lake"] == "exactly_once"
    assert plan.guarantee == by_kind["console"]


def test_sinks_keep_their_ids_when_others_come_go_or_change_places(planned: Any) -> None:
    def ids(sinks: str) -> list[str]:
        return [step.id for step in planned(flow("f", "SELECT id FROM orders", f"sinks: [{sinks}]")).flow("f").sinks]

    a, b = "{type: lake, path: a}", "{type: lake, path: b, key: [id]}"
    first = ids(f"{a}, {b}, console")
    assert len(set(first)) == 3
    assert (ids(f"console, {b}, {a}"), ids(b)) == (first[::-1], first[1:2])
    assert ids(b.replace(", key: [id]", "")) == first[1:2], "how it is written does not matter"
    here, there = (f"{{type: kafka, brokers: ['{host}:1'], topic: t}}" for host in ("here", "there"))
    assert ids(f"{here}, {there}") == ids(f"{there}, {here}")[::-1]
    assert ids("console, console") == ["console", "console-2"]


def test_wanted_columns_of_a_schema_without_columns_are_none(planned: Any) -> None:
    (events,) = planned(flow("f", "SELECT 1 AS one FROM events"), schema_of=lambda *_: pa.schema([])).flow("f").inputs
    assert events.wanted.names == []


def test_a_flow_with_state_knows_when_its_rows_are_late(planned: Any) -> None:
    windowed = "SELECT window.end AS till, count(*) AS n FROM {} GROUP BY window(ts, '10 seconds')"
    ten = LateRule(10_000_000, 10_000_000)
    (orders,) = planned(flow("f", windowed.format("orders"))).flow("f").inputs
    assert (orders.stateful, orders.late) == (True, ten)
    (orders,) = planned(flow("f", "SELECT id, ts FROM orders")).flow("f").inputs
    assert (orders.stateful, orders.late) == (False, None)
    parts = flow("new", "SELECT * FROM orders WHERE status = 'new'", "sinks: []") + flow("f", windowed.format("new"))
    (new,) = planned(parts).flow("f").inputs
    assert [(one.stateful, one.late) for one in new.inputs] == [(True, ten)]
    through_lake = flow("new", "SELECT id, ts FROM orders", "sinks: [{type: lake, path: l}], event_time: ts")
    (lake,) = planned(through_lake + flow("f", windowed.format("new"))).flow("f").inputs
    assert (lake.late, lake.columns) == (ten, ("ts",))


def test_a_setting_that_changes_what_is_late_leaves_it_to_spark(planned: Any) -> None:
    setting = "sinks: [noop], spark: {spark.sql.streaming.statefulOperator.allowMultiple: false}"
    text = flow("f", "SELECT count(*) AS n FROM orders GROUP BY window(ts, '10 seconds')", setting)
    assert planned(text).flow("f").inputs[0].late is None
