from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pytest
from pydantic import ValidationError
from tests.conftest import unavailable
from tests.errors import code_of
from tests.sinks.conftest import Desk, Heard, Stage
from tests.sinks.trials import Trial, running

from headrace.core.context import Context
from headrace.core.errors import ProjectError
from headrace.core.schema import from_ddl
from headrace.sinks._refused import Report
from headrace.sinks.influxdb import InfluxDBSink
from headrace.sinks.influxdb.lines import InfluxWrite, LineShape
from headrace.testing.services import InfluxDB
from headrace.testing.services.probe import http_get

HERE = Context(Path("/project"), "state")


def sink(**options: Any) -> InfluxDBSink:
    given = {"type": "influxdb", "url": "http://127.0.0.1:1", "database": "mill", "measurement": "wheel"}
    return InfluxDBSink.model_validate(given | {"retry_for": "30s"} | options)


def test_columns_are_tags_fields_or_the_time() -> None:
    shape = LineShape.of(
        ["window_timestamp", "tag_city", "label_kind", "n", "area", "tag_"], "m", "window_timestamp", ["area"]
    )
    assert shape.tags == {"area": "area", "tag_city": "city", "label_kind": "kind"}
    assert shape.fields == ("n", "tag_")


def test_rows_that_cannot_be_points_are_refused_before_the_start() -> None:
    columns = ["window_timestamp", "tag_city", "n"]
    sink().check_rows(HERE, columns, "update", from_ddl("window_timestamp timestamp, tag_city string, n bigint"))
    assert code_of(lambda: sink().check_rows(HERE, ["n"], "append", None)) == "influx-needs-time"
    assert code_of(lambda: sink(tags=["x"]).check_rows(HERE, columns, "append", None)) == "unknown-column"
    assert code_of(lambda: sink().check_rows(HERE, columns[:2], "append", None)) == "influx-needs-field"
    for ddl in (
        "window_timestamp bigint, tag_city string, n bigint",
        "window_timestamp date, tag_city string, n array<int>",
    ):
        assert (
            code_of(lambda ddl=ddl: sink().check_rows(HERE, columns, "append", from_ddl(ddl))) == "influx-column-type"
        )


def test_addresses() -> None:
    assert sink(retention_policy="a week").write_path() == "/write?db=mill&precision=u&rp=a+week"
    with pytest.raises(ValidationError):
        sink(url="127.0.0.1:8086")
    assert sink().label == "influxdb mill.wheel at 127.0.0.1:1"
    assert code_of(lambda: sink(retry_for="50ms").check(HERE)) == "service-away"


def run(out: InfluxDBSink, desk: Desk, *lines: str) -> dict[str, int]:
    report = Report.of(desk.batch(), out.label, out.on_error)
    write = InfluxWrite(out.client(out.label, out.url, HERE), out.write_path(), out.batch_size, out.gzip, report)
    nulls = pa.nulls(len(lines), pa.string())
    batch = pa.RecordBatch.from_arrays([pa.array(lines), nulls, nulls], names=["line", "problem", "row"])
    told = [row for summary in write(iter([batch])) for row in summary.to_pylist()]
    return {row["outcome"]: row["rows"] for row in told if row["outcome"] != "bytes"}


def test_a_point_at_fault_is_found_and_late_ones_are_counted(stage: Stage, desk: Desk) -> None:
    def answer(heard: Heard) -> tuple[int, bytes, dict[str, str]]:
        if b"bad" in heard.body:
            return 400, b'{"error":"partial write: field type conflict: input field dropped=1"}', {}
        late = heard.body.count(b"late")
        said = f'{{"error":"partial write: points beyond retention policy dropped={late}"}}'.encode()
        return (400, said, {}) if late else (204, b"", {})

    stage.answer = answer
    lines = [f"m n={n}i {n}" for n in range(6)] + ["m n=1 late", "m n=1 late", "m n=bad 9", "m n=9i 9"]
    assert run(sink(url=stage.url, batch_size=8), desk, *lines) == {"written": 7, "late": 2, "refused": 1}
    (letter,) = desk.letters()
    assert (letter["value"], letter["reason"]) == (b"m n=bad 9", "refused")
    assert "field type conflict" in letter["detail"]
    stage.answer = lambda heard: (404, b'{"error":"database not found: \\"mill\\""}', {})
    assert code_of(lambda: run(sink(url=stage.url), desk, "m n=1 1")) == "sink-missing"


@pytest.fixture(scope="module")
def influx() -> Iterator[InfluxDB]:
    problem = InfluxDB.problem()
    if problem is not None:
        unavailable(problem)
    with InfluxDB() as server:
        yield server


