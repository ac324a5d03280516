from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from tests.errors import code_of
from tests.sinks.conftest import Desk, Heard, Stage

from headrace.core.capabilities import Rewind
from headrace.core.context import Context
from headrace.core.errors import ProjectError
from headrace.sinks import _templates as templates
from headrace.sinks._chunks import chunks, request_key
from headrace.sinks._refused import Report
from headrace.sinks.http import HttpSink
from headrace.sinks.http.requests import HttpWrite

HERE = Context(Path("/project"), "state")


def sink(**options: Any) -> HttpSink:
    return HttpSink.model_validate({"type": "http", "url": "http://127.0.0.1:1/in", "retry_for": "30s"} | options)


def writer(out: HttpSink, desk: Desk, **changes: Any) -> HttpWrite:
    """What a task runs, without Spark."""
    batch = desk.batch()
    made = HttpWrite(
        client=out.client(out.label, out.url, batch.context),
        method=out.method,
        body=out.body,
        header_names=(),
        identity="flow|g1|sink|0",
        batch_size=out.batch_size,
        batch_bytes=out.batch_bytes,
        capacity=out.capacity,
        gzip=out.gzip,
        report=Report.of(batch, out.label, out.on_error),
    )
    return replace(made, **changes)


def run(write: HttpWrite, *rows: Any) -> dict[str, int]:
    bodies = [json.dumps(row, separators=(",", ":")).encode() for row in rows]
    columns = {"body": pa.array(bodies, pa.binary()), "url": [write.client.url] * len(rows)}
    told = [row for batch in write(iter([pa.RecordBatch.from_pydict(columns)])) for row in batch.to_pylist()]
    return {row["outcome"]: row["rows"] for row in told if row["outcome"] != "bytes"}


def test_options_that_cannot_be() -> None:
    for options in (
        {"url": "ftp://x"},
        {"url": "http://me:secret@x/"},
        {"url": "http://x/{id}"},
        {"url": "http://{host}/", "body": "row"},
        {"url": "http://x/{id", "body": "row"},
        {"headers": {"X": "{a"}, "body": "row"},
        {"username": "me"},
    ):
        with pytest.raises(ValidationError):
            sink(**options)
    assert sink().guarantee == "at_least_once"


def test_columns_must_exist() -> None:
    out = sink(url="http://x/{id}", body="row", headers={"X-Kind": "{kind}"}, order_by=["at"])
    out.check_rows(HERE, ["id", "kind", "at"], "update", None)
    for columns in (["kind", "at"], ["id", "at"], ["id", "kind"]):
        with pytest.raises(ProjectError, match="names the column"):
            out.check_rows(HERE, columns, "append", None)


def test_nothing_secret_is_said() -> None:
    out = sink(url="https://hooks.example.com/s3cret?token=s3cret", headers={"A": "s3cret"}, body="lines")
    assert "s3cret" not in out.label + repr(out) + repr(out.client(out.label, out.url, HERE))
    assert "sent again" in out.rewind_effect(Rewind("f", "s", HERE, None), replace=True)


def test_templates() -> None:
    assert templates.parts("a{b}{{c}}{d:yyyy-MM}") == [
        "a", templates.DatePlaceholder("b", None), "{c}", templates.DatePlaceholder("d", "yyyy-MM"),
    ]  # fmt: skip
    assert templates.columns_of("{{x}}") == []
    for bad in ("{", "a}b", "{}", "{a", "{a:}"):
        with pytest.raises(ValueError, match="single"):
            templates.parts(bad)


@given(st.lists(st.integers(0, 50)), st.integers(1, 10), st.integers(1, 100))
def test_chunks_hold_all_in_order_and_keep_to_their_limits(sizes: list[int], most: int, most_bytes: int) -> None:
    made = list(chunks(sizes, lambda size: size, most, most_bytes))
    assert [size for chunk in made for size in chunk] == sizes
    assert all(1 <= len(chunk) <= most and (len(chunk) == 1 or sum(chunk) <= most_bytes) for chunk in made)


@pytest.mark.parametrize(
    ("body", "kind", "expected"),
    [
        ("array", "application/json", [b'[{"n":0},{"n":1}]', b'[{"n":2}]']),
        ("lines", "application/x-ndjson", [b'{"n":0}\n{"n":1}\n', b'{"n":2}\n']),
        ("row", "application/json", [b'{"n":0}', b'{"n":1}', b'{"n":2}']),
    ],
)
def test_bodies(stage: Stage, desk: Desk, body: str, kind: str, expected: list[bytes]) -> None:
    out = sink(url=stage.url, body=body, batch_size=2, gzip=body == "lines", username="me", password="word")
    rows = [{"n": n} for n in range(3)]
    assert run(writer(out, desk), *rows) == {"written": 3}
    assert [heard.body for heard in stage.heard] == expected
    assert {heard.headers["Content-Type"] for heard in stage.heard} == {kind}
    assert {heard.headers["Authorization"] for heard in stage.heard} == {"Basic bWU6d29yZA=="}
    keys = [heard.headers["Idempotency-Key"] for heard in stage.heard]
    assert len(set(keys)) == len(keys)
    run(writer(out, desk), *rows)
    assert [heard.headers["Idempotency-Key"] for heard in stage.heard[len(keys) :]] == keys


