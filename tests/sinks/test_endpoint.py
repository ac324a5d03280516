"""The sink `endpoint`: changes of a flow become segments of a log, once, with one change per key and batch."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.errors import code_of
from tests.sinks.changes import KEY, LIFE, Row, frame, live
from tests.sinks.conftest import Desk
from tests.sinks.trials import Trial

from headrace.core.capabilities import Candidate, Rewind
from headrace.core.context import Context
from headrace.core.endpoints import OP, Conflicts, Op
from headrace.core.errors import ProjectError
from headrace.core.schema import from_ddl
from headrace.log.folder import LogFolder
from headrace.log.log import LogDamagedError
from headrace.sinks.endpoint import EndpointSink
from headrace.sinks.endpoint.net_changes import Change, net, net_batches


def sink(**options: Any) -> EndpointSink:
    return EndpointSink.model_validate({"type": "endpoint", "name": "orders", "key": "id"} | options)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path, state=str(tmp_path / "state"))


def context_of(desk: Desk) -> Context:
    return desk.batch().context


def logs(desk: Desk) -> LogFolder:
    return LogFolder(context_of(desk).log_path)


def changes(desk: Desk, version: int = 1) -> list[list[tuple[Any, ...]]]:
    """The changes of every segment: what is done, and the row."""
    log = logs(desk).open("orders", version)
    return [sorted(_told(log.changes(segment)), key=str) for segment in log.after(0)]


def _told(batches: Any) -> list[tuple[Any, ...]]:
    rows = [row for batch in batches for row in batch.to_pylist()]
    return [(Op(row.pop(OP)).name, *(row[name] for name in row if not name.startswith("__"))) for row in rows]


# What the options mean, without Spark


def test_an_endpoint_is_called_as_its_flow_unless_it_says_otherwise() -> None:
    plain = EndpointSink.model_validate({"type": "endpoint"}).of_flow("totals")
    assert (plain.name, plain.target, plain.endpoint, plain.label) == ("totals",) * 3 + ("endpoint totals",)
    named = sink(key=["region", "id"]).of_flow("totals")
    assert (named.name, named.label) == ("orders", "endpoint orders by region, id")
    assert code_of(lambda: EndpointSink.model_validate({"type": "endpoint"}).of_flow("health")) == "endpoint-name"


def test_options_that_do_not_fit_together_are_refused() -> None:
    for options, word in (
        ({"key": [], "sequence": "at"}, "needs `key`"),
        ({"key": [], "delete": "gone"}, "needs `key`"),
        ({"delete": "gone", "operation": "op"}, "superfluous"),
        ({"on_insert": "update"}, "needs `operation`"),
        ({"on_update": "upsert", "delete": "gone"}, "needs `operation`"),
        ({"on_delete": "error"}, "needs `delete` or `operation`"),
        ({"key": ["id", "id"]}, "twice"),
        ({"indexes": [["a", "a"]]}, "twice"),
        ({"delete": "gone", "indexes": ["gone"]}, "not part"),
        ({"name": "sql"}, "address of the server"),
        ({"name": "a/b"}, "pattern"),
    ):
        with pytest.raises(ValueError, match=word):
            sink(**options)


def test_columns_that_are_not_there_or_do_not_fit_are_refused() -> None:
    context = Context(Path(), "state")

    def check(ddl: str, output: str = "append", **options: Any) -> None:
        schema = from_ddl(ddl)
        sink(**options).check_rows(context, schema.names, output, schema)

    check("id bigint, state string", indexes=["state", ["state", "id"]], text=["state"])
    assert code_of(lambda: check("nr bigint")) == "unknown-column"
    for options in ({"indexes": ["stat"]}, {"text": ["stat"]}, {"sequence": "stat"}, {"delete": "stat"}):
        with pytest.raises(ProjectError, match="'stat'") as unknown:
            check("id bigint, state string", **options)
        assert (unknown.value.code, "did you mean 'state'" in (unknown.value.hint or "")) == ("unknown-column", True)
    assert code_of(lambda: check("id bigint, __x string")) == "endpoint-column"
    assert code_of(lambda: check("id bigint", "update", key=[])) == "sink-needs-key"
    for ddl, options in (
        ("id array<int>", {}),
        ("id struct<a int>", {}),
        ("id bigint, m map<string, int>", {"indexes": ["m"]}),
        ("id bigint, n int", {"text": ["n"]}),
        ("id bigint, n int", {"delete": "n"}),
        ("id bigint, n int", {"operation": "n"}),
    ):
        assert code_of(lambda ddl=ddl, options=options: check(ddl, **options)) == "sink-column-type"


def test_what_a_version_is_made_for_does_not_hold_what_tells_of_changes() -> None:
    made = sink(operation="op", indexes=["state"], on_insert="update").defined(
        from_ddl("id bigint, op string, state string")
    )
    assert made.columns == from_ddl("id bigint, state string")
    assert (made.key, made.indexes, made.conflicts) == (("id",), (("state",),), Conflicts(on_insert="update"))


# Several changes of one key


def _apply(row: int | None, steps: Sequence[Change], conflicts: Conflicts) -> tuple[int | None, int]:
    """What is there after some changes of one key, and how many were refused."""
    refused = 0
    for op, number in steps:
        there = row is not None
        policy = {Op.INSERT: conflicts.on_insert, Op.UPDATE: conflicts.on_update, Op.DELETE: conflicts.on_delete}
        clashes = (op is Op.INSERT and there) or (op in (Op.UPDATE, Op.DELETE) and not there)
        if clashes and policy[op] in ("nothing", "error"):
            refused += policy[op] == "error"
        else:
            row = None if op is Op.DELETE else number
    return row, refused


def test_changes_of_one_key_are_put_together_to_the_same_effect() -> None:
    """All of them up to three, under all policies, whether the row is there before or not."""
    policies = itertools.product(("nothing", "update", "error"), ("nothing", "upsert", "error"), ("nothing", "error"))
    for policy in policies:
        conflicts = Conflicts(*policy)  # type: ignore[arg-type]
        for length in (1, 2, 3):
            for ops in itertools.product(Op, repeat=length):
                given = [(op, number) for number, op in enumerate(ops)]
                for before in (None, -1):
                    assert _apply(before, given, conflicts) == _apply(before, net(given, conflicts), conflicts)


def test_a_flood_of_changes_becomes_one() -> None:
    for ops in ([Op.UPSERT] * 5, [Op.UPDATE] * 5, [Op.INSERT, Op.UPDATE, Op.DELETE], [Op.DELETE, Op.INSERT]):
        assert len(net([(op, 0) for op in ops], Conflicts())) == 1
    assert net([(Op.INSERT, 0), (Op.DELETE, 1)], Conflicts(on_insert="error")) == [(Op.INSERT, 0), (Op.DELETE, 1)]


def test_changes_of_one_key_are_found_across_batches() -> None:
    schema = pa.schema([(OP, pa.int8()), ("a", pa.int64()), ("b", pa.string()), ("n", pa.int64())])
    rows = [(0, 1, "x", 0), (0, 1, "x", 1), (0, 1, "x", 2), (3, 1, "y", 3), (0, 2, "y", 4), (2, 2, "y", 5)]
    for cuts in itertools.product((True, False), repeat=5):
        pieces: list[list[tuple[Any, ...]]] = [[]]
        for row, cut in zip(rows, (*cuts, False), strict=True):
            pieces[-1].append(row)
            pieces += [[]] if cut else []
        batches = [
            pa.RecordBatch.from_pylist([dict(zip(schema.names, row, strict=True)) for row in piece], schema)
            for piece in pieces
        ]
        found = [
            tuple(row.values())
            for batch in net_batches(iter(batches), ["a", "b"], Conflicts())
            for row in batch.to_pylist()
        ]
        assert found == [(0, 1, "x", 2), (3, 1, "y", 3), (0, 2, "y", 5)]


# With Spark


@pytest.mark.spark
def test_batches_become_segments_once_each(spark: Any, desk: Desk) -> None:
    rows = spark.sql("SELECT id, concat('s', id) AS state, id = 1 AS gone FROM range(0, 3, 1, 2)")
    made = sink(delete="gone")
    for number in (0, 1, 1, 0):
        made.write_batch(rows, desk.batch(number))
    expected = [("DELETE", 1, "s1"), ("UPSERT", 0, "s0"), ("UPSERT", 2, "s2")]
    assert changes(desk) == [expected, expected]
    sink(delete="gone").write_batch(rows, desk.batch(1))
    assert len(changes(desk)) == 2, "also by another process"
    made.write_batch(rows, desk.batch(0, generation="g2"))
    made.write_batch(rows.limit(0), desk.batch(1, generation="g2"))
    assert len(changes(desk)) == 3
    tally = desk.batch().tally
    made.write_batch(rows, batch := desk.batch(2, generation="g2"))
    assert batch.tally.counts() == {("flow", "sink", "written"): 3}
    assert tally.counts() == {}


@pytest.mark.spark
def test_the_last_of_several_rows_with_one_key_wins(spark: Any, desk: Desk) -> None:
    rows = spark.sql("SELECT id % 3 AS id, id AS n, CAST(10 - id AS int) AS at FROM range(0, 9, 1, 1)")
    sink().write_batch(rows, desk.batch(0))
    sink(sequence="at").write_batch(rows, desk.batch(1))
    tied = rows.withColumn("at", rows["at"] * 0)
    sink(sequence="at").write_batch(tied, desk.batch(2))
    last = [("UPSERT", 0, 6, 4), ("UPSERT", 1, 7, 3), ("UPSERT", 2, 8, 2)]
    assert changes(desk)[0] == last
    assert changes(desk)[1] == [("UPSERT", 0, 0, 10), ("UPSERT", 1, 1, 9), ("UPSERT", 2, 2, 8)]
    assert [row[2] for row in changes(desk)[2]] == [6, 7, 8]


@pytest.mark.spark
def test_rows_without_a_key_are_all_added_in_order(spark: Any, desk: Desk) -> None:
    rows = spark.sql("SELECT id % 2 AS id, id AS n FROM range(0, 6, 1, 2)")
    sink(key=[]).write_batch(rows, desk.batch())
    log = logs(desk).open("orders", 1)
    (segment,) = log.after(0)
    assert _told(log.changes(segment)) == [("INSERT", number % 2, number) for number in range(6)]


@pytest.mark.spark
def test_operations_are_put_together_by_key(spark: Any, desk: Desk) -> None:
    steps = [(1, "insert"), (1, "UPDATE"), (2, "update"), (2, "delete"), (3, "insert"), (3, "insert"), (4, "upsert")]
    rows = spark.createDataFrame(
        [(key, op, number) for number, (key, op) in enumerate(steps)], "id int, op string, n int"
    )
    sink(operation="op").write_batch(rows.coalesce(1), desk.batch())
    assert changes(desk) == [[("DELETE", 2, 3), ("INSERT", 3, 4), ("UPSERT", 1, 1), ("UPSERT", 4, 6)]]


@pytest.mark.spark
def test_rows_that_cannot_be_changes_are_dead_letters(spark: Any, desk: Desk) -> None:
    rows = spark.createDataFrame(
        [(1, "insert", "a"), (None, "insert", "b"), (2, "munge", "c")], "id int, op string, s string"
    )
    sink(operation="op").write_batch(rows.coalesce(1), batch := desk.batch())
    assert changes(desk) == [[("INSERT", 1, "a")]]
    assert sorted(letter["reason"] for letter in desk.letters()) == ["bad-operation", "no-key"]
    assert batch.tally.counts()[("flow", "sink", "refused")] == 2
    with pytest.raises(Exception, match="sink-row-refused"):
        sink(name="strict", operation="op", on_error="fail").write_batch(rows, desk.batch())


@pytest.mark.spark
def test_values_of_all_types_come_through(spark: Any, desk: Desk) -> None:
    rows = spark.sql(
        "SELECT 1 AS id, CAST(1.5 AS decimal(10, 2)) AS d, TIMESTAMP '2026-01-31 12:00:00' AS t, "
        "DATE '2026-01-31' AS day, TIMESTAMP_NTZ '2026-01-31 12:00:00' AS ntz, X'00FF' AS b, "
        "array(1, 2) AS a, map('k', 1.0D) AS m, named_struct('x', 1, 'y', array('z')) AS s, "
        "CAST(null AS string) AS nothing, true AS yes, 'v' AS `c.v`"
    )
    sink().write_batch(rows, desk.batch())
    log = logs(desk).open("orders", 1)
    (batch,) = log.changes(log.after(0)[0])
    assert batch.schema == log.endpoint.changes
    row = batch.to_pylist()[0]
    assert (row["id"], str(row["d"]), row["t"].isoformat()) == (1, "1.50", "2026-01-31T12:00:00+00:00")
    assert (row["a"], row["m"], row["s"], row["c"]) == ([1, 2], [("k", 1.0)], {"x": 1, "y": ["z"]}, {"v": "v"})


@pytest.mark.spark
def test_a_changed_definition_needs_a_generation_and_is_served_when_it_has_caught_up(spark: Any, desk: Desk) -> None:
    rows, context = spark.range(3), context_of(desk)
    sink().write_batch(rows, desk.batch(0))
    wider = rows.withColumn("n", rows["id"] * 2)
    for changed, given in ((sink(), wider), (sink(indexes=["id"]), rows)):
        assert (
            code_of(lambda changed=changed, given=given: changed.write_batch(given, desk.batch(1)))
            == "endpoint-changed"
        )
    made = sink()
    assert not made.has_unpublished
    made.write_batch(wider, desk.batch(0, generation="g2"))
    assert (made.has_unpublished, logs(desk).served("orders")) == (True, 1)
    made.publish_caught_up(context)
    assert (made.has_unpublished, logs(desk).served("orders")) == (False, 2)
    made.write_batch(wider, desk.batch(1, generation="g2"))
    assert [len(changes(desk, version)) for version in (1, 2)] == [1, 2]
    described = sink(description="All orders")
    described.write_batch(wider, desk.batch(2, generation="g2"))
    assert logs(desk).versions("orders")[1].description == "All orders"


@pytest.mark.spark
def test_a_generation_built_beside_has_a_version_of_its_own(spark: Any, desk: Desk) -> None:
    context, rows = context_of(desk), spark.range(3)
    made = sink()
    made.write_batch(rows, desk.batch(0))
    side = Candidate("flow", "sink", "g2", context)
    assert "instead of version 1" in made.candidate_effect(side)
    beside = made.candidate_sink(side)
    beside.write_batch(rows.limit(1), desk.batch(0, generation="g2"))
    made.write_batch(rows, desk.batch(1))
    assert (beside.has_unpublished, logs(desk).served("orders")) == (False, 1)
    for _ in range(2):
        made.publish(side, spark)
        made.drop_candidate(side)
    assert logs(desk).served("orders") == 2
    sink().write_batch(rows.limit(2), desk.batch(1, generation="g2"))
    assert [len(segment) for segment in changes(desk, 1)] == [3, 3]
    assert [len(segment) for segment in changes(desk, 2)] == [1, 2]
    other = Candidate("flow", "sink", "g3", context)
    made.candidate_sink(other).write_batch(rows, desk.batch(0, generation="g3"))
    for _ in range(2):
        made.drop_candidate(other)
    assert [one.version for one in logs(desk).versions("orders")] == [1, 2]


@pytest.mark.spark
def test_a_rewind_that_replaces_goes_on_with_the_first_batches(spark: Any, desk: Desk) -> None:
    context, made = context_of(desk), sink()

    def rewind(kept: tuple[str, int] | None, generation: str = "") -> Rewind:
        return Rewind("flow", "sink", context, kept, 5, generation)

    assert "nothing was written" in made.rewind_effect(rewind(None), True)
    for number in range(4):
        made.write_batch(spark.range(number + 1), desk.batch(number))
    assert (
        made.rewind_effect(rewind(("g1", 1)), False)
        == "5 records are read again: their rows replace those of the same key"
    )
    assert "first 2 of 4 batches" in made.rewind_effect(rewind(("g1", 1)), True)
    assert "nothing was written" in made.rewind_effect(rewind(("g1", 3)), True)
    for _ in range(2):
        made.take_back(rewind(("g1", 1), "g2-x"))
    assert logs(desk).served("orders") == 2
    assert [len(segment) for segment in changes(desk, 2)] == [1, 2]
    made.write_batch(spark.range(9), desk.batch(0, generation="g2-x"))
    assert [[len(segment) for segment in changes(desk, number)] for number in (1, 2)] == [[1, 2, 3, 4], [1, 2, 9]]
    made.write_batch(spark.range(1), desk.batch(0, generation="replay-1"))
    assert code_of(lambda: made.rewind_effect(rewind(("g1", 0)), True)) == "rewind-replayed"
    made.take_back(rewind(None, "g3-x"))
    assert (logs(desk).served("orders"), changes(desk, 3)) == (3, [])
    made.write_batch(spark.range(1), desk.batch(0, generation="g3-x"))
    made.write_batch(spark.range(1), desk.batch(1, generation="g3-x"))
    logs(desk).open("orders", 3).cut(1)
    assert code_of(lambda: made.rewind_effect(rewind(("g3-x", 0)), True)) == "rewind-history-gone"


@pytest.mark.spark
def test_damage_to_what_was_written_is_noticed(spark: Any, desk: Desk) -> None:
    sink().write_batch(spark.range(100).coalesce(1), desk.batch())
    part = next(Path(desk.folder).rglob("*.arrow"))
    content = bytearray(part.read_bytes())
    content[len(content) // 2] ^= 0x10
    part.write_bytes(content)
    log = logs(desk).open("orders", 1)
    with pytest.raises(LogDamagedError):
        list(log.changes(log.after(0)[0]))


@pytest.mark.spark
def test_changes_of_a_view_are_changes_of_the_endpoint(spark: Any, desk: Desk) -> None:
    made = sink(key=[])

    def held() -> list[Row]:
        rows: dict[Row, Row] = {}
        for op, *row in (change for segment in changes(desk) for change in segment):
            assert (op == "INSERT") == (tuple(row[:2]) not in rows)
            rows.pop(tuple(row[:2]), None)
            rows |= {tuple(row[:2]): tuple(row)} if op != "DELETE" else {}
        return list(rows.values())

    live(spark, lambda: made.of_view(KEY), desk.batch, held)
    assert [len(segment) for segment in changes(desk)] == [len(batch) for batch in LIFE]
    endpoint = logs(desk).newest("orders").endpoint
    assert (endpoint.key, endpoint.conflicts) == (KEY, Conflicts("update", "upsert", "nothing"))
    assert endpoint.columns.names == ["region", "id", "amount", "note"]
    batch = desk.batch(3)
    row = (None, 1, None, "no region")
    made.write_changes(frame(spark, [(Op.INSERT, row, None), (Op.INSERT, ("x", 1, None, None), None)]), KEY, batch)
    (letter,) = desk.letters()
    assert (letter["reason"], json.loads(letter["value"])["note"]) == ("no-key", "no region")
    assert batch.tally.counts() == {("flow", "sink", "written"): 1, ("flow", "sink", "refused"): 1}


@pytest.mark.spark
def test_a_new_generation_of_a_view_fills_a_version_of_its_own(spark: Any, desk: Desk) -> None:
    def write(number: int, generation: str, made: EndpointSink) -> EndpointSink:
        made.write_changes(frame(spark, LIFE[number]), KEY, desk.batch(number, generation))
        return made

    first = write(0, "g1", sink(key=[]))
    assert (logs(desk).served("orders"), first.has_unpublished) == (1, False)
    write(0, "g2", sink(key=[]))
    anew = sink(key=[])
    for number in (0, 0, 1):
        write(number, "g3", anew)
    versions = [(one.number, one.ready) for one in logs(desk).details("orders")]
    assert versions == [(1, True), (3, False)], "what nobody will finish is dropped"
    assert (logs(desk).served("orders"), anew.has_unpublished) == (1, True)
    anew.publish_caught_up(context_of(desk))
    assert (logs(desk).served("orders"), anew.has_unpublished) == (3, False)
    write(2, "g3", anew)
    write(2, "g3", sink(key=[]))
    assert [len(segment) for segment in changes(desk, 3)] == [len(batch) for batch in LIFE]
    assert len(changes(desk, 1)) == 1


def trial(request: pytest.FixtureRequest, folder: Path) -> Trial:
    logs = LogFolder(Context(folder, str(folder / "state")).log_path)

    def notes() -> list[str]:
        rows: dict[tuple[str, int], str] = {}
        log = logs.open("orders", logs.served("orders") or 1)
        for op, region, id, note, _at in (row for part in log.after(0) for row in _told(log.changes(part))):
            rows.pop((region, id), None)
            rows |= {} if op == "DELETE" else {(region, id): note}
        return list(rows.values())

    return Trial(lambda: sink(key=list(KEY)), notes)
