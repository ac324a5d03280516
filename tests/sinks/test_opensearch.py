from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pydantic import ValidationError
from tests.errors import code_of
from tests.sinks.changes import Row, live
from tests.sinks.conftest import Desk, Heard, Stage
from tests.sinks.trials import Trial

from headrace.core.context import Context
from headrace.core.schema import from_ddl
from headrace.sinks._refused import Report
from headrace.sinks.opensearch import OpenSearchSink
from headrace.sinks.opensearch.bulk import BulkWrite
from headrace.testing.services import OpenSearch
from headrace.testing.services.probe import http_get

HERE = Context(Path("/project"), "state")


def sink(**options: Any) -> OpenSearchSink:
    given = {"type": "opensearch", "url": "http://127.0.0.1:1", "index": "orders", "retry_for": "30s"}
    return OpenSearchSink.model_validate(given | options)


def test_options_that_cannot_be() -> None:
    for options in ({"sequence": "v"}, {"delete": "d"}, {"action": "update"}, {"index": "a{"}):
        with pytest.raises(ValidationError):
            sink(**options)
    with pytest.raises(ValidationError, match="leave out `sequence`"):
        sink(action="update", id=["id"], sequence="v")


def test_columns_must_exist_and_fit() -> None:
    out = sink(index="o-{at:yyyy}", id=["id"], sequence="v", delete="d")
    columns = ["id", "at", "v", "d"]
    out.check_rows(HERE, columns, "update", from_ddl("id bigint, at timestamp, v bigint, d boolean"))
    for missing in columns:
        rest = [name for name in columns if name != missing]
        assert code_of(lambda rest=rest: out.check_rows(HERE, rest, "append", None)) == "unknown-column"
    for ddl in ("id bigint, at timestamp, v double, d boolean", "id bigint, at timestamp, v bigint, d string"):
        assert code_of(lambda ddl=ddl: out.check_rows(HERE, columns, "append", from_ddl(ddl))) == "sink-column-type"
    assert code_of(lambda: sink().check_rows(HERE, ["id"], "update", None)) == "sink-needs-key"


def run(out: OpenSearchSink, desk: Desk, *rows: tuple[bytes | None, bytes | None]) -> dict[str, int]:
    report = Report.of(desk.batch(), out.label, out.on_error)
    client = out.client(out.label, out.url, HERE)
    write = BulkWrite(client, out.batch_size, out.batch_bytes, out.sequence is not None, report)
    actions, contents = (pa.array(column, pa.binary()) for column in zip(*rows, strict=True))
    batch = pa.RecordBatch.from_arrays([actions, contents], names=["action", "content"])
    told = [row for summary in write(iter([batch])) for row in summary.to_pylist()]
    return {row["outcome"]: row["rows"] for row in told if row["outcome"] != "bytes"}


class Cluster:
    """Answers to bulk requests as a cluster does: each document has statuses to go through."""

    def __init__(self, **statuses: list[int]) -> None:
        self.statuses = statuses
        self.sizes: list[int] = []

    def __call__(self, heard: Heard) -> tuple[int, bytes, dict[str, str]]:
        actions = [json.loads(line) for line in heard.body.splitlines() if b"_id" in line]
        self.sizes.append(len(actions))
        items = []
        for one in actions:
            ((action, place),) = one.items()
            left = self.statuses.get(place["_id"], [])
            status = left.pop(0) if left else 200
            error = {"error": {"type": "some_exception", "reason": "because"}} if status >= 300 else {}
            items.append({action: {"status": status, **error}})
        errors = any(next(iter(item.values()))["status"] >= 300 for item in items)
        return 200, json.dumps({"errors": errors, "items": items}).encode(), {}


def rows(*ids: str) -> list[tuple[bytes, bytes]]:
    return [(json.dumps({"index": {"_id": one}}).encode(), b'{"n":1}') for one in ids]