def test_keys_differ_by_every_part() -> None:
    keys = {request_key("a", 0, 0, b"x"), request_key("b", 0, 0, b"x"), request_key("a", 1, 0, b"x")}
    assert len(keys | {request_key("a", 0, 1, b"x"), request_key("a", 0, 0, b"y")}) == 5


def test_what_passes_is_tried_again_with_the_same_key(stage: Stage, desk: Desk) -> None:
    troubles = iter([(503, {}), (429, {"Retry-After": "0.2"}), (500, {})])

    def answer(heard: Heard) -> tuple[int, bytes, dict[str, str]]:
        status, headers = next(troubles, (201, {}))
        return status, b"", headers

    stage.answer = answer
    assert run(writer(sink(url=stage.url), desk), {"n": 1}) == {"written": 1}
    assert len(stage.heard) == 4
    assert len({heard.headers["Idempotency-Key"] for heard in stage.heard}) == 1


def test_a_server_that_stays_away_is_told_as_such(stage: Stage, desk: Desk) -> None:
    stage.answer = lambda heard: (503, b"closed for today", {})
    brief = sink(url=stage.url, retry_for="200ms")
    with pytest.raises(ProjectError, match="closed for today") as caught:
        run(writer(brief, desk), {"n": 1})
    assert caught.value.code == "service-away"
    nobody = sink(retry_for="100ms")
    assert code_of(lambda: run(writer(nobody, desk), {"n": 1})) == "service-away"
    assert code_of(lambda: nobody.check(HERE)) == "service-away"
    sink(url=stage.url).check(HERE)


def test_the_rows_at_fault_are_found_and_kept(stage: Stage, desk: Desk) -> None:
    def answer(heard: Heard) -> tuple[int, bytes, dict[str, str]]:
        bad = any(row["n"] % 5 == 3 for row in json.loads(heard.body))
        return (422, b"n is odd", {}) if bad else (200, b"", {})

    stage.answer = answer
    rows = [{"n": n} for n in range(12)]
    assert run(writer(sink(url=stage.url), desk), *rows) == {"written": 10, "refused": 2}
    letters = desk.letters()
    assert [json.loads(letter["value"])["n"] for letter in letters] == [3, 8]
    assert {(letter["reason"], letter["detail"], letter["stream"]) for letter in letters} == {
        ("refused", "HTTP 422 n is odd", "sink")
    }
    taken = Counter(row["n"] for heard in stage.heard for row in json.loads(heard.body) if answer(heard)[0] == 200)
    assert taken == Counter(n for n in range(12) if n % 5 != 3)
    assert code_of(lambda: run(writer(sink(url=stage.url, on_error="fail"), desk), *rows)) == "sink-row-refused"


@pytest.mark.parametrize(
    ("status", "code"), [(401, "service-authentication"), (404, "sink-refused"), (302, "sink-refused")]
)
def test_what_is_no_fault_of_the_rows_fails_the_flow(stage: Stage, desk: Desk, status: int, code: str) -> None:
    stage.answer = lambda heard: (status, b"", {})
    assert code_of(lambda: run(writer(sink(url=stage.url), desk), {"n": 1})) == code


def test_several_requests_at_once(stage: Stage, desk: Desk) -> None:
    out = sink(url=stage.url, body="row", capacity=8)
    assert run(writer(out, desk), *({"n": n} for n in range(40))) == {"written": 40}
    assert sorted(json.loads(heard.body)["n"] for heard in stage.heard) == list(range(40))


@pytest.mark.spark
def test_addresses_and_headers_of_rows(spark: Any, stage: Stage, desk: Desk) -> None:
    rows = spark.createDataFrame(
        [(1, "a b/c?", "x"), (2, None, "x"), (3, "d", "one\ntwo")], "id bigint, name string, kind string"
    )
    out = sink(url=stage.url + "/in/{name}?id={id}", body="row", method="PUT", headers={"X-Kind": "<{kind}>"})
    batch = desk.batch()
    out.write_batch(rows, batch)
    (heard,) = stage.heard
    assert (heard.method, heard.path, heard.headers["X-Kind"]) == ("PUT", "/in/a%20b%2Fc%3F?id=1", "<x>")
    assert json.loads(heard.body) == {"id": 1, "name": "a b/c?", "kind": "x"}
    assert sorted(letter["detail"] for letter in desk.letters()) == [
        "a column of `url` is null",
        "header X-Kind has a line break or another control character",
    ]
    assert batch.tally.counts() == {("flow", "sink", "written"): 1, ("flow", "sink", "refused"): 2}
    assert batch.tally.bytes() == {("flow", "sink"): len(heard.body)}


@pytest.mark.spark
def test_a_batch_that_is_run_again_makes_the_same_requests(spark: Any, stage: Stage, desk: Desk) -> None:
    out = sink(url=stage.url, batch_size=7)
    rows = spark.range(40).repartition(2, "id").selectExpr("id", "id % 3 AS n")
    for order in (rows.id, rows.id.desc(), rows.n):
        out.write_batch(rows.sortWithinPartitions(order), desk.batch())
    keys = Counter(heard.headers["Idempotency-Key"] for heard in stage.heard)
    assert set(keys.values()) == {3}
    assert sum(len(json.loads(heard.body)) for heard in stage.heard) == 120
