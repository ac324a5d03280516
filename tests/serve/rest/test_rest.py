"""REST: one exchange after the other, against the application itself."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pyarrow as pa
import pytest
from tests.reference.metrics import documented
from tests.serve.kit import FILMS, NOTES, Served, api_key, film, ids

from headrace.core.endpoints import Endpoint, Op
from headrace.core.schema import from_ddl
from headrace.serve.rest.app import create_app

Ask = Callable[..., httpx.Response]


class Api:
    """The application, asked one question at a time."""

    def __init__(self, served: Served, **serve: Any) -> None:
        self.app = create_app(served.settings(**serve))

    def __call__(self, method: str, path: str, base: str = "http://localhost:9480", **more: Any) -> httpx.Response:
        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(app=self.app)
            async with httpx.AsyncClient(transport=transport, base_url=base) as client:
                return await client.request(method, path, **more)

        return asyncio.run(ask())


@pytest.fixture
def api(shelf: Served) -> Api:
    return Api(shelf)


@pytest.fixture
def own(served: Served) -> Api:
    """Of a store that the test may change, and with numbers of its own."""
    return Api(served)


def problem(answer: httpx.Response) -> tuple[int, str]:
    assert answer.headers["content-type"] == "application/problem+json"
    document = answer.json()
    assert set(document) == {"type", "title", "status", "code", "detail", "hint"}
    assert document["status"] == answer.status_code
    return answer.status_code, document["code"]


def test_a_row_by_its_key(api: Api) -> None:
    answer = api("GET", "/films/7")
    assert answer.json() == film(7)
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-headrace-version"] == "v1"
    assert answer.headers["content-length"] == str(len(answer.content))


def test_an_etag_is_good_for_asking_again(own: Api, served: Served) -> None:
    tag = own("GET", "/films/7").headers["etag"]
    for known in (tag, f"W/{tag}", f'"x", {tag}', "*"):
        unchanged = own("GET", "/films/7", headers={"If-None-Match": known})
        assert (unchanged.status_code, unchanged.content) == (304, b"")
    served.put(FILMS, [film(7, title="Seven")])
    changed = own("GET", "/films/7", headers={"If-None-Match": tag})
    assert (changed.status_code, changed.json()["title"]) == (200, "Seven")
    assert changed.headers["etag"] != tag


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/films/99", 404, "no-row"),
        ("/films/seven", 400, "bad-key"),
        ("/films/7.5", 400, "bad-key"),
        ("/films/99999999999999999999", 400, "bad-key"),
        ("/films/7/8", 400, "bad-key"),
        ("/films/%FF", 400, "bad-address"),
        ("/%FF/7", 400, "bad-address"),
        ("/films/7?year=1", 400, "bad-parameter"),
        ("/film/7", 404, "unknown-endpoint"),
        ("/films@v2/7", 404, "unknown-endpoint"),
        ("/notes/7", 422, "no-key"),
        ("/visits/Ada", 400, "bad-key"),
        ("/visits/Ada,31.1.2026", 400, "bad-key"),
        ("/films?yaer=1990", 400, "unknown-column"),
        ("/films?year=old", 400, "bad-value"),
        ("/films?$limit=-1", 400, "bad-parameter"),
        ("/films?$limit=1&limit=2", 400, "bad-parameter"),
        ("/films?$limit=100000", 422, "page-too-large"),
        ("/films?$filter={", 400, "bad-parameter"),
        ("/films?$filter={%22a%22:1}", 400, "unknown-column"),
        ("/films?$after=xyz", 400, "bad-cursor"),
        ("/films?$order_by=yaer", 400, "unknown-column"),
        ("/films?%FF=1", 400, "bad-parameter"),
        ("/films?" + "a=1&" * 200, 400, "bad-parameter"),
    ],
)
def test_what_is_wrong_with_an_address(path: str, status: int, code: str, api: Api) -> None:
    assert problem(api("GET", path)) == (status, code)


def test_the_nearest_name_is_told(api: Api) -> None:
    assert "did you mean 'films'?" in api("GET", "/film/7").json()["hint"]


def test_keys_of_several_columns(api: Api) -> None:
    wanted = {"who": "Ada, the first", "day": "2026-01-31"}
    for path in (
        "/visits/Ada%2C%20the%20first,2026-01-31",
        "/visits/?who=Ada,%20the%20first&day=2026-01-31",
        "/visits/?day=2026-01-31&who=Ada,+the+first",
    ):
        found = api("GET", path).json()
        assert {name: found[name] for name in wanted} == wanted
    assert api("GET", "/visits/B%C3%B6/b,2026-02-01").json()["place"] == {"city": "Ulm", "zip": None}
    assert api("GET", "/visits/B%C3%B6%2Fb,2026-02-01").status_code == 200
    assert problem(api("GET", "/visits/?who=Eve&day=2026-01-31")) == (404, "no-row")


TYPED = {
    "tinyint": (7, "7"),
    "boolean": (True, "true"),
    "double": (1.5, "1.50"),
    "decimal(9,2)": (Decimal("12.50"), "12.5"),
    "date": (datetime(2026, 1, 31, tzinfo=UTC).date(), "2026-01-31"),
    "timestamp": (datetime(2026, 1, 31, 12, tzinfo=UTC), "2026-01-31T13:00:00+01:00"),
    "binary": (b"\xff\x00", "/wA="),
    "string": ("a/b,ü?#%\n", "a/b,ü?#%\n"),
    "array<int>": ([1, 2], "[1,2]"),
}


@pytest.mark.parametrize("kind", TYPED)
def test_keys_of_every_type(kind: str, served: Served, own: Api) -> None:
    value, text = TYPED[kind]
    things = Endpoint("things", from_ddl(f"id {kind}, n int"), key=("id",))
    served.put(things, [{"id": value, "n": 1}])
    assert own("GET", f"/things/{quote(text, safe='')}").json()["n"] == 1
    assert own("GET", f"/things/?id={quote(text, safe='')}").json()["n"] == 1
    assert own("GET", f"/things?id={quote(text, safe='')}").json()[0]["n"] == 1
    if kind not in ("string", "array<int>"):
        assert problem(own("GET", "/things/~"))[0] == 400


def test_rows_in_pages(api: Api) -> None:
    assert ids(api("GET", "/films").content) == list(range(1, 21))
    first = api("GET", "/films?$limit=8&region=EU")
    assert ids(first.content) == [1, 2, 4, 5, 7, 8, 10, 11]
    second = api("GET", first.links["next"]["url"])
    assert ids(second.content) == [13, 14, 16, 17, 19, 20]
    assert "next" not in second.links
    assert "x-next-cursor" not in second.headers
    cursor = first.headers["x-next-cursor"]
    assert ids(api("GET", f"/films?$limit=3&region=EU&$after={cursor}").content) == [13, 14, 16]
    assert ids(api("GET", "/films?$order_by=-year,id&$limit=2&$skip=1").content) == [19, 18]
    assert ids(api("GET", '/films?$order_by={"year":"desc"}&limit=1').content) == [20]
    assert ids(api("GET", '/films?year=1995&year=1996&$filter={"id":{"$gt":5}}').content) == [6]


def test_queries_and_counts(api: Api) -> None:
    asked = {"$filter": {"year": {"$gte": 2000}, "region": "US"}, "$order_by": {"id": "desc"}, "$limit": 2}
    answer = api("POST", "/films/query", json=asked)
    assert ids(answer.content) == [18, 15]
    again = api("POST", "/films/query", json={**asked, "$after": answer.headers["x-next-cursor"]})
    assert ids(again.content) == [12]
    assert api("POST", "/films/count", json={"$filter": {"region": "US"}}).content == b"6"
    assert api("POST", "/films/count", json={"$limit": 4}).content == b"4"
    assert api("POST", "/films/count").content == b"20"
    assert len(api("POST", "/notes/query").json()) == 1


@pytest.mark.parametrize(
    ("body", "kind", "status", "code"),
    [
        (b"{", "application/json", 400, "bad-json"),
        (b"\xff", "application/json", 400, "bad-json"),
        (b"[" * 100_000, "application/json", 400, "bad-json"),
        (b'{"$filter":' * 5_000 + b"{}" + b"}" * 5_000, "application/json", 400, "bad-json"),
        (b"[]", "application/json", 400, "bad-query"),
        (b'{"$fliter": {}}', "application/json", 400, "bad-query"),
        (b'{"$filter": {"year": "x"}}', "application/json; charset=utf-8", 400, "bad-filter"),
        (b'{"$filter": {"yaer": 1}}', "application/json", 400, "unknown-column"),
        (b'{"$limit": 1e400}', "application/json", 400, "bad-json"),
        (b"{}", "text/plain", 415, "not-json"),
        (b"{}", "application/x-www-form-urlencoded", 415, "not-json"),
        (b" " * 2_000_000, "application/json", 413, "body-too-large"),
    ],
)
def test_bodies_that_are_refused(body: bytes, kind: str, status: int, code: str, api: Api) -> None:
    for route in ("query", "count"):
        answer = api("POST", f"/films/{route}", content=body, headers={"Content-Type": kind})
        assert problem(answer) == (status, code)


def test_a_body_is_counted_while_it_comes(api: Api) -> None:
    async def endless() -> Any:
        for _ in range(10_000):
            yield b" " * 1_000

    assert problem(api("POST", "/films/query", content=endless())) == (413, "body-too-large")
    packed = gzip.compress(b"{}")
    answer = api("POST", "/films/query", content=packed, headers={"Content-Encoding": "gzip"})
    assert problem(answer) == (415, "compressed-body")


@pytest.mark.parametrize(
    ("accepted", "name"),
    [("gzip", "gzip"), ("gzip, zstd", "zstd"), ("zstd;q=0.1, gzip", "gzip"), ("*", "zstd"), ("gzip;q=0", None)],
)
def test_answers_are_compressed_if_that_is_wanted(accepted: str, name: str | None, own: Api, served: Served) -> None:
    whole = own("GET", "/films", headers={"Accept-Encoding": "identity"}).content
    answer = own("GET", "/films", headers={"Accept-Encoding": accepted})
    assert answer.headers.get("content-encoding") == name
    assert answer.headers["vary"] == "accept-encoding"
    assert int(answer.headers["content-length"]) < len(whole) or name is None
    if name != "zstd":  # which httpx reads only with a package of its own
        assert answer.content == whole
    else:
        assert pa.decompress(answer.content, len(whole), codec="zstd", asbytes=True) == whole
    served.put(FILMS, [film(50, title="long " * 1_000)])
    row = own("GET", "/films/50", headers={"Accept-Encoding": accepted})
    assert row.headers.get("content-encoding") == name
    tag = row.headers["etag"]
    assert tag.startswith("W/") == (name is not None)
    assert own("GET", "/films/50", headers={"If-None-Match": tag}).status_code == 304
    assert "content-encoding" not in own("GET", "/films/7", headers={"Accept-Encoding": accepted}).headers


def test_methods(api: Api) -> None:
    for path in ("/films/7", "/films", "/", "/health", "/openapi.json", "/docs"):
        head, got = api("HEAD", path), api("GET", path)
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-length"] == got.headers["content-length"]
        refused = api("DELETE", path)
        assert problem(refused) == (405, "method-not-allowed")
        assert "GET" in refused.headers["allow"]
        options = api("OPTIONS", path)
        assert (options.status_code, options.content) == (204, b"")
        assert "GET" in options.headers["allow"]
    assert api("PUT", "/films/query").headers["allow"] == "POST"


@pytest.mark.parametrize("path", ["/films/7", "/films", "/", "/openapi.json", "/films/oapi"])
def test_only_json_is_given(path: str, api: Api) -> None:
    assert problem(api("GET", path, headers={"Accept": "text/html"})) == (406, "not-acceptable")
    for accepted in ("application/*", "text/html, */*;q=0.1", "application/json"):
        assert api("GET", path, headers={"Accept": accepted}).status_code == 200


def test_pages_of_other_origins(shelf: Served) -> None:
    api = Api(shelf, cors=["https://a.shop"])
    for path in ("/films/7", "/films/99", "/films"):
        answer = api("GET", path, headers={"Origin": "https://a.shop"})
        assert answer.headers["access-control-allow-origin"] == "https://a.shop"
        assert "ETag" in answer.headers["access-control-expose-headers"]
        stranger = api("GET", path, headers={"Origin": "https://b.shop"})
        assert "access-control-allow-origin" not in stranger.headers
    wanted = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"}
    allowed = api("OPTIONS", "/films/query", headers={"Origin": "https://a.shop", **wanted})
    assert allowed.status_code == 200
    assert "POST" in allowed.headers["access-control-allow-methods"]


@pytest.mark.parametrize("path", ["/films/7", "/films", "/", "/health", "/metrics", "/openapi.json", "/docs"])
def test_without_auth_only_this_machine_is_meant(path: str, api: Api) -> None:
    assert problem(api("GET", path, base="http://evil.example:9480")) == (403, "host-forbidden")
    for base in ("http://127.0.0.1", "http://[::1]:9480", "http://localhost:1"):
        assert api("GET", path, base=base).status_code == 200


def test_health(shelf: Served) -> None:
    api = Api(shelf, auth={"keys": [api_key("a", "k1", endpoints={"films": {}})]})
    assert api("GET", "/health").json() == {"status": "ready"}
    detailed = api("GET", "/health", headers={"X-API-Key": "k1"}).json()
    assert list(detailed["endpoints"]) == ["films"]
    assert problem(api("GET", "/health", headers={"X-API-Key": "k2"})) == (401, "bad-token")


def test_an_endpoint_that_cannot_answer_yet(tmp_path: Path) -> None:
    served = Served(tmp_path)
    (tmp_path / "store").mkdir()
    api = Api(served)
    (tmp_path / "store" / "status.json").write_text(
        json.dumps({"endpoints": {"soon": {"state": "hydrating"}}, "as_of": "", "at": 0, "pid": 1, "note": None})
    )
    waiting = api("GET", "/health")
    assert (waiting.status_code, waiting.json()["status"]) == (503, "hydrating")
    for path in ("/soon/1", "/soon"):
        answer = api("GET", path)
        assert problem(answer) == (503, "hydrating")
        assert answer.headers["retry-after"] == "1"
    assert api("GET", "/openapi.json").json()["paths"] == {}


def test_metrics_count_what_was_asked(own: Api) -> None:
    for path in ("/films/7", "/films/99", "/films", "/nothing/1"):
        own("GET", path)
    text = own("GET", "/metrics").text
    count = 'headrace_serve_requests_total{endpoint="%s",route="%s",status="%d",surface="rest"} 1.0'
    for labels in (("films", "get", 200), ("films", "get", 404), ("films", "list", 200), ("", "get", 404)):
        assert count % labels in text
    assert 'headrace_serve_request_seconds_count{route="get",surface="rest"} 3.0' in text
    assert 'headrace_endpoint_state{endpoint="films",state="ready"} 1.0' in text
    series = set(re.findall(r"^(headrace_\w+)", text, re.MULTILINE))
    assert len(series) >= 8
    assert [name for name in series if not documented(name)] == []


def test_all_processes_of_a_node_are_in_the_metrics(served: Served, own: Api) -> None:
    other = Api(served)
    for one in (own, other):
        one("GET", "/films/7")
    other("GET", "/metrics")  # which writes its numbers down, as it does every second when it runs
    assert 'route="get",status="200",surface="rest"} 2.0' in own("GET", "/metrics").text


def test_a_mistake_of_ours_shows_nothing_of_its_inside(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("inner workings")

    monkeypatch.setattr("headrace.serve.access.access.EndpointAccess.get", broken)
    monkeypatch.setattr("headrace.serve.access.access.EndpointAccess.query", broken)
    for path in ("/films/7", "/films"):
        answer = api("GET", path)
        assert problem(answer) == (500, "internal-error")
        assert "inner" not in answer.text


def test_limits_on_requests(served: Served) -> None:
    keys = [api_key("a", "k1", requests_per_second=2), api_key("b", "k2")]
    api = Api(served, auth={"keys": keys})
    answers = [api("GET", path, headers={"X-API-Key": "k1"}) for path in ("/films/1", "/films", "/films/1", "/")]
    assert [one.status_code for one in answers][:2] == [200, 200]
    limited = [one for one in answers if one.status_code == 429]
    assert limited
    assert problem(limited[0]) == (429, "rate-limited")
    assert limited[0].headers["retry-after"] == "1"
    assert api("GET", "/films/1", headers={"X-API-Key": "k2"}).status_code == 200


def test_a_deleted_row_is_gone(own: Api, served: Served) -> None:
    served.put(FILMS, [film(7)], Op.DELETE)
    assert problem(own("GET", "/films/7")) == (404, "no-row")
    assert own("GET", "/notes").json() == [{"text": "hello", "raw": "AP8="}]
    assert NOTES.key == ()


@pytest.fixture
def narrow(shelf: Served) -> Ask:
    """A caller that sees two columns and the rows of one region."""
    access = {"films": {"fields": ["id", "title"], "filter": {"region": "EU"}}}
    api = Api(shelf, auth={"keys": [api_key("eu", "k1", endpoints=access), api_key("ops", "k2", scopes=["admin"])]})

    def ask(method: str, path: str, **more: Any) -> httpx.Response:
        headers = {"Authorization": "Bearer k1", **more.pop("headers", {})}
        return api(method, path, headers=headers, **more)

    return ask


NARROW = api_key("narrow", "k2", endpoints={"films": {"fields": ["id", "title"], "filter": {"rating": {"$gt": 1}}}})
WALKED = {
    "/": "",
    "/health": "",
    "/metrics": "",
    "/openapi.json": "",
    "/docs": "no data",
    "/dashboards": "tests/serve/rest/test_dashboards.py",
    "/dashboards/{name}": "tests/serve/rest/test_dashboards.py",
    "/headrace.js": "no data",
    "/sql": "tests/serve/sql",
    "/tables/{name}": "tests/serve/ingest/test_pushing.py",
    "/{path}": "",
    "/{path}/query": "",
    "/{path}/count": "",
    "/{path}/oapi": "",
    "/{path}/events": "tests of live events",
    "/{path}/{key:path}": "",
}
HIDDEN = ("region", "year", "rating", "price", "US")


def test_a_narrow_token_on_every_route(narrow: Ask) -> None:
    seen = [number for number in range(1, 21) if number % 3]
    assert narrow("GET", "/").json() == ["/films"]
    assert narrow("GET", "/films/4").content == b'{"id":4,"title":"Film 4"}'
    assert problem(narrow("GET", "/films/3")) == problem(narrow("GET", "/films/99")) == (404, "no-row")
    assert narrow("GET", "/films/3").text == narrow("GET", "/films/99").text
    assert ids(narrow("GET", "/films").content) == seen
    assert ids(narrow("POST", "/films/query", json={"$order_by": {"id": "desc"}}).content) == seen[::-1]
    assert narrow("POST", "/films/count").json() == len(seen)
    assert narrow("GET", "/films/?id=3").status_code == 404
    for path in ("/openapi.json", "/films/oapi"):
        text = narrow("GET", path).text
        assert not any(f'"{word}"' in text for word in HIDDEN)
        assert "visits" not in text
    for path in ("/visits", "/visits/a,2026-01-01", "/visits/oapi", "/nothing"):
        assert problem(narrow("GET", path)) == (403, "endpoint-forbidden")
    for path in ("/visits/query", "/visits/count"):
        assert problem(narrow("POST", path)) == (403, "endpoint-forbidden")
    assert problem(narrow("GET", "/metrics")) == (403, "wrong-scope")


def test_every_route_is_walked(api: Api) -> None:
    """Whoever adds a route adds it above, and to what a narrow token is tried on."""
    router = api.app._router  # type: ignore[attr-defined]
    assert {route.path for route in router.routes} == set(WALKED)


def test_a_narrow_token_cannot_probe(narrow: Ask) -> None:
    for path in ("/films?region=US", "/films?$order_by=year", '/films?$filter={"year":1}'):
        assert problem(narrow("GET", path)) == (400, "unknown-column")
    for route in ("query", "count"):
        for asked in (
            {"$filter": {"region": "US"}},
            {"$filter": {"$not": {"year": 1}}},
            {"$order_by": {"year": "asc"}},
        ):
            answer = narrow("POST", f"/films/{route}", json=asked)
            assert problem(answer) == (400, "unknown-column")
            assert "columns of 'films': id, title" in answer.json()["hint"]
    cursor = narrow("GET", "/films?$limit=2").headers["x-next-cursor"]
    assert ids(narrow("GET", f"/films?$limit=2&$after={cursor}").content) == [4, 5]


@pytest.mark.parametrize("path", ["/films/7", "/films", "/", "/metrics", "/openapi.json", "/films/oapi"])
def test_without_a_token(path: str, shelf: Served) -> None:
    api = Api(shelf, auth={"keys": [api_key("a", "k1", scopes=["events"])]})
    missing = api("GET", path, base="http://api.shop.example")
    assert problem(missing) == (401, "no-token")
    assert missing.headers["www-authenticate"] == "Bearer"
    wrong = api("GET", path, headers={"Authorization": "Bearer k2"})
    assert problem(wrong) == (401, "bad-token")
    assert "invalid_token" in wrong.headers["www-authenticate"]
    assert problem(api("GET", path, headers={"Authorization": "Basic azE6"})) == (401, "bad-token")
    if path != "/":
        assert problem(api("GET", path, headers={"X-API-Key": "k1"})) == (403, "wrong-scope")
    assert api("GET", "/docs").status_code == 200


def test_a_query_that_looks_at_many_rows(served: Served) -> None:
    served.put(FILMS, [film(number) for number in range(100, 1_100)])
    own = Api(served, limits={"scan": 900}, auth={"keys": [api_key("a", "k1"), NARROW]})
    asked = {"$filter": {"rating": {"$gt": 109.8}}}

    def ask(route: str, key: str, document: Any) -> httpx.Response:
        return own("POST", f"/films/{route}", json=document, headers={"X-API-Key": key})

    assert ids(ask("query", "k1", {"$filter": {**asked["$filter"], "year": {"$gt": 2000}}}).content) == [1099]
    for route in ("query", "count"):
        refused = ask(route, "k1", asked)
        assert problem(refused) == (422, "scan-too-large")
        assert "rating" in refused.json()["hint"]
        hidden = ask(route, "k2", {"$filter": {"title": "Film 1099"}})
        assert problem(hidden) == (422, "scan-too-large")
        assert not any(word in hidden.text for word in HIDDEN)
