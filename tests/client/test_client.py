from __future__ import annotations

import subprocess
import sys
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from headrace.client import (
    ApiError,
    Client,
    ClientError,
    LimitedError,
    NotAllowedError,
    NotFoundError,
    UnavailableError,
    UnreachableError,
)
from headrace.client.frames import Answer, rows_table


def problem(status: int, code: str, **headers: str) -> dict[str, Any]:
    body = {"type": "about:blank", "title": "T", "status": status, "code": code, "detail": "why", "hint": "do this"}
    return {"status": status, "body": body, "headers": {"Content-Type": "application/problem+json", **headers}}


def test_asks_for_a_row_by_key_with_the_token(server: Any) -> None:
    server.reply({"body": {"id": 7, "name": "Alien"}})
    client = Client(server.url, "s3cret")
    assert client.endpoint("films").get(7) == {"id": 7, "name": "Alien"}
    assert server.asked[0].path == "/films/7"
    assert server.asked[0].headers["authorization"] == "Bearer s3cret"
    assert "s3cret" not in repr(client)


@pytest.mark.parametrize(
    ("key", "path"),
    [
        ("a/b, ü", "a%2Fb%2C%20%C3%BC"),
        ((1, "x,y"), "1,x%2Cy"),
        (True, "true"),
        (date(2026, 1, 2), "2026-01-02"),
        (datetime(2026, 1, 2, 3, tzinfo=UTC), "2026-01-02T03%3A00%3A00%2B00%3A00"),
        (Decimal("1.50"), "1.50"),
        (b"\x00\xff", "AP8%3D"),
    ],
)
def test_keys_of_all_types_stand_in_a_path(server: Any, key: Any, path: str) -> None:
    server.reply({"body": {}})
    Client(server.url).endpoint("films").get(key)
    assert server.asked[0].path == f"/films/{path}"


def test_no_row_is_none_and_no_endpoint_is_an_error(server: Any) -> None:
    server.reply(problem(404, "no-row"), problem(404, "unknown-endpoint"))
    films = Client(server.url).endpoint("films")
    assert films.get(7) is None
    with pytest.raises(NotFoundError) as caught:
        films.get(7)
    assert (caught.value.code, caught.value.hint) == ("unknown-endpoint", "do this")


def test_reads_all_pages(server: Any) -> None:
    server.reply(
        {"body": [{"id": 1}, {"id": 2}], "headers": {"X-Next-Cursor": "c1"}},
        {"body": [{"id": 3}, {"id": 4}], "headers": {"X-Next-Cursor": "c2"}},
        {"body": [{"id": 5}]},
    )
    rows = Client(server.url).endpoint("films").query({"year": {"$gt": 1999}}, order_by={"year": "desc"}, page=2)
    assert [row["id"] for row in rows] == [1, 2, 3, 4, 5]
    first, second, third = (asked.body for asked in server.asked)
    assert first == {"$filter": {"year": {"$gt": 1999}}, "$order_by": {"year": "desc"}, "$limit": 2}
    assert (second["$after"], third["$after"]) == ("c1", "c2")


def test_a_limit_ends_the_pages(server: Any) -> None:
    server.reply(
        {"body": [{"id": 1}, {"id": 2}], "headers": {"X-Next-Cursor": "c1"}},
        {"body": [{"id": 3}], "headers": {"X-Next-Cursor": "c2"}},
    )
    assert len(list(Client(server.url).endpoint("films").query(order_by="id", limit=3, page=2))) == 3
    assert [asked.body["$limit"] for asked in server.asked] == [2, 1]


def test_pages_are_as_small_as_the_server_wants(server: Any) -> None:
    server.reply(problem(422, "page-too-large"), problem(422, "page-too-large"), {"body": [{"id": 1}]})
    assert list(Client(server.url).endpoint("films").query()) == [{"id": 1}]
    assert [asked.body["$limit"] for asked in server.asked] == [500, 250, 125]


def test_counts(server: Any) -> None:
    server.reply({"body": 42})
    assert Client(server.url).endpoint("films").count({"at": {"$lt": datetime(2026, 1, 1, tzinfo=UTC)}}) == 42
    assert server.asked[0].body == {"$filter": {"at": {"$lt": "2026-01-01T00:00:00+00:00"}}}


def test_lists_endpoints(server: Any) -> None:
    server.reply({"body": ["/films", "/actors"]})
    assert Client(server.url).endpoints() == ["films", "actors"]


@pytest.mark.parametrize(
    ("status", "kind"), [(400, ApiError), (401, NotAllowedError), (403, NotAllowedError), (413, ApiError)]
)
def test_refusals_are_told_apart_and_not_repeated(server: Any, status: int, kind: type[ApiError]) -> None:
    server.reply(problem(status, "some-code"))
    with pytest.raises(kind) as caught:
        Client(server.url).endpoint("films").count()
    assert (caught.value.status, caught.value.code, caught.value.detail) == (status, "some-code", "why")
    assert len(server.asked) == 1


