from __future__ import annotations

from typing import Any

import pytest

PYDANTIC_JARGON = ("input_value", "Input should", "pydantic", "validation error", "[type=", "function-before", "union")


def project(stream: str = "", flow: str = "", rest: str = "") -> str:
    return f"""\
project: rides
streams:
  orders:
    source: {{type: kafka, brokers: [localhost:9092], topic: orders}}
    format: json
    {stream}
flows:
  counts:
    sql: SELECT 1 AS one
    {flow}
{rest}
"""


@pytest.mark.parametrize(
    ("text", "code", "path", "message", "hint"),
    [
        (project("topics: x"), "unknown-key", "streams.orders.topics", "unknown key 'topics'", "keys: "),
        (project("on_eror: skip"), "unknown-key", "streams.orders.on_eror", "in streams.orders", "'on_error'?"),
        (project("on_error: skipp"), "bad-value", "streams.orders.on_error", "found 'skipp'", "'skip'?"),
        (project("on_error: 5"), "bad-value", "streams.orders.on_error", "found the number 5", "dead letter"),
        (project("event_time: {columm: ts}"), "missing-key", "streams.orders.event_time.column", "'column'", "column"),
        (project("event_time: [ts]"), "wrong-type", "streams.orders.event_time", "a mapping of keys", "column"),
        (
            project("event_time: {column: ts, watermark: soon}"),
            "bad-value",
            "streams.orders.event_time.watermark",
            "'soon' is not a duration",
            "late",
        ),
        (
            project("event_time: {column: ts, watermark: 10}"),
            "bad-value",
            "streams.orders.event_time.watermark",
            "10 has no unit",
            "late",
        ),
        (project(flow="max_records: many"), "wrong-type", "flows.counts.max_records", "a whole number", "micro-batch"),
        (project(flow="max_records: 1.5"), "wrong-type", "flows.counts.max_records", "found the number 1.5", "At most"),
        (project(flow="max_records: -1"), "bad-value", "flows.counts.max_records", "greater than 0", "At most"),
        (project(flow="description: yes"), "wrong-type", "flows.counts.description", "found true", "quotes"),
        (project(flow="spark: [a]"), "wrong-type", "flows.counts.spark", "found a list", "Spark SQL settings"),
        (project(flow="sql_file: x.sql"), "bad-value", "flows.counts", "exactly one of 'sql' and 'sql_file'", None),
        (project(flow="sinks: [{type: lake, pth: x}]"), "missing-key", "flows.counts.sinks[0].path", "'path'", "table"),
        (project(flow="sinks: [consol]"), "unknown-sink", "flows.counts.sinks[0]", "'consol'", "'console'?"),
        (project(flow="sinks: [{type: consol}]"), "unknown-kind", "flows.counts.sinks[0]", "'consol'", "'console'?"),
        (
            project(flow="sinks: [{path: x}]"),
            "missing-key",
            "flows.counts.sinks[0]",
            "the key 'type'",
            "types: archive, ",
        ),
        (project(flow="sinks: [7]"), "wrong-type", "flows.counts.sinks[0]", "found the number 7", "sinks of the rows"),
        (project(flow="sinks: 7"), "wrong-type", "flows.counts.sinks", "expected a list", "sinks of the rows"),
        (project(rest="spark: {memory: lots}"), "bad-value", "spark.memory", "found 'lots'", "2g"),
        (
            project(rest="spark: {master: locall}"),
            "bad-value",
            "spark.master",
            "'locall' is not a Spark master",
            "local[N]",
        ),
        (project(rest="spark: local"), "wrong-type", "spark", "a mapping of keys", "Spark runs"),
        (project(rest="profiles: {dev: 5}"), "wrong-type", "profiles.dev", "found the number 5", "override the rest"),
        (project(rest="include: a.yaml"), "wrong-type", "include", "expected a list", "merge"),
        (project(rest="sinks: {Main: console}"), "bad-name", "sinks.Main", "'Main' is not a name", "lower-case"),
        ("project: My Project", "bad-name", "project", "'My Project' is not a name", "lower-case"),
        ("streams: {}", "missing-key", "project", "the project needs the key 'project'", "name"),
        ("project: a\nstreams: []", "wrong-type", "streams", "found a list", "Streams by name"),
        ("project: a\nstreams: {b: }", "wrong-type", "streams.b", "found nothing", "Streams"),
        ("project: a\nstreams: {b: {format: json}}", "missing-key", "streams.b.source", "'source'", "come from"),
        ("project: a\nstreams: {b: {source: generat}}", "unknown-kind", "streams.b.source", "'generat'", "'generate'?"),
    ],
)
def test_a_wrong_value_has_a_code_a_place_and_a_hint(
    refused: Any, text: str, code: str, path: str, message: str, hint: str | None
) -> None:
    error = refused(text)[0]
    assert (error.code, error.where.path) == (code, path), str(error)
    assert error.where.file == "headrace.yaml"
    assert error.where.line is not None
    assert message in error.message
    assert hint is None or hint in error.hint
    assert not [word for word in PYDANTIC_JARGON if word in str(error)]


