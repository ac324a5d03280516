"""`headrace sql` on real projects."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from headrace.cli.terminal.signals import cancelling
from headrace.core.errors import ProjectError
from headrace.engine.adhoc.answers import to_document
from headrace.engine.adhoc.query import AdHocSession, split_statements
from headrace.engine.letters.dead_letters import DeadLetterWriter
from headrace.engine.letters.late_rows import LateRowWriter
from headrace.engine.state.batch_clock import BatchTimes
from headrace.engine.state.state import StateDir
from headrace.project.loader import load
from headrace.sql.errors import SqlError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SELECT 1", ["SELECT 1"]),
        ("SELECT 1; SELECT 2;", ["SELECT 1", "SELECT 2"]),
        ("SELECT ';' -- not; here\n; SELECT 2", ["SELECT ';' -- not; here", "SELECT 2"]),
        ('SELECT `a;b`, "c;d" FROM t;\n\n ;', ['SELECT `a;b`, "c;d" FROM t']),
        ("/* ; */ SELECT 1", ["/* ; */ SELECT 1"]),
        ("", []),
        ("SELECT 'unclosed", ["SELECT 'unclosed"]),
        ("SELECT ';\\';'; -- it's\nSELECT \"a;", ["SELECT ';\\';'", "-- it's\nSELECT \"a;"]),
        ("SELECT 1; /* open; SELECT 2", ["SELECT 1", "/* open; SELECT 2"]),
    ],
)
def test_statements_are_cut_at_semicolons(text: str, expected: list[str]) -> None:
    assert split_statements(text) == expected


@pytest.fixture
def session(tmp_path: Path, spark: SparkSession) -> AdHocSession:
    (tmp_path / "data").mkdir()
    lines = [json.dumps({"id": n, "name": f"n{n}"}) for n in range(5)] + ["bad"]
    (tmp_path / "data" / "a.json").write_text("\n".join(lines) + "\n")
    (tmp_path / "headrace.yaml").write_text(
        "project: session\n"
        "streams:\n"
        "  things:\n"
        "    source: {type: files, path: data}\n"
        "    format: {type: json, columns: 'id bigint, name string'}\n"
        "flows:\n"
        "  kept: {sql: SELECT id FROM things, sinks: [{type: lake, path: lake/kept}]}\n"
        "  gone: {sql: SELECT id FROM things, sinks: [noop]}\n"
    )
    project = load(tmp_path)
    return AdHocSession(spark.newSession(), project, StateDir.of(project.context), tmp_path / "letters")


@pytest.mark.spark
def test_streams_can_be_asked_and_what_is_not_in_the_answer_is_counted(session: AdHocSession) -> None:
    found = to_document(session.run("SELECT count(*) AS n, max(name) AS m FROM things"))
    assert found == {"columns": ["n", "m"], "rows": [[5, "n4"]]}
    assert session.undecoded() == {"things": 1}
    assert session.undecoded() == {}
    variants = to_document(session.run("""SELECT 1 AS n, parse_json('{"a": [1]}') AS n, 'x' AS v"""))
    assert variants == {"columns": ["n", "n", "v"], "rows": [[1, '{"a":[1]}', "x"]]}
    assert session.run("SELECT * FROM dead_letters").num_rows == 0  # they are those of flows


@pytest.mark.spark
def test_dead_letters_and_late_rows_of_flows_can_be_asked(session: AdHocSession) -> None:
    box = DeadLetterWriter(session.state.dead_letters, "kept", "things", "g1")
    box.add("malformed", "no JSON", {"row": 5}, b"bad")
    box.flush()
    found = to_document(session.run("SELECT flow, reason, decode(value, 'utf-8') AS value FROM dead_letters"))
    assert found["rows"] == [["kept", "malformed", "bad"]]
    late = LateRowWriter(session.state.late, "kept", "things", "g1")
    moment = pa.array([0], pa.int64()).cast(pa.timestamp("us", tz="UTC"))
    late.add(pa.RecordBatch.from_arrays([moment], names=["at"]), "at", [{"row": 5}], BatchTimes(3, 0, 20, 10))
    late.flush()
    assert to_document(session.run("SELECT flow, batch, row FROM late_rows"))["rows"] == [
        ["kept", 3, '{"at": "1970-01-01T00:00:00+00:00"}']
    ]


@pytest.mark.spark
@pytest.mark.parametrize(
    ("statement", "code", "hint"),
    [
        ("SELECT\n nme FROM things", "unknown-column", "columns: name"),
        ("SELECT\n 1 +", "sql-syntax", "check commas"),
        ("SELECT *\nFROM thngs", "unknown-input", "did you mean 'things'?"),
        ("SELECT 1,\n nofunc(1)", "unknown-function", "SHOW FUNCTIONS"),
        ("SELECT id\n / 0 FROM things", "sql-failed", "DIVIDE_BY_ZERO"),
        ("SELECT 1,\n interval '2' month", "sql-failed", "cast the column"),
        ("SELECT * FROM gone", "flow-without-table", "lake"),
        ("SELECT * FROM kept", "lake-missing", "headrace run kept"),
    ],
)
def test_errors_have_codes(session: AdHocSession, statement: str, code: str, hint: str) -> None:
    with pytest.raises(ProjectError) as found:
        session.run(statement)
    assert found.value.code == code
    assert hint in str(found.value.hint)
    if isinstance(found.value, SqlError) and "month" not in statement:
        assert found.value.line == (1 if code == "sql-failed" else 2)


@pytest.mark.spark
def test_ctrl_c_ends_a_long_question_at_once(session: AdHocSession) -> None:
    spark = session.spark.sparkContext

    def interrupt_when_it_runs() -> None:
        while not spark.statusTracker().getActiveJobsIds():
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    with cancelling(spark.cancelAllJobs) as interrupted:
        threading.Thread(target=interrupt_when_it_runs, daemon=True).start()
        with pytest.raises((KeyboardInterrupt, ProjectError)):
            session.run("SELECT count(*) FROM range(100000000000) a JOIN range(1000) b")
    assert interrupted.is_set()
    assert session.run("SELECT 1 AS one")["one"].to_pylist() == [1]


@pytest.mark.spark
def test_questions_may_be_written_as_for_dagger(session: AdHocSession) -> None:
    sql = """
      SELECT TUMBLE_START(at, INTERVAL '1' MINUTE) AS since, COUNT(*) AS n
      FROM (SELECT id, timestamp_seconds(id * 30) AS at FROM things)
      GROUP BY TUMBLE(at, INTERVAL '1' MINUTE) ORDER BY 1"""
    assert session.run(sql)["n"].to_pylist() == [2, 2, 1]
    with pytest.raises(SqlError) as unknown:
        session.run(sql.replace("COUNT(*)", "MAX(idd)"))
    assert (unknown.value.code, unknown.value.line) == ("unknown-column", 2)
    with pytest.raises(SqlError) as timeless:
        session.run("SELECT rowtime FROM things")
    assert timeless.value.code == "dagger-rowtime"