def ask(influx: InfluxDB, text: str) -> list[list[Any]]:
    answer = http_get(influx.port, f"/query?db=mill&epoch=u&q={quote(text)}", patience=60)
    assert answer is not None
    (result,) = json.loads(answer[1])["results"]
    return [row for series in result.get("series", []) for row in series["values"]]


@pytest.mark.service
def test_check_finds_or_makes_the_database(influx: InfluxDB) -> None:
    url = f"http://{influx.address}"
    assert code_of(lambda: sink(url=url, database='a "new" one').check(HERE)) == "sink-missing"
    sink(url=url, database='a "new" one', create=True).check(HERE)
    sink(url=url, database='a "new" one').check(HERE)
    missing = sink(url=url, database='a "new" one', retention_policy="autogne")
    with pytest.raises(ProjectError, match="no retention policy") as caught:
        missing.check(HERE)
    assert "did you mean 'autogen'?" in str(caught.value.hint)


@pytest.mark.spark
@pytest.mark.service
def test_points_written_twice_are_there_once(spark: Any, influx: InfluxDB, desk: Desk) -> None:
    out = sink(url=f"http://{influx.address}", create=True, measurement="a wheel, turning", batch_size=2)
    out.check(HERE)
    rows = spark.sql(
        """
        SELECT timestamp'2026-01-01 00:00:00.123456' AS window_timestamp, * FROM VALUES
          ('a, b=c\\\\d', 'x', 1L, 1.5D, 'say "hi" \\\\ \\n there', true, 12.50BD),
          ('', NULL, 2L, double('NaN'), NULL, false, NULL),
          ('late', 'y', NULL, 1e300D, 'é', NULL, 1BD),
          ('none', 'y', NULL, double('Infinity'), NULL, NULL, NULL),
          ('broken\\nline', 'y', 1L, NULL, NULL, NULL, NULL),
          ('slash\\\\', 'y', 1L, NULL, NULL, NULL, NULL)
        AS t(`tag_ci ty`, label_kind, `n=o`, d, s, b, dec)
        UNION ALL SELECT NULL, 'x', 'y', 1L, 1D, '', true, 1BD
        """
    )
    batch = desk.batch()
    for _ in range(2):
        out.write_batch(rows, batch)
    found = ask(influx, 'SELECT "ci ty", kind, "n=o", d, s, b, dec FROM "a wheel, turning"')
    at = 1767225600123456
    assert sorted(found, key=str) == sorted(
        [
            [at, "a, b=c\\d", "x", 1, 1.5, 'say "hi" \\ \n there', True, 12.5],
            [at, None, None, 2, None, None, False, None],
            [at, "late", "y", None, 1e300, "é", None, 1],
        ],
        key=str,
    )
    assert {outcome: rows for (_, _, outcome), rows in batch.tally.counts().items()} == {
        "written": 6, "empty": 2, "refused": 6,
    }  # fmt: skip
    letters = desk.letters()
    assert {json.loads(letter["value"]).get("tag_ci ty") for letter in letters} == {"broken\nline", "slash\\", "x"}
    assert {letter["reason"] for letter in letters} == {"not-a-point"}
    assert len(letters) == 3


@pytest.mark.spark
@pytest.mark.service
def test_old_points_are_counted_and_a_field_of_another_type_is_a_letter(
    spark: Any, influx: InfluxDB, desk: Desk
) -> None:
    out = sink(url=f"http://{influx.address}", create=True, measurement="brief", retention_policy="brief")
    sink(url=f"http://{influx.address}", create=True).check(HERE)
    ask(influx, "CREATE RETENTION POLICY brief ON mill DURATION 1h REPLICATION 1")
    out.check(HERE)
    now = int(time.time())
    moments = ", ".join(f"({now - ago})" for ago in (0, 1, 2, 90_000, 90_001))
    rows = spark.sql(f"SELECT timestamp_seconds(t) AS window_timestamp, 1L AS n FROM VALUES {moments} AS v(t)")
    batch = desk.batch()
    out.write_batch(rows, batch)
    assert batch.tally.counts() == {("flow", "sink", "written"): 3, ("flow", "sink", "late"): 2}
    assert len(ask(influx, "SELECT n FROM mill.brief.brief")) == 3
    other = desk.batch(1)
    out.write_batch(
        rows.where(f"window_timestamp = timestamp_seconds({now})").selectExpr("window_timestamp", "'x' AS n"), other
    )
    (letter,) = desk.letters()
    assert "field type conflict" in letter["detail"]
    assert letter["batch"] is None


@pytest.mark.service
def trial(request: pytest.FixtureRequest, folder: Path) -> Trial:
    server = running(request, InfluxDB())
    url = f"http://{server.address}"
    sink(url=url, create=True).check(HERE)

    def notes() -> list[str]:
        return [note for _time, note in ask(server, "SELECT note FROM wheel")]

    return Trial(lambda: sink(url=url, time="at", tags=["region"]), notes)