def test_a_key_missing_in_a_kind_written_as_a_word(refused: Any) -> None:
    (error,) = refused("project: a\nstreams: {b: {source: {type: kafka, brokers: [a:1], topic: t}, format: protobuf}}")
    assert (error.code, error.where.path) == ("missing-key", "streams.b.format.message")


def test_the_alternatives_of_one_value_are_one_error(refused: Any) -> None:
    text = "project: a\nstreams: {b: {format: json, source: {type: kafka, brokers: [a:1], topic: {x: y}}}}"
    (error,) = refused(text)
    assert error.code == "wrong-type"
    assert "expected text or a list, found a mapping" in error.message


def test_a_check_of_a_kind_keeps_its_own_code(refused: Any) -> None:
    text = "project: a\nstreams: {b: {format: json, source: {type: kafka, brokers: [nowhere], topic: t}}}"
    (error,) = refused(text)
    assert (error.code, error.where.line) == ("bad-broker", 2)


def test_all_errors_come_at_once_in_file_order(refused: Any) -> None:
    errors = refused(
        "x: 1\nproject: A\nstate: [1]\nstreams:\n  b:\n    source: {type: nosuch}\nflows: {f: {mode: x}}\n"
    )
    assert [e.where.line for e in errors] == [1, 2, 3, 6, 7]


def test_a_key_written_twice_hides_nothing(refused: Any) -> None:
    errors = refused("project: a\nproject: b\nflows: {f: {sql: SELECT 1, sql: SELECT 2}}\nx: 1\n")
    assert [(e.code, e.where.line) for e in errors] == [("duplicate-key", 2), ("duplicate-key", 3), ("unknown-key", 4)]


def test_a_reference_without_a_value_is_one_error(refused: Any) -> None:
    errors = refused("project: a\ndefaults: {max_records: '${MANY}', trigger: x}")
    assert [e.code for e in errors] == ["unknown-variable", "bad-value"]


def test_empty_sections_are_as_good_as_none(loaded: Any) -> None:
    spec = loaded("project: a\nstreams:\nflows:\nspark:\nsinks:\nvariables:\nprofiles:\n").spec
    assert (spec.streams, spec.flows, spec.sinks) == ({}, {}, {})


def test_an_empty_section_must_be_one_there_is(refused: Any) -> None:
    (error,) = refused("project: a\nstreems:\n")
    assert (error.code, error.where.line) == ("unknown-key", 2)
    assert "did you mean 'streams'?" in error.hint


def test_what_is_wrong_with_a_named_sink_is_said_once_where_it_is_written(refused: Any) -> None:
    text = (
        "project: a\nflows: {f: {sql: SELECT 1, sinks: [main]}, g: {sql: SELECT 1, sinks: main}}\nsinks: {main: lake}"
    )
    (error,) = refused(text)
    assert error.where.path == "sinks.main.path"


@pytest.mark.parametrize(
    "place",
    [
        "defaults: {trigger: '${secret:PW}'}",
        "defaults: {max_records: '${secret:PW}'}",
        "spark: {memory: '${secret:PW}'}",
        "spark: '${secret:PW}'",
        "state: ['${secret:PW}']",
        "streams: {b: {source: '${secret:PW}'}}",
        "flows: {f: {sql: SELECT 1, sinks: ['${secret:PW}']}}",
        "flows: {f: {sql_file: '${secret:PW}'}}",
        "flows: {f: {sql: 'SELECT 1', mode: '${secret:PW}'}}",
        "variables: {v: '${secret:PW}'}\nspark: {memory: 'x${v}'}",
    ],
)
def test_a_secret_in_the_wrong_place_is_never_shown(refused: Any, place: str) -> None:
    errors = refused(f"project: a\n{place}", environment={"PW": "hunter2\n-x"})
    assert errors
    assert "hunter2" not in "".join(f"{error}{error.to_json()}" for error in errors)


def test_the_value_of_a_password_is_never_shown(refused: Any) -> None:
    source = "{type: kafka, brokers: [a:1], topic: t, security: {sasl: PLAIN, username: u, password: 12345}}"
    (error,) = refused(f"project: a\nstreams: {{b: {{format: json, source: {source}}}}}")
    assert "12345" not in str(error)