def test_only_what_had_no_room_is_sent_again(stage: Stage, desk: Desk) -> None:
    stage.answer = cluster = Cluster(b=[429, 503], c=[400], d=[429])
    assert run(sink(url=stage.url), desk, *rows("a", "b", "c", "d")) == {"written": 3, "refused": 1}
    assert cluster.sizes == [4, 2, 1]
    (letter,) = desk.letters()
    assert (letter["reason"], letter["value"]) == ("some_exception", b'{"n":1}')
    assert letter["detail"] == "HTTP 400 some_exception: because"


def test_what_else_a_cluster_may_say(stage: Stage, desk: Desk) -> None:
    stage.answer = Cluster(a=[409], b=[404])
    gone = (json.dumps({"delete": {"_id": "b"}}).encode(), None)
    assert run(sink(url=stage.url, id=["id"], sequence="v"), desk, *rows("a"), gone) == {"stale": 1, "written": 1}
    stage.answer = Cluster(a=[409])
    assert run(sink(url=stage.url), desk, *rows("a")) == {"written": 1}
    stage.answer = Cluster(a=[404])
    assert code_of(lambda: run(sink(url=stage.url), desk, *rows("a"))) == "sink-missing"
    stage.answer = Cluster(a=[403])
    assert code_of(lambda: run(sink(url=stage.url), desk, *rows("a"))) == "service-authentication"
    stage.answer = Cluster(a=[429] * 99)
    assert code_of(lambda: run(sink(url=stage.url, retry_for="300ms"), desk, *rows("a"))) == "service-away"
    stage.answer = Cluster(a=[400])
    assert code_of(lambda: run(sink(url=stage.url, on_error="fail"), desk, *rows("a"))) == "sink-row-refused"


def test_a_request_that_is_too_large_is_halved(stage: Stage, desk: Desk) -> None:
    cluster = Cluster()
    stage.answer = lambda heard: (
        (413, b"", {}) if heard.body.count(b"_id") > 2 or b"huge" in heard.body else cluster(heard)
    )
    given = rows("a", "b", "huge", "d", "e")
    assert run(sink(url=stage.url), desk, *given, (None, b"{}")) == {"refused": 2, "written": 4}


def documents(opensearch: OpenSearch, index: str) -> dict[str, Any]:
    assert http_get(opensearch.port, f"/{index}/_refresh", patience=60) is not None
    answer = http_get(opensearch.port, f"/{index}/_search?size=1000&version=true", patience=60)
    assert answer is not None
    return {hit["_id"]: hit["_source"] for hit in json.loads(answer[1])["hits"]["hits"]}


@pytest.mark.spark
@pytest.mark.service
def test_documents_by_id_are_replaced_by_newer_rows_only(spark: Any, opensearch: OpenSearch, desk: Desk) -> None:
    out = sink(
        url=f"http://{opensearch.address}",
        index="o-{at:yyyy.MM}",
        id=["k", "id"],
        sequence="v",
        delete="gone",
        batch_size=3,
    )
    out.check(HERE)
    ddl = "k string, id bigint, v bigint, at timestamp, gone boolean, `who.name` string"

    def rows(*given: tuple[str, int, int | None, bool, str | None]) -> Any:
        made = [(k, n, v, gone, name) for k, n, v, gone, name in given]
        frame = spark.createDataFrame(made, "k string, id bigint, v bigint, gone boolean, name string")
        return frame.selectExpr("k", "id", "v", "timestamp'2026-02-03' AS at", "gone", "name AS `who.name`")

    assert rows(("a", 1, 1, False, "x")).columns == [part.split()[0].strip("`") for part in ddl.split(", ")]
    first = rows(
        ("a|b", 1, 1, False, "old"), ("a|b", 1, 3, False, "new"), ("a|b", 1, 2, False, "middle"),
        ("c", 2, 5, False, None), ("d", 3, 1, False, "d"), ("e", 4, 1, False, "e"), ("f", 5, None, False, "no version"),
    )  # fmt: skip
    batch = desk.batch()
    for _ in range(2):
        out.write_batch(first.repartition(2), batch)
    held = {
        "a\\|b|1": {"k": "a|b", "id": 1, "v": 3, "at": "2026-02-03T00:00:00.000000Z", "who": {"name": "new"}},
        "c|2": {"k": "c", "id": 2, "v": 5, "at": "2026-02-03T00:00:00.000000Z", "who": {}},
    }
    found = documents(opensearch, "o-2026.02")
    assert {one: found[one] for one in held} == held
    assert set(found) == {*held, "d|3", "e|4"}
    assert [letter["reason"] for letter in desk.letters()] == ["no-id"]
    later = desk.batch(1)
    out.write_batch(rows(("c", 2, 4, False, "older"), ("d", 3, 2, True, "d"), ("e", 4, 2, False, "newer")), later)
    found = documents(opensearch, "o-2026.02")
    assert set(found) == {*held, "e|4"}
    assert (found["c|2"]["who"], found["e|4"]["who"]) == ({}, {"name": "newer"})
    assert later.tally.counts() == {("flow", "sink", "written"): 2, ("flow", "sink", "stale"): 1}


