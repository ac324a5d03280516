"""One walk over every route of every surface: a restricted key never gets a value that it may not see.

A route or method that is added later has to be added here too: the walk fails until it knows it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import httpx
import pytest
from starlette.routing import Route, WebSocketRoute
from tests.serve.grpc.kit import COMMON, Client
from tests.serve.grpc.kit import Running as GrpcRunning
from tests.serve.kit import Served, api_key
from tests.serve.rest.test_live import Running
from websockets.exceptions import WebSocketException
from websockets.sync.client import connect

from headrace.core.encoding.descriptors import build_pool
from headrace.core.endpoints import Endpoint
from headrace.core.schema import from_ddl
from headrace.serve.base.settings import Settings
from headrace.serve.rest.app import App, create_app

pytestmark = pytest.mark.service

PEOPLE = Endpoint(
    "people", from_ddl("id bigint, name string, salary string, region string"), key=("id",), text=("name",)
)
VAULT = Endpoint("vault", from_ddl("id bigint, content string"), key=("id",))
# what must not be seen: a column, the rows of another region, an endpoint
COLUMN, ROW, OTHER = "salary-of-seven", "foreigner", "vault-content"
HIDDEN = (COLUMN, ROW, OTHER)
TYPED = "headrace.endpoints.people.PeopleService"
TABLES = "headrace.v1.TableService"
SNAPSHOT_END = 5
Walk = Callable[[str], Iterator[tuple[str, str]]]
"""For a key: each thing asked, and all that came back as text."""


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    served = Served(tmp_path_factory.mktemp("people"))
    served.put(
        PEOPLE,
        [
            {"id": 1, "name": "neighbour", "salary": COLUMN, "region": "EU"},
            {"id": 2, "name": ROW, "salary": "none", "region": "US"},
        ],
    )
    served.put(VAULT, [{"id": 1, "content": OTHER}])
    may = {"people": {"fields": ["id", "name"], "filter": {"region": "EU"}}}
    keys = [
        api_key("narrow", "k-narrow", scopes=["read", "events", "sql"], endpoints=may),
        api_key("wide", "k-wide", scopes=["read", "events", "sql", "admin"]),
    ]
    yield served.settings(auth={"keys": keys})
    served.close()


# every REST route with the requests that try to get at what is hidden
ROUTES: dict[tuple[str, str], list[tuple[str, dict[str, Any] | None]]] = {
    ("GET", "/"): [("/", None)],
    ("GET", "/health"): [("/health", None)],
    ("GET", "/metrics"): [("/metrics", None)],
    ("GET", "/openapi.json"): [("/openapi.json", None)],
    ("GET", "/docs"): [("/docs", None)],
    ("GET", "/dashboards"): [("/dashboards", None)],
    ("GET", "/dashboards/{name}"): [("/dashboards/people", None), ("/dashboards/vault", None)],
    ("GET", "/headrace.js"): [("/headrace.js", None)],
    ("POST", "/sql"): [
        ("/sql", {"sql": "SELECT * FROM people"}),
        ("/sql", {"sql": "SELECT salary FROM people"}),
        ("/sql", {"sql": "SELECT * FROM vault"}),
        ("/sql", {"sql": "SELECT * FROM people WHERE region = 'US'"}),
    ],
    ("POST", "/tables/{name}"): [("/tables/people", {"op": "upsert", "row": {"id": 1}})],  # takes rows, gives none
    ("GET", "/{path}"): [
        ("/people", None),
        ("/people?region=US", None),
        ("/people?salary=none", None),
        ("/vault", None),
    ],
    ("POST", "/{path}/query"): [
        ("/people/query", {}),
        ("/people/query", {"$filter": {"region": "US"}}),
        ("/people/query", {"$order_by": {"salary": "asc"}}),
        ("/people/query", {"$filter": {"name": {"$contains": ROW}}}),
        ("/people@v1/query", {}),
        ("/vault/query", {}),
    ],
    ("POST", "/{path}/count"): [("/people/count", {"$filter": {"salary": COLUMN}}), ("/vault/count", {})],
    ("GET", "/{path}/oapi"): [("/people/oapi", None), ("/vault/oapi", None)],
    ("GET", "/{path}/events"): [("/people/events?snapshot=true", None), ("/vault/events?snapshot=true", None)],
    ("GET", "/{path}/{key:path}"): [("/people/1", None), ("/people/2", None), ("/vault/1", None)],
}


def rest(url: str) -> Walk:
    def walk(key: str) -> Iterator[tuple[str, str]]:
        with httpx.Client(base_url=url, headers={"x-api-key": key}, timeout=20) as client:
            for (method, route), asked in ROUTES.items():
                for path, body in asked:
                    if route.endswith("/events"):
                        yield path, _events(client, path)
                        continue
                    answer = client.request(method, path, json=body)
                    assert answer.status_code < 500, (path, answer.text)
                    # what was asked for may be repeated in a refusal
                    said = "" if answer.status_code >= 400 else answer.text
                    yield f"{method} {path} {body}", said + str(dict(answer.headers))

    return walk


def _events(client: httpx.Client, path: str) -> str:
    """The rows that are there, up to the end of the snapshot."""
    said = ""
    with client.stream("GET", path) as answer:
        if answer.status_code != 200:
            return ""
        for line in answer.iter_lines():
            said += line
            if line == "event: snapshot_end":
                return said
    return said


def sockets(url: str) -> Walk:
    def walk(key: str) -> Iterator[tuple[str, str]]:
        for name in ("people", "vault"):
            said = ""
            try:
                address = f"{url.replace('http', 'ws')}/{name}/events?snapshot=true"
                with connect(address, additional_headers={"x-api-key": key}) as socket:
                    while '"snapshot_end"' not in said:
                        said += str(socket.recv(timeout=20))
            except WebSocketException:
                pass  # refused
            yield f"WebSocket {name}", said

    return walk


METHODS: dict[str, list[tuple[str, dict[str, Any]]]] = {
    f"{COMMON}/GetEndpoints": [(COMMON, {})],
    f"{COMMON}/GetFields": [(COMMON, {"endpoint": name}) for name in ("people", "vault")],
    f"{COMMON}/Get": [
        (COMMON, {"endpoint": name, "key": [{"int_value": number}]})
        for name, number in (("people", 1), ("people", 2), ("vault", 1))
    ],
    f"{COMMON}/Query": [
        (COMMON, {"endpoint": "people"}),
        (COMMON, {"endpoint": "people", "query": json.dumps({"$filter": {"region": "US"}})}),
        (COMMON, {"endpoint": "vault"}),
    ],
    f"{COMMON}/Count": [(COMMON, {"endpoint": "people", "query": json.dumps({"$filter": {"salary": COLUMN}})})],
    f"{COMMON}/OnEvent": [(COMMON, {"endpoint": name, "snapshot": True}) for name in ("people", "vault")],
    f"{TABLES}/Push": [(TABLES, {"table": "people"})],  # takes rows, gives none
    f"{TYPED}/Get": [(TYPED, {"id": number}) for number in (1, 2)],
    f"{TYPED}/Query": [(TYPED, {}), (TYPED, {"query": json.dumps({"$filter": {"salary": COLUMN}})})],
    f"{TYPED}/Count": [(TYPED, {"query": json.dumps({"$filter": {"salary": COLUMN}})})],
    f"{TYPED}/OnEvent": [(TYPED, {"snapshot": True})],
}


def methods(running: GrpcRunning) -> Walk:
    def walk(key: str) -> Iterator[tuple[str, str]]:
        client = running.client(key)
        for method, asked in METHODS.items():
            for service, fields in asked:
                yield f"{method} {fields}", _called(client, service, method.rpartition("/")[2], fields)
        yield "reflection", _answered(lambda: client.services())

    return walk


def _called(client: Client, service: str, method: str, fields: dict[str, Any]) -> str:
    def called() -> Any:
        answer = client.call(service, method, **fields)
        return list(_snapshot(answer)) if method == "OnEvent" else answer

    return _answered(called)


def _snapshot(events: Any) -> Iterator[Any]:
    for event in events:
        yield event
        if event.type == SNAPSHOT_END:
            events.cancel()
            return


def _answered(call: Callable[[], Any]) -> str:
    """What was answered; nothing when it was refused."""
    try:
        return str(call())
    except grpc.RpcError as error:
        if error.code() is grpc.StatusCode.INTERNAL:  # type: ignore[attr-defined]
            raise
        return ""


def test_every_route_of_every_surface(settings: Settings) -> None:
    api, server = Running(settings), GrpcRunning(settings)
    try:
        for walk in (rest(api.url), sockets(api.url), methods(server)):
            narrow = dict(walk("k-narrow"))
            assert any("neighbour" in said for said in narrow.values()), "the key may see something"
            leaks = {asked: value for asked, said in narrow.items() for value in HIDDEN if value in said}
            assert leaks == {}
            everything = " ".join(said for _, said in walk("k-wide"))
            assert all(value in everything for value in HIDDEN), "the walk finds what is there to be seen"
            assert "neighbour" not in " ".join(said for _, said in walk("k-wrong"))
    finally:
        server.close()
        api.close()


def test_the_walk_knows_every_route(settings: Settings) -> None:
    app = create_app(settings)
    assert isinstance(app, App)
    routes = app._router.routes  # type: ignore[attr-defined]
    found = {
        (method, route.path)
        for route in routes
        if isinstance(route, Route)
        for method in (route.methods or ())
        if method != "HEAD"
    }
    assert found == set(ROUTES)
    assert [route.path for route in routes if isinstance(route, WebSocketRoute)] == ["/{path}/events"]


def test_the_walk_knows_every_method(settings: Settings) -> None:
    running = GrpcRunning(settings)
    try:
        client = running.client("k-wide")
        own = [name for name in client.services() if name in (COMMON, TABLES, TYPED)]
        found = {
            f"{name}/{method.name}"
            for name in own
            for method in build_pool(client.files(name)).FindServiceByName(name).methods
        }
        assert found == set(METHODS)
        known = {COMMON, TABLES, TYPED, TYPED.replace("people", "vault").replace("People", "Vault")}
        others = {name for name in client.services() if name not in known}
        assert all(name.startswith("grpc.") for name in others), "health and reflection have no rows"
    finally:
        running.close()
