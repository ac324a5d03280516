"""The API keeps what its OpenAPI document says, whatever is asked: schemathesis and fuzzed filters and keys."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from starlette.types import ASGIApp
from tests.serve.kit import Served

from headrace.core.endpoints import Endpoint
from headrace.core.schema import from_ddl
from headrace.serve.rest.app import create_app

pytestmark = pytest.mark.service  # no service, but seconds

HERE = {"Host": "localhost"}
CHECKS = (
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
)
THINGS = Endpoint(
    "things",
    from_ddl(
        "id bigint, name string, small tinyint, ok boolean, share double, price decimal(12,3), day date, at timestamp, "
        "local timestamp_ntz, raw binary, tags array<string>, place struct<city: string, zip: int>, "
        "labels map<string, bigint>"
    ),
    key=("id",),
    indexes=(("name",), ("day", "price")),
    text=("name",),
)
PAIRS = Endpoint("pairs", from_ddl("one string, two decimal(9,2), n int"), key=("one", "two"))


def thing(number: int) -> dict[str, Any]:
    if number % 5 == 0:
        return {"id": number}
    return {
        "id": number,
        "name": f"thing {number}",
        "small": number,
        "ok": number % 2 == 0,
        "share": [0.5, float("nan"), float("inf"), -1e300][number % 4],
        "price": Decimal(number) / 8,
        "day": date(2026, 1, number),
        "at": datetime(2026, 1, number, 12, 0, 0, number * 1000 * (number % 2), tzinfo=UTC),
        "local": datetime(2026, 1, number, 12, 0, 0, number),
        "raw": bytes([number]),
        "tags": ["a", None],
        "place": {"city": "Ulm", "zip": None},
        "labels": [("x", number)],
    }


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ASGIApp]:
    served = Served(tmp_path_factory.mktemp("served"))
    served.put(THINGS, [thing(number) for number in range(1, 21)])
    served.put(PAIRS, [{"one": "a/b, c", "two": Decimal("1.50"), "n": 1}])
    yield create_app(served.settings())
    served.close()


OPERATIONS = [
    f"{method} /{name}{rest}"
    for name, key in (("things", "/{id}"), ("pairs", "/{one},{two}"))
    for method, rest in (("GET", ""), ("GET", key), ("POST", "/query"), ("POST", "/count"), ("GET", "/oapi"))
]


@pytest.fixture(scope="module")
def described(app: ASGIApp) -> Any:
    return schemathesis.openapi.from_asgi("/openapi.json", app, headers=HERE)


def test_all_operations_are_tried(described: Any) -> None:
    labels = {one.ok().label for one in described.get_all_operations()}
    assert labels == {*OPERATIONS, "GET /things/events", "GET /pairs/events"}  # which never end


@pytest.mark.parametrize("label", OPERATIONS)
def test_the_api_is_as_described(label: str, described: Any) -> None:
    method, _, path = label.partition(" ")

    @settings(max_examples=20 if "things" in path else 8, suppress_health_check=list(HealthCheck), derandomize=True)
    @given(described[path][method].as_strategy())
    def check(case: Any) -> None:
        case.call_and_validate(headers=HERE, checks=CHECKS)

    check()


def ask(app: ASGIApp, method: str, path: str, body: bytes | None = None) -> httpx.Response:
    async def go() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://x") as client:
            headers = {**HERE, "Content-Type": "application/json"}
            return await client.request(method, path, headers=headers, content=body)

    return asyncio.run(go())


def answered(answer: httpx.Response) -> None:
    assert answer.status_code < 500, answer.text
    if answer.status_code >= 400:
        assert answer.headers["content-type"] == "application/problem+json"
        assert set(answer.json()) == {"type", "title", "status", "code", "detail", "hint"}


OPERATORS = ("$eq", "$ne", "$lt", "$lte", "$gt", "$gte", "$in", "$contains", "$matches_any", "$matches_all", "$not")
NAMES = st.sampled_from(
    [*THINGS.columns.names, "place.city", "place.zip", "labels.x", "nothing", "$and", "$or", "$not"]
)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=-(10**40), max_value=10**40)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
    | st.sampled_from(["NaN", "1.5", "2026-01-03", "2026-01-03T12:00:00Z", "AQ==", "thing 3", "\ud800"])
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(OPERATORS) | NAMES, inner, max_size=3)
        | st.dictionaries(NAMES, st.dictionaries(st.sampled_from(OPERATORS), inner, max_size=2), max_size=3)
    ),
    max_leaves=8,
)
QUERIES = st.fixed_dictionaries(
    {"$filter": st.dictionaries(NAMES, VALUES, max_size=3) | VALUES},
    optional={
        "$order_by": st.dictionaries(NAMES, st.sampled_from(["asc", "desc", "up"]), max_size=2) | VALUES,
        "$limit": st.integers(-1, 30) | VALUES,
        "$skip": st.integers(-1, 30),
        "$after": st.text(max_size=20),
    },
)


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(QUERIES)
def test_fuzzed_queries_are_answered_or_refused(app: ASGIApp, query: Any) -> None:
    body = json.dumps(query).encode()  # halves of surrogate pairs are escaped in it, as JSON can have them
    for route in ("query", "count"):
        answered(ask(app, "POST", f"/things/{route}", body))


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(st.binary(max_size=20), st.sampled_from(["things", "pairs", "pairs@v1", "nothing"]), st.booleans())
def test_fuzzed_keys_are_answered_or_refused(app: ASGIApp, key: bytes, name: str, slash: bool) -> None:
    encoded = "".join(f"%{byte:02X}" for byte in key)
    answered(ask(app, "GET", f"/{name}/{encoded}" if slash else f"/{name}/?id={encoded}&one={encoded}&two=1.5"))
    answered(ask(app, "GET", f"/{name}?{encoded}"))