@pytest.mark.spark
@pytest.mark.service
def test_rows_without_an_id_are_there_once_each_and_bad_ones_are_letters(
    spark: Any, opensearch: OpenSearch, desk: Desk
) -> None:
    out = sink(url=f"http://{opensearch.address}", index="plain", batch_size=4)
    rows = spark.range(10).selectExpr("id % 5 AS n", "array(id % 2) AS part", "named_struct('a', 'x') AS who")
    for order in ("n", "part", "n"):
        out.write_batch(rows.repartition(2, "n").sortWithinPartitions(order), desk.batch())
    assert sorted(one["n"] for one in documents(opensearch, "plain").values()) == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    out.write_batch(rows, desk.batch(generation="g2"))
    assert len(documents(opensearch, "plain")) == 20
    batch = desk.batch(1)
    out.write_batch(spark.sql("SELECT 'many' AS n UNION ALL SELECT '7'"), batch)
    assert len(documents(opensearch, "plain")) == 21
    (letter,) = desk.letters()
    assert letter["reason"] == "mapper_parsing_exception"
    assert json.loads(letter["value"]) == {"n": "many"}


@pytest.mark.spark
@pytest.mark.service
def test_an_update_changes_the_fields_it_has(spark: Any, opensearch: OpenSearch, desk: Desk) -> None:
    out = sink(url=f"http://{opensearch.address}", index="merged", id=["id"], action="update")
    out.write_batch(spark.sql("SELECT 1 AS id, 'x' AS a, 'y' AS b"), desk.batch())
    for _ in range(2):
        out.write_batch(spark.sql("SELECT 1 AS id, string(NULL) AS a, 'z' AS c"), desk.batch(1))
    assert documents(opensearch, "merged") == {"1": {"id": 1, "a": None, "b": "y", "c": "z"}}


@pytest.mark.spark
@pytest.mark.service
def test_a_view_is_held_by_its_key(spark: Any, opensearch: OpenSearch, desk: Desk) -> None:
    out = sink(url=f"http://{opensearch.address}", index="view")

    def held() -> list[Row]:
        found = documents(opensearch, "view").values()
        return [(row["region"], row["id"], _amount(row.get("amount")), row.get("note")) for row in found]

    live(spark, lambda: out, desk.batch, held)


def _amount(found: Any) -> Decimal | None:
    return None if found is None else Decimal(str(found))


@pytest.mark.service
def trial(request: pytest.FixtureRequest, folder: Path) -> Trial:
    server: OpenSearch = request.getfixturevalue("opensearch")
    index = f"trial-{folder.name.replace('[', '-').replace(']', '').lower()}"
    url = f"http://{server.address}"
    return Trial(
        lambda: sink(url=url, index=index, id=["region", "id"]),
        lambda: [document["note"] for document in documents(server, index).values()],
    )
