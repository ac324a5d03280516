"""The services as a client meets them that knows nothing but the server's address."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tests.serve.grpc.kit import COMMON, Running, refusal, take
from tests.serve.kit import FILMS, VISITS, Served, api_key, film

from headrace.core.endpoints import Endpoint, Op
from headrace.core.schema import from_ddl

pytestmark = pytest.mark.service

TYPED = "headrace.endpoints.films.FilmsService"
INVALID, NOT_FOUND = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND
EVERYTHING = Endpoint(
    "every_thing",
    from_ddl(
        "id bigint, part decimal(20,4), b boolean, i int, s smallint, f float, d double, t string, raw binary,"
        " day date, at timestamp, local timestamp_ntz, l array<int>, ll array<array<string>>,"
        " st struct<a: int, b: array<timestamp>, c: map<string, int>>, m map<int, decimal(5,2)>,"
        " mm map<string, map<string, string>>, p struct<x: double, y: double>, `odd name` string, `1st` int, a_b int,"
        " ab int"
    ),
    key=("id", "part"),
)
ROW: dict[str, Any] = {
    "id": 2**62,
    "part": Decimal("12.3400"),
    "b": True,
    "i": -5,
    "s": 3,
    "f": 0.5,
    "d": float("inf"),
    "t": "hé\n",
    "raw": b"\x00\xff",
    "day": date(2026, 1, 31),
    "at": datetime(2026, 1, 31, 12, 0, 0, 123456, UTC),
    "local": datetime(2026, 1, 31, 12),
    "l": [1, None, 3],
    "ll": [["a", None], None, []],
    "st": {"a": None, "b": [datetime(1969, 1, 1, tzinfo=UTC), None], "c": None},
    "m": [(5, Decimal("1.20")), (-6, None)],
    "mm": [("x", [("y", None)])],
    "p": {"x": 1.5, "y": None},
    "odd name": "o",
    "1st": 7,
    "a_b": 1,
    "ab": 2,
}

WRONG: list[tuple[str, str, dict[str, Any], tuple[grpc.StatusCode, str]]] = [
    (TYPED, "Get", {"id": 99}, (NOT_FOUND, "no-row")),
    (TYPED, "Get", {}, (INVALID, "bad-key")),
    (TYPED, "Query", {"query": "{"}, (INVALID, "bad-json")),
    (TYPED, "Query", {"query": '{"$filter": {"titel": "x"}}'}, (INVALID, "unknown-column")),
    (COMMON, "Get", {"endpoint": "films", "key": [{"string_value": "x"}]}, (INVALID, "bad-key")),
    (COMMON, "Get", {"endpoint": "films"}, (INVALID, "bad-key")),
    (COMMON, "Get", {"endpoint": "notes", "key": [{"int_value": 1}]}, (grpc.StatusCode.FAILED_PRECONDITION, "no-key")),
    (COMMON, "Get", {"endpoint": "movies", "key": [{"int_value": 1}]}, (NOT_FOUND, "unknown-endpoint")),
    (COMMON, "Get", {"endpoint": "../films"}, (NOT_FOUND, "unknown-endpoint")),
    (COMMON, "GetFields", {"endpoint": "film"}, (NOT_FOUND, "unknown-endpoint")),
]


@pytest.fixture
def running(served: Served) -> Iterator[Running]:
    found = Running(served.settings())
    yield found
    found.close()


def test_reflection_tells_all_there_is(running: Running) -> None:
    assert running.client().services() == [
        "grpc.health.v1.Health",
        "grpc.reflection.v1alpha.ServerReflection",
        "headrace.endpoints.films.FilmsService",
        "headrace.endpoints.notes.NotesService",
        "headrace.endpoints.visits.VisitsService",
        "headrace.v1.CommonService",
        "headrace.v1.TableService",
    ]


def test_reflection_finds_methods_by_their_name(running: Running) -> None:
    client = running.client()
    for service in (TYPED, COMMON):
        assert client.files(f"{service}.Get") == client.files(service)
    assert client.reflect(file_containing_symbol=f"{TYPED}.Drop").HasField("error_response")
    assert client.reflect(file_containing_symbol="").HasField("error_response")


def test_the_newer_name_of_reflection_is_answered_too(running: Running) -> None:
    path = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
    (answer,) = running.client().channel.stream_stream(path)(iter([b"\x3a\x01*"]), timeout=10)
    assert b"headrace.v1.CommonService" in answer


def test_typed_methods(running: Running) -> None:
    client = running.client()
    found = client.call(TYPED, "Get", id=7)
    assert (found.version, found.row.id, found.row.title, found.row.region) == (7, 7, "Film 7", "EU")
    assert not found.row.HasField("price")
    query = {"$filter": {"region": "US"}, "$order_by": {"id": "desc"}, "$limit": 4}
    page = client.call(TYPED, "Query", query=json.dumps(query))
    assert [one.row.id for one in page.records] == [18, 15, 12, 9]
    rest = client.call(TYPED, "Query", query=json.dumps({**query, "$after": page.next}))
    assert [one.row.id for one in rest.records] == [6, 3]
    assert rest.next == ""
    assert client.call(TYPED, "Count", query='{"$filter": {"region": "EU"}}').count == 14
    assert client.call(TYPED, "Count").count == 20


def test_common_methods(running: Running) -> None:
    client = running.client()
    endpoints = client.call(COMMON, "GetEndpoints").endpoints
    assert next((one.name, one.version, list(one.key), one.service) for one in endpoints) == ("films", 1, ["id"], TYPED)
    fields = client.call(COMMON, "GetFields", endpoint="films").fields
    assert [(one.name, one.type, one.key, one.indexed, one.searched) for one in fields][:3] == [
        ("id", "bigint", True, True, False),
        ("title", "string", False, False, True),
        ("year", "int", False, True, False),
    ]
    found = client.call(COMMON, "Get", endpoint="films", key=[{"int_value": 7}])
    assert (found.version, found.row["title"].string_value, found.row["rating"].double_value) == (7, "Film 7", 0.7)
    assert found.row["price"].WhichOneof("value") == "null_value"
    page = client.call(COMMON, "Query", endpoint="films", query='{"$limit": 2}')
    assert [one.row["id"].int_value for one in page.records] == [1, 2]
    assert page.next
    assert client.call(COMMON, "Count", endpoint="films").count == 20


def test_composite_keys(running: Running) -> None:
    client = running.client()
    day = {"year": 2026, "month": 1, "day": 31}
    found = client.call("headrace.endpoints.visits.VisitsService", "Get", who="Ada, the first", day=day)
    assert (found.row.pages, found.row.place.city, list(found.row.tags)) == (3, "Ulm", ["a"])
    key = [{"string_value": "Ada, the first"}, {"date_value": day}]
    assert client.call(COMMON, "Get", endpoint="visits", key=key).row["pages"].int_value == 3


def test_what_is_wrong_is_said(running: Running) -> None:
    client = running.client()
    for service, method, question, expected in WRONG:
        status, code, hint = refusal(lambda s=service, m=method, q=question: client.call(s, m, **q))
        assert (status, code) == expected
        assert hint


def test_bytes_that_are_no_question(running: Running) -> None:
    client = running.client()
    for path in (f"/{TYPED}/Get", f"/{COMMON}/Get", f"/{COMMON}/Query", f"/{TYPED}/Count", f"/{TYPED}/OnEvent"):
        assert refusal(lambda path=path: client.raw(path, b"\xff\xff\xff"))[:2] == (INVALID, "bad-call")
    for path in ("/nowhere/Get", f"/{TYPED}/Drop", "/headrace.endpoints.films.Filmsservice/Get", "/"):
        assert refusal(lambda path=path: client.raw(path))[0] is grpc.StatusCode.UNIMPLEMENTED
    too_long = b"\x0a" + b"x" * 1_000_001
    assert refusal(lambda: client.raw(f"/{COMMON}/Get", too_long))[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert client.call(COMMON, "Count", endpoint="films").count == 20


def test_a_defect_ends_one_call_only(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    client = running.client()
    client.call(TYPED, "Count")
    monkeypatch.setattr("headrace.serve.access.access.EndpointAccess.count", lambda *_: 1 // 0)
    assert refusal(lambda: client.call(TYPED, "Count"))[0] is grpc.StatusCode.INTERNAL
    assert client.call(TYPED, "Get", id=7).row.id == 7


def test_all_types_come_through(served: Served) -> None:
    served.put(EVERYTHING, [ROW, {**dict.fromkeys(ROW), "id": 1, "part": Decimal(1)}])
    running = Running(served.settings())
    try:
        _check_typed(running)
        _check_generic(running)
    finally:
        running.close()


def _check_typed(running: Running) -> None:
    service = "headrace.endpoints.every_thing.EveryThingService"
    row = running.client().call(service, "Get", id=2**62, part={"text": "12.34"}).row
    assert (row.id, row.part.text, row.b, row.i, row.s, row.f, row.d) == (
        2**62,
        "12.3400",
        True,
        -5,
        3,
        0.5,
        float("inf"),
    )
    assert (row.t, row.raw, row.local.text) == ("hé\n", b"\x00\xff", "2026-01-31T12:00:00")
    assert (row.day.year, row.day.month, row.day.day) == (2026, 1, 31)
    assert (row.at.seconds, row.at.nanos) == (1769860800, 123456000)
    assert list(row.l) == [1, 0, 3]
    assert [list(one.items) for one in row.ll] == [["a", ""], [], []]
    assert [one.seconds for one in row.st.b] == [-31536000, 0]
    assert not row.st.HasField("a")
    assert {key: value.text for key, value in row.m.items()} == {5: "1.20", -6: ""}
    assert dict(row.mm["x"].items) == {"y": ""}
    assert (row.p.x, row.p.HasField("y")) == (1.5, False)
    assert (row.odd_name, row.f_1st, row.a_b, row.ab_2) == ("o", 7, 1, 2)
    nulls = ["l[1]", "ll[0][1]", "ll[1]", "st.b[1]", "st.c", 'm["-6"]', 'mm["x"]["y"]']
    assert sorted(row.nulls) == sorted(nulls)
    empty = running.client().call(service, "Get", id=1, part={"text": "1"}).row
    assert [field.name for field, _ in empty.ListFields()] == ["id", "part", "nulls"]
    assert list(empty.nulls) == ["l", "ll", "m", "mm"]


def _check_generic(running: Running) -> None:
    key = [{"int_value": 2**62}, {"decimal_value": {"text": "12.34"}}]
    row = running.client().call(COMMON, "Get", endpoint="every_thing", key=key).row
    assert (row["id"].int_value, row["part"].decimal_value.text, row["b"].bool_value) == (2**62, "12.3400", True)
    assert (row["d"].double_value, row["raw"].bytes_value) == (float("inf"), b"\x00\xff")
    assert (row["at"].timestamp_value.nanos, row["day"].date_value.day) == (123456000, 31)
    assert row["local"].local_timestamp_value.text == "2026-01-31T12:00:00"
    assert [one.WhichOneof("value") for one in row["l"].list_value.items] == ["int_value", "null_value", "int_value"]
    assert row["st"].struct_value.fields["c"].WhichOneof("value") == "null_value"
    assert row["m"].map_value.entries["5"].decimal_value.text == "1.20"
    assert (row["p"].point_value.x, row["p"].point_value.HasField("y")) == (1.5, False)


def test_events(running: Running, served: Served) -> None:
    client = running.client()
    question = {"filter": '{"year": {"$gt": 1995}}', "types": [1, 3], "snapshot": True}
    typed = client.call(TYPED, "OnEvent", **question)
    rows = take(typed, 16)
    assert [(one.type, one.row.id) for one in rows[:-1]] == [(4, number) for number in range(6, 21)]
    assert (rows[-1].type, rows[-1].token) == (5, "v1-20")
    common = client.call(COMMON, "OnEvent", endpoint="films", after="v1-20")
    served.put(FILMS, [film(6, title="Changed"), film(30, year=1999), film(7, year=1990)])
    served.put(FILMS, [{"id": 30}], Op.DELETE)
    seen = take(common, 4)
    assert [(one.type, one.token) for one in seen] == [(2, "v1-21"), (1, "v1-22"), (2, "v1-23"), (3, "v1-24")]
    assert (seen[0].row["title"].string_value, seen[0].old["title"].string_value) == ("Changed", "Film 6")
    seen = take(typed, 3)
    assert [(one.type, one.token, one.row.id, one.old.id) for one in seen] == [
        (1, "v1-22", 30, 0),
        (3, "v1-23", 0, 7),
        (3, "v1-24", 0, 30),
    ]
    again = client.call(TYPED, "OnEvent", after=seen[0].token)
    assert [one.token for one in take(again, 2)] == ["v1-23", "v1-24"]


def test_a_new_version_is_served_and_told(running: Running, served: Served) -> None:
    client = running.client()
    events = client.call(TYPED, "OnEvent")
    assert next(events).type == 7
    second = Endpoint("films", from_ddl("title string, id int, stars int"), key=("id",), version=2)
    served.put(second, [{"id": 1, "title": "New", "stars": 5}])
    (told,) = list(events)
    assert (told.type, told.version) == (8, 2)
    fresh = running.client()
    row = fresh.call(TYPED, "Get", id=1).row
    assert (row.title, row.stars) == ("New", 5)
    assert client.call(TYPED, "Get", more=[("x-headrace-version", "1")], id=7).row.title == "Film 7"
    missed = take(fresh.call(TYPED, "OnEvent", after="v1-20", snapshot=True), 3)
    assert [(one.type, one.gap.to) for one in missed] == [(6, "v2-1"), (4, ""), (5, "")]


def test_health(running: Running, served: Served) -> None:
    stub = health_pb2_grpc.HealthStub(running.client().channel)
    serving = health_pb2.HealthCheckResponse.SERVING
    for name in ("", COMMON, TYPED):
        assert stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=10).status == serving
    assert refusal(lambda: stub.Check(health_pb2.HealthCheckRequest(service="x"), timeout=10))[0] is NOT_FOUND
    assert next(stub.Watch(health_pb2.HealthCheckRequest(), timeout=10)).status == serving


@pytest.fixture
def guarded(served: Served) -> Iterator[Running]:
    keys = [
        api_key("all", "k-all", scopes=["read", "events"]),
        api_key(
            "eu",
            "k-eu",
            scopes=["read", "events"],
            endpoints={"films": {"fields": ["id", "title"], "filter": {"region": "EU"}}},
        ),
        api_key("reader", "k-read"),
    ]
    found = Running(served.settings(auth={"keys": keys}))
    yield found
    found.close()


def test_a_restricted_key_sees_its_rows_and_fields_by_every_method(guarded: Running, served: Served) -> None:
    client = guarded.client("k-eu")
    assert [name for name in client.services() if "endpoints" in name] == [TYPED]
    row = next(one for file in client.files(TYPED) for one in file.message_type if one.name == "Films")
    assert [(field.name, field.number) for field in row.field] == [("id", 1), ("title", 2), ("nulls", 18999)]
    assert [one.name for one in client.call(COMMON, "GetEndpoints").endpoints] == ["films"]
    assert [one.name for one in client.call(COMMON, "GetFields", endpoint="films").fields] == ["id", "title"]
    found = client.call(TYPED, "Get", id=7).row
    assert (found.id, found.title, len(found.ListFields())) == (7, "Film 7", 2)
    assert b"EU" not in found.SerializeToString()
    assert set(client.call(COMMON, "Get", endpoint="films", key=[{"int_value": 7}]).row) == {"id", "title"}
    for service, question in ((TYPED, {"id": 9}), (COMMON, {"endpoint": "films", "key": [{"int_value": 9}]})):
        assert refusal(lambda s=service, q=question: client.call(s, "Get", **q))[1] == "no-row"
    for service, more in ((TYPED, {}), (COMMON, {"endpoint": "films"})):
        assert client.call(service, "Count", **more).count == 14
        assert len(client.call(service, "Query", **more).records) == 14
        hidden = {**more, "query": '{"$filter": {"region": "US"}}'}
        assert refusal(lambda s=service, q=hidden: client.call(s, "Query", **q))[1] == "unknown-column"
    refused = refusal(lambda: client.call(COMMON, "Get", endpoint="visits", key=[{"int_value": 9}]))
    assert refused[:2] == (grpc.StatusCode.PERMISSION_DENIED, "endpoint-forbidden")
    _check_events(guarded, served)


def _check_events(guarded: Running, served: Served) -> None:
    client = guarded.client("k-eu")
    typed = client.call(TYPED, "OnEvent", snapshot=True)
    common = client.call(COMMON, "OnEvent", endpoint="films", after="v1-20")
    rows = take(typed, 15)
    assert all(len(one.row.ListFields()) == 2 for one in rows[:-1])
    # out of sight, hidden before and after, only hidden columns, into sight
    served.put(FILMS, [film(7, region="US"), film(9, title="X"), film(8, year=2000), film(12, region="EU")])
    assert [(one.type, one.old.id, one.row.id) for one in take(typed, 2)] == [(3, 7, 0), (1, 0, 12)]
    assert [(one.type, set(one.old), set(one.row)) for one in take(common, 2)] == [
        (3, {"id", "title"}, set()),
        (1, set(), {"id", "title"}),
    ]


def test_who_may_not(guarded: Running) -> None:
    nobody, wrong, reader = guarded.client(), guarded.client("k-none"), guarded.client("k-read")
    path = f"/{COMMON}/GetEndpoints"
    assert refusal(lambda: nobody.raw(path))[:2] == (grpc.StatusCode.UNAUTHENTICATED, "no-token")
    assert refusal(lambda: wrong.raw(path))[:2] == (grpc.StatusCode.UNAUTHENTICATED, "bad-token")
    assert refusal(lambda: nobody.services())[0] is grpc.StatusCode.UNAUTHENTICATED
    denied = refusal(lambda: list(reader.call(TYPED, "OnEvent")))
    assert denied[:2] == (grpc.StatusCode.PERMISSION_DENIED, "wrong-scope")
    bearer = [("authorization", "Bearer k-read")]
    assert nobody.channel.unary_unary(path)(b"", metadata=bearer, timeout=10)


def test_it_ends_calls_and_connections_when_it_stops(running: Running) -> None:
    events = running.client().call(TYPED, "OnEvent")
    assert next(events).type == 7
    running.stop()
    assert refusal(lambda: list(events))[:2] == (grpc.StatusCode.UNAVAILABLE, "stopping")


def test_the_described_file_is_stable(tmp_path: Path) -> None:
    from headrace.serve.grpc.typed import Typed

    whole, part = Typed(VISITS).file, Typed(VISITS, ["day", "tags"]).file
    numbers = {field.name: field.number for field in whole.message_type[0].field}
    assert {field.name: field.number for field in part.message_type[0].field}.items() <= numbers.items()
    assert [method.name for method in part.service[0].method] == ["Query", "Count", "OnEvent"]