def test_asks_again_when_the_server_is_busy(server: Any) -> None:
    busy = problem(429, "too-many-requests", **{"Retry-After": "0.05"})
    server.reply(busy, problem(503, "hydrating"), {"body": 3})
    assert Client(server.url).endpoint("films").count() == 3
    assert len(server.asked) == 3


@pytest.mark.parametrize(("status", "kind"), [(429, LimitedError), (503, UnavailableError)])
def test_patience_ends(server: Any, status: int, kind: type[ApiError]) -> None:
    """Also before a wait that would take longer than it lasts."""
    server.reply(problem(status, "later", **{"Retry-After": "60"}))
    with pytest.raises(kind):
        Client(server.url, patience=5).endpoint("films").count()


def test_a_server_that_is_not_there(server: Any) -> None:
    server.close()
    with pytest.raises(UnreachableError, match="no answer from http"):
        Client(server.url, patience=0.05).endpoints()


def test_an_answer_of_somebody_else(server: Any) -> None:
    html = {"Content-Type": "text/html"}
    server.reply({"body": b"<h1>Bad gateway</h1>", "status": 404, "headers": html}, {"body": b"<h1>Hi</h1>"})
    client = Client(server.url)
    with pytest.raises(NotFoundError, match="Bad gateway"):
        client.endpoints()
    with pytest.raises(ClientError, match="not JSON"):
        client.endpoints()
    with pytest.raises(ClientError, match="not the URL"):
        Client("localhost:9480")


COLUMNS = {
    "id": "bigint",
    "price": "decimal(10,2)",
    "score": "double",
    "at": "timestamp",
    "local": "timestamp_ntz",
    "day": "date",
    "raw": "binary",
    "tags": "array<string>",
    "sizes": "map<int, decimal(4,1)>",
    "maker": "struct<name: string, since: date>",
}
ROW = {
    "id": 9007199254740993,
    "price": "12.30",
    "score": "NaN",
    "at": "2026-01-02T03:04:05.123456Z",
    "local": "2026-01-02T03:04:05",
    "day": "2026-01-02",
    "raw": "AP8=",
    "tags": ["a", None],
    "sizes": {"1": "0.5", "2": None},
    "maker": {"name": "x", "since": "2020-02-29"},
}


def test_rows_become_typed_tables() -> None:
    table = rows_table(COLUMNS, [ROW, dict.fromkeys(COLUMNS)])
    first, second = table.to_pylist()
    assert first.pop("score") != first.get("score")
    assert first == {
        "id": 9007199254740993,
        "price": Decimal("12.30"),
        "at": datetime(2026, 1, 2, 3, 4, 5, 123456, tzinfo=UTC),
        "local": datetime(2026, 1, 2, 3, 4, 5),
        "day": date(2026, 1, 2),
        "raw": b"\x00\xff",
        "tags": ["a", None],
        "sizes": [(1, Decimal("0.5")), (2, None)],
        "maker": {"name": "x", "since": date(2020, 2, 29)},
    }
    assert set(second.values()) == {None}
    assert table.schema.field("at").type == pa.timestamp("us", tz="UTC")


def test_an_endpoint_as_a_data_frame(server: Any) -> None:
    properties = {name: {"x-headrace-type": kind} for name, kind in COLUMNS.items()}
    schemas = {"Problem": {"properties": {"code": {"type": "string"}}}, "films": {"properties": properties}}
    server.reply({"body": {"components": {"schemas": schemas}}}, {"body": [ROW]})
    frame = Client(server.url).endpoint("films").to_pandas({"id": {"$gt": 1}}, limit=10)
    assert list(frame.columns) == list(COLUMNS)
    assert frame["price"][0] == Decimal("12.30")


def test_sql(server: Any) -> None:
    columns = [{"name": "n", "type": "bigint"}, {"name": "total", "type": "decimal(10,2)"}]
    server.reply({"body": {"columns": columns, "rows": [[1, "2.50"], [2, None]], "truncated": True}})
    answer = Client(server.url).sql("SELECT n, total FROM t WHERE d > ?", [date(2026, 1, 1)])
    assert server.asked[0].body == {"sql": "SELECT n, total FROM t WHERE d > ?", "parameters": ["2026-01-01"]}
    assert list(answer) == [{"n": 1, "total": "2.50"}, {"n": 2, "total": None}]
    assert answer.truncated
    assert len(answer) == 2
    assert answer.to_arrow().to_pydict() == {"n": [1, 2], "total": [Decimal("2.50"), None]}
    assert list(answer.to_pandas()["n"]) == [1, 2]


def test_an_empty_answer_has_its_columns() -> None:
    assert Answer({"n": "bigint"}, [], False).to_arrow().schema == pa.schema([("n", pa.int64())])


def test_the_client_loads_nothing_heavy() -> None:
    code = "import sys, headrace.client; sys.exit(bool({'pyarrow', 'pandas', 'duckdb', 'pyspark'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
