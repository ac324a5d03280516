"""All cases of vectors.json: through `headrace sql`, and as flows over a stream."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.functions.vectors import CASES, REFUSED, call, check, literal, of_kind, plain

from headrace.core.errors import ProjectError
from headrace.engine.adhoc.query import AdHocSession
from headrace.engine.state.state import StateDir
from headrace.functions.expansion import expand_text
from headrace.functions.library import families, library
from headrace.testing.harness import ProjectHarness

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def asked(spark: SparkSession, folder: Path) -> AdHocSession:
    return AdHocSession(spark.newSession(), None, StateDir(folder), folder / "letters")


def answer(adhoc: AdHocSession, expressions: list[str]) -> list[Any]:
    """One row of all expressions."""
    columns = ", ".join(f"{one} AS c{place}" for place, one in enumerate(expressions))
    (row,) = adhoc.run(f"SELECT {columns}").to_pylist()
    return list(row.values())


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: f"{case['fn']} {case['error']}")
def test_wrong_calls_are_refused(case: dict[str, Any]) -> None:
    with pytest.raises(ProjectError, match=case["error"]):
        expand_text(f"SELECT {call(case)}")


@pytest.mark.spark
def test_scalar_vectors(spark: SparkSession, tmp_path: Path) -> None:
    cases = of_kind("scalar")
    assert len(cases) > 30
    for case, found in zip(cases, answer(asked(spark, tmp_path), [call(case) for case in cases]), strict=True):
        check(case, found)


@pytest.mark.spark
def test_aggregate_and_table_vectors(spark: SparkSession, tmp_path: Path) -> None:
    adhoc = asked(spark, tmp_path)
    for case in of_kind("aggregate"):
        *first, values = case["args"]
        given = ", ".join([*map(literal, first), "v"])
        rows = ", ".join(f"({literal(value)})" for value in values)
        (row,) = adhoc.run(f"SELECT {case['fn']}({given}) AS a FROM VALUES {rows} AS t(v)").to_pylist()
        check(case, row["a"])
    for case in of_kind("table"):
        table = adhoc.run(f"SELECT * FROM {call(case)}")
        found = [[plain(value) for value in row.values()] for row in table.to_pylist()]
        expect = [row if isinstance(row, list) else [row] for row in case["expect"]]
        assert found == expect, case


@pytest.mark.spark
def test_what_they_give_does_not_depend_on_the_zone_of_the_session(spark: SparkSession, tmp_path: Path) -> None:
    adhoc = asked(spark, tmp_path)
    adhoc.spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    cases = [case for case in of_kind("scalar") if "Of" in case["fn"] or "Time" in case["fn"]]
    for case, found in zip(cases, answer(adhoc, [call(case) for case in cases]), strict=True):
        check(case, found)


def at(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp())


EDGES: list[tuple[str, Any]] = [
    ("ArrayAggregate(CAST(array() AS ARRAY<INT>), 'average', 'Integer')", 0.0),
    ("ArrayAggregate(CAST(array() AS ARRAY<INT>), 'sum', 'Integer')", 0),
    ("ArrayAggregate(array(2147483647, 1), 'sum', 'Integer')", 2147483648),
    ("ArrayAggregate(array(1, NULL, 3), 'average', 'long')", 2.0),
    ("ArrayAggregate(array(1, NULL, 3), 'count', 'long')", 2),
    ("ArrayAggregate(CAST(NULL AS ARRAY<INT>), 'count', 'long')", None),
    ("ArrayAggregate(array('b', 'a'), 'sorted.first', 'other')", "a"),
    ("ArrayAggregate(array(3, 1, 2), 'sorted.reversed.limit(2).min', 'int')", 2),
    ("ArrayAggregate(array(1.5, 2.5), 'distinct.sum', 'float')", 4.0),
    ("ArrayOperate(array(3, 1, 2, 1), 'distinct.sorted.skip(1)', 'int')", [2, 3]),
    ("ArrayOperate(array(1), 'skip(5)', 'int')", []),
    ("ElementAt(array(1, 2), 2)", None),
    ("ElementAt(array(1, 2), -3)", None),
    ("ElementAt(array(1, 2), NULL)", None),
    ("ElementAt(CAST(array() AS ARRAY<INT>), 0)", None),
    ("ElementAt(array(named_struct('a', named_struct('b', 7))), 'rows', 0, 'a.b')", 7),
    ("ElementAt(array(named_struct('a', named_struct('b', 7))), 'rows', 1, 'a.b', 'table')", None),
    ("ElementAt(array(named_struct('a', 7)), -1, 'a')", 7),
    ("ListContains(array('a', NULL), 'b')", False),
    ("ListContains(array('a'), CAST(NULL AS STRING))", False),
    ("ListContains(array('a'), NULL)", False),
    ("ListContains(CAST(NULL AS ARRAY<STRING>), 'a')", False),
    ("MapGet(map('a', 1), 'b')", None),
    ("ByteToString(X'ff41')", "\ufffdA"),
    ("ByteToString(NULL)", None),
    ("Split('a b', '')", ["a", "b"]),
    ("Split(NULL, ',')", []),
    ("Split('a', NULL)", []),
    ("Split('a.b', '\\\\.')", ["a", "b"]),
    ("Split('', ',')", [""]),
    ("Split(concat('a', ',b'), concat(',', ''))", ["a", "b"]),
    ("Distance(0, 179.5, 0, -179.5)", 111.19492664455873),
    ("Distance(0, 0, 0, 180)", math.pi * 6371),
    ("Distance(90, 0, -90, 0)", math.pi * 6371),
    ("Distance(1, 2, 1, 2)", 0.0),
    ("Distance(NULL, 2, 1, 2)", None),
    ("1 / Distance(0, 0, 0, 180)", 1 / (math.pi * 6371)),
    ("GeoHash(90, 180, 12)", "zzzzzzzzzzzz"),
    ("GeoHash(-90, -180, 12)", "000000000000"),
    ("GeoHash(57.64911, 10.40744, 11)", "u4pruydqqvj"),
    ("GeoHash(91, 0, 5)", None),
    ("GeoHash(0, 180.1, 5)", None),
    ("GeoHash(CAST(NULL AS DOUBLE), 0, 5)", None),
    ("GeoHash(57.64911, 10.40744, length('abc'))", "u4p"),
    ("GeoHash(57.64911, 10.40744, length('abcdefghijklm'))", None),
    ("S2Id(91, 0, 5)", None),
    ("S2Id(-6.170024, 106.8243203, length('abcdefghijklm'))", "3344474489181175808"),
    ("S2AreaInKm2('nothing')", None),
    (f"StartOfMonth({at('2024-02-29T12:00+00:00')}, 'UTC')", at("2024-02-01T00:00+00:00")),
    (f"EndOfMonth({at('2024-02-29T12:00+00:00')}, 'UTC')", at("2024-02-29T23:59:59+00:00")),
    (f"EndOfMonth({at('2023-02-01T00:00+00:00')}, 'UTC')", at("2023-02-28T23:59:59+00:00")),
    (f"EndOfMonth({at('2024-03-10T00:00+00:00')}, 'Europe/Berlin')", at("2024-03-31T23:59:59+02:00")),
    (f"StartOfMonth({at('2024-03-31T23:00+02:00')}, 'Europe/Berlin')", at("2024-03-01T00:00+01:00")),
    (f"StartOfWeek({at('2024-03-31T23:00+02:00')}000, 'Europe/Berlin')", at("2024-03-25T00:00+01:00") * 1000),
    (f"EndOfWeek({at('2024-03-31T00:30+01:00')}000, 'Europe/Berlin')", at("2024-04-01T00:00+02:00") * 1000 - 1),
    (f"StartOfWeek({at('2024-03-31T23:59+00:00')}000, '+05:30')", at("2024-04-01T00:00+05:30") * 1000),
    ("StartOfMonth(-1, 'UTC')", at("1969-12-01T00:00+00:00")),
    ("StartOfMonth(NULL, 'UTC')", None),
    ("StartOfMonth(0, NULL)", None),
    # the clocks of Berlin go from 2:00 to 3:00 on that day
    (f"TimeInDate({at('2024-03-31T12:00+02:00')}, 2, 30, 'Europe/Berlin')", at("2024-03-31T03:30+02:00")),
    (f"TimeInDate({at('2024-10-27T12:00+01:00')}, 23, 59, 'Europe/Berlin')", at("2024-10-27T23:59+01:00")),
    (f"TimeInDate({at('2024-03-01T12:00+00:00')}, 25, 0)", at("2024-03-02T01:00+00:00")),
    ("TimestampFromUnix(1.5)", datetime(1970, 1, 1, 0, 0, 1, 500_000, tzinfo=UTC)),
    ("TimestampFromUnix(CAST(NULL AS BIGINT))", None),
    ("FormatTimeInZone(TIMESTAMP '2024-02-29 12:34:56.789', 'Asia/Kolkata', \"yyyy-MM-dd'T'HH:mm:ss.SSSXXX\")",
     "2024-02-29T18:04:56.789+05:30"),
    ("FormatTimeInZone(TIMESTAMP '2024-02-29 12:34:56', 'America/New_York', 'EEEE, MMM d yyyy h:mm a Z')",
     "Thursday, Feb 29 2024 7:34 AM -0500"),
    ("FormatTimeInZone(TIMESTAMP '2024-12-30 12:00:00', 'UTC', 'YYYY w u F [X]')", "2025 1 1 5 [Z]"),
    ("FormatTimeInZone(TIMESTAMP '2024-02-29 12:34:56', 'UTC', concat('hh:mm ', 'aa'))", "12:34 PM"),
    ("FormatTimeInZone(CAST(NULL AS TIMESTAMP), 'UTC', 'yyyy')", None),
    ("FormatTimeInZone(TIMESTAMP '2024-02-29 12:34:56', 'UTC', '')", ""),
    ("JsonQuery('{\"a\": {\"b\": [1, 2.50]}}', '$.a.b[1]')", "2.5"),
    ("JsonQuery('{\"a\": null}', '$.a')", None),
    ("JsonQuery('{\"a\": 1}', '$.b')", None),
    ("JsonQuery('{\"a\": \"null\"}', '$.a')", '"null"'),
    ("JsonQuery('no json', '$.a')", None),
    ("JsonQuery(CAST(NULL AS STRING), '$.a')", None),
    ("JsonQuery('{\"a\": [1, 2]}', '$.a[*]')", "[1,2]"),
    ("JsonQuery('{\"a\": 1}', concat('$', '.a'))", "1"),
    ("JsonUpdate('{}', '$.a', 1.5)", '{"a":1.5}'),
    ("JsonUpdate('{}', '$.a', NULL)", '{"a":null}'),
    ("JsonUpdate('{}', '$.a', array(1, 2))", '{"a":[1,2]}'),
    ("JsonUpdate(CAST(NULL AS STRING), '$.a', 1)", None),
    ("JsonDelete('{\"a\": 1}', '$.b')", '{"a":1}'),
    ("LinearTrend(CAST(array() AS ARRAY<TIMESTAMP>), CAST(array() AS ARRAY<DOUBLE>), timestamp_seconds(0), 5)", 0.0),
    ("LinearTrend(array(timestamp_seconds(0)), array(1), timestamp_seconds(0), 1)", None),
    ("LinearTrend(CAST(NULL AS ARRAY<TIMESTAMP>), array(1), timestamp_seconds(0), 5)", None),
    # the last value of a minute counts, those outside the window do not
    ("LinearTrend(array(timestamp_seconds(-1), timestamp_seconds(0), timestamp_seconds(59), timestamp_seconds(60), "
     "timestamp_seconds(120)), array(100, 100, 0, 1, 100), timestamp_seconds(0), 2)", 1.0),
    ("ExponentialMovingAverage(CAST(array() AS ARRAY<TIMESTAMP>), array(1.0), timestamp_seconds(0), 5, 0.2)", 0.0),
    ("ExponentialMovingAverage(array(timestamp_seconds(9)), array(NULL), timestamp_seconds(0), 5, 1)", 0.0),
    ("SingleFeatureWithType('k', 5, 'LongType', 's', 'x', 'StringType')[0].value.int64_value", 5),
    ("SingleFeatureWithType('k', 5, 'LongType', 's', 'x', 'StringType')[1].value.string_value", "x"),
    ("SingleFeatureWithType('k', X'00ff', 'ByteType')[0].value.bytes_value", b"\x00\xff"),
    ("SingleFeatureWithType('k', NULL, 'FloatType')[0].value.float_value", None),
    ("SingleFeatureWithType('k', 5, 'LongType')[0].name", "k"),
]  # fmt: skip


@pytest.mark.spark
def test_edges(spark: SparkSession, tmp_path: Path) -> None:
    found = answer(asked(spark, tmp_path), [text for text, _ in EDGES])
    wrong = [
        (text, value, expected)
        for (text, expected), value in zip(EDGES, found, strict=True)
        if not (
            math.isclose(value, expected) if isinstance(expected, float) and value is not None else value == expected
        )
    ]
    assert wrong == []


@pytest.mark.spark
def test_examples_of_the_reference_give_what_they_say(spark: SparkSession, tmp_path: Path) -> None:
    named = ("arrays", "texts", "geo", "times", "json", "features")
    shown = [one for family in named for one in families()[family][1] if one.kind == "scalar"]
    found = answer(asked(spark, tmp_path), [f"CAST({one.example} AS STRING)" for one in shown])
    assert len(shown) > 20
    for one, text in zip(shown, found, strict=True):
        assert text.startswith(one.gives), one.name


@pytest.mark.spark
def test_edges_of_aggregates_and_tables(spark: SparkSession, tmp_path: Path) -> None:
    adhoc = asked(spark, tmp_path)
    (row,) = adhoc.run(
        "SELECT DistinctCount(v) AS d, CollectArray(v) AS c, PercentileAggregator(50, v) AS median, "
        "PercentileAggregator(p, v) AS p, PercentileAggregator(0, v) AS low, "
        "DistinctCount(v) FILTER (WHERE v > 1) AS f, "
        "PercentileAggregator(50, CAST(NULL AS INT)) AS none, Features('v', v, 't', CAST(v AS STRING)) AS features, "
        "size(FeaturesWithType('v', v, 'LongType')) AS typed, CollectArray(DISTINCT v) AS s "
        "FROM VALUES (1, 25), (2, 25), (2, 25), (NULL, 25) AS t(v, p)"
    ).to_pylist()
    features = row.pop("features")
    assert {**row, "c": sorted(row["c"]), "s": sorted(row["s"])} == {
        "d": 2, "c": [1, 2, 2], "median": 2.0, "p": 1.0, "low": 1.0, "f": 1, "none": None, "typed": 3, "s": [1, 2],
    }  # fmt: skip
    assert len(features) == 8
    assert sorted(one["value"]["int32_value"] or 0 for one in features if one["key"] == "v") == [0, 1, 2, 2]
    assert {one["value"]["string_value"] for one in features if one["name"] == "t"} == {"1", "2", None}
    (row,) = adhoc.run(
        "SELECT PercentileAggregator(50, v) AS m, DistinctCount(v) AS d FROM VALUES (1) AS t(v) WHERE v > 1"
    ).to_pylist()
    assert row == {"m": None, "d": 0}
    rows = adhoc.run(
        "SELECT id, bucket FROM VALUES (1, 3.0), (2, NULL), (3, 9.0) AS t(id, d) "
        "LATERAL VIEW OUTER HistogramBucket(d, '1, 5') h AS bucket ORDER BY id, bucket"
    ).to_pylist()
    assert [(row["id"], row["bucket"]) for row in rows] == [(1, "+Inf"), (1, "5"), (2, None), (3, "+Inf")]
    # all values are the same: nothing is an outlier, bounds are the value
    rows = adhoc.run(
        "SELECT o.* FROM VALUES (array(timestamp_seconds(0), timestamp_seconds(60), NULL), array(5, 5, 9)) "
        "AS t(ts, vs), "
        "LATERAL OutlierMad(vs, ts, timestamp_seconds(0), 2, 1, 3, 0) AS o(at, value, upper, lower, outlier)"
    ).to_pylist()
    assert [[plain(value) for value in row.values()] for row in rows] == [[60000, 5, 5, 5, False]]
    assert (
        adhoc.run(
            "SELECT * FROM OutlierMad(CAST(array() AS ARRAY<INT>), array(), timestamp_seconds(0), 2, 1, 3, 5)"
        ).num_rows
        == 0
    )


@pytest.mark.spark
def test_errors_at_run_time_say_what_is_wrong(spark: SparkSession, tmp_path: Path) -> None:
    adhoc = asked(spark, tmp_path)
    for statement, reason in [
        ("SELECT JsonDelete('{}', concat('$ ', '.a'))", "invalid path"),
        ("SELECT DartGet('cities', 'x')", "need the folder"),
        ("SELECT EndOfMonth(1, concat('No', 'where'))", "Nowhere"),
        ("SELECT Filters(array(X'00'), 'a.B', CondEq('x', 1))", "messages of a project"),
    ]:
        with pytest.raises(ProjectError, match=reason):
            adhoc.run(statement)


def column_type(value: Any) -> str | None:
    """The type of a column that holds a value; None for what is better written out."""
    match value:
        case bool():
            return None
        case int():
            return "bigint"
        case float():
            return "double"
        case {"timestamp_s": _} | {"timestamp_ms": _}:
            return "timestamp"
        case [first, *_]:
            inner = "double" if any(isinstance(one, float) for one in value) else column_type(first) or "string"
            return f"array<{inner}>"
    return None


def as_json(value: Any) -> Any:
    match value:
        case {"timestamp_s": seconds}:
            return datetime.fromtimestamp(seconds, UTC).isoformat()
        case {"timestamp_ms": millis}:
            return datetime.fromtimestamp(millis / 1000, UTC).isoformat()
        case list():
            return [as_json(one) for one in value]
    return value


@pytest.mark.spark
def test_vectors_as_flows_over_a_stream(spark: SparkSession, tmp_path: Path) -> None:
    """All scalars in one query over columns; aggregates in a window; table functions through LATERAL TABLE."""
    columns, record, calls = ["at timestamp", "v bigint", "s string"], {"at": "2024-01-01T00:00:00Z"}, []
    scalars = of_kind("scalar")
    for number, case in enumerate(scalars):
        args = []
        for place, value in enumerate(case["args"]):
            kind = column_type(value)
            if kind is not None:
                columns.append(f"a{number}_{place} {kind}")
                record[f"a{number}_{place}"] = as_json(value)
            args.append(literal(value) if kind is None else f"a{number}_{place}")
        calls.append(f"{case['fn']}({', '.join(args)}) AS c{number}")
    mad = next(case for case in CASES if case["fn"] == "OutlierMad")
    record |= {"o_v": mad["args"][0], "o_t": as_json(mad["args"][1])}
    columns += ["o_v array<double>", "o_t array<timestamp>"]
    flows = {
        "scalars": f"SELECT {', '.join(calls)} FROM events WHERE s = 'all'",
        "groups": "SELECT window.start, DistinctCount(s) AS d, PercentileAggregator(90, v) AS p, "
        "size(CollectArray(v)) AS n FROM events WHERE v IS NOT NULL GROUP BY window(at, '1 hour')",
        "tables": "SELECT b FROM events, LATERAL TABLE(HistogramBucket(10.0, '1,2,5,10,20')) AS T(b) WHERE s = 'all'",
        "outliers": "SELECT x.* FROM events, LATERAL OutlierMad(o_v, o_t, timestamp_seconds(0), 15, 3, 3, 5) "
        "AS x(t, value, upper, lower, outlier) WHERE s = 'all'",
    }
    (tmp_path / "headrace.yaml").write_text(
        json.dumps(
            {
                "project": "vectors",
                "streams": {
                    "events": {
                        "source": {"type": "files", "path": "data"},
                        "format": {"type": "json", "columns": ", ".join(columns)},
                        "event_time": {"column": "at", "watermark": "1s", "max_future": None},
                    }
                },
                "flows": {name: {"sql": sql, "sinks": ["noop"]} for name, sql in flows.items()},
            }
        )
    )
    with ProjectHarness(tmp_path, spark) as harness:
        rows = [{"at": "2024-01-01T00:10:00Z", "v": n, "s": str(n % 2)} for n in range(1, 8)]
        harness.feed("events", [{**record, "s": "all"}, *rows, {"at": "2024-01-01T02:00:00Z", "v": 1, "s": "x"}])
        harness.feed("events", [{"at": "2024-01-01T02:00:00Z"}])
        harness.run()
        (found,) = harness.rows("scalars")
        for case, value in zip(scalars, found.values(), strict=True):
            check(case, value)
        (group,) = harness.rows("groups")
        assert (group["d"], group["p"], group["n"]) == (2, 7.0, 7)
        assert [row["b"] for row in harness.rows("tables")] == ["+Inf", "10", "20"]
        assert [[plain(value) for value in row.values()] for row in harness.rows("outliers")] == mad["expect"]


@pytest.mark.spark
def test_the_command_answers_each_statement_with_one_document(tmp_path: Path) -> None:
    script = (  # from stdin, outside any project
        "SELECT geohash(-6.170024, 106.8243203, 6) AS g, S2ID(-6.170024, 106.8243203, 13) AS s; -- one; two\n"
        "SELECT ArrayAggregate(array(1), 'coun', 'other');\n"
        "SELECT ListContains('a;b', 'a');;\n"
        "SELECT Distanc(1, 2, 3, 4);\n"
        "SELECT JsonDelete('{}', concat('$', ' .a'));\n"
        "SELECT ListContains(NULL, 'a') AS l, Split('a;b;', ';') AS p\n"
    )
    command = [sys.executable, "-m", "headrace", "sql", "--format", "json", "--keep-going"]
    done = subprocess.run(command, input=script, capture_output=True, text=True, check=False, cwd=tmp_path)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [one.get("rows") for one in found] == [
        [["qqguyu", "3344474489181175808"]], None, None, None, None, [[False, ["a", "b"]]],
    ]  # fmt: skip
    errors = [(one["error"]["code"], one["error"]["message"]) for one in found if "error" in one]
    assert [code for code, _ in errors] == ["function-argument"] * 2 + ["unknown-function", "function-argument"]
    for (_, message), words in zip(
        errors, ["unknown operation coun", "ListContains: an argument", "Distanc", "invalid path"], strict=True
    ):
        assert words in message
    assert done.stderr == ""
    assert done.returncode == 1


def test_the_cases_are_all_known() -> None:
    assert {case["fn"].lower() for case in CASES} <= set(library())
