"""Changes that callers push over REST: checked, durable when answered, and taken once."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.serve.kit import SECRET, Served, api_key

from headrace.core.endpoints import Op
from headrace.log.inbox import Inbox
from headrace.serve.rest.app import create_app
from headrace.tables.push import PushTable

ORDERS = PushTable(columns="id bigint, region string, amount decimal(20,4), at timestamp, tags array<int>", key=["id"])
NOTES = PushTable(columns="id string, text string", key=["id"])


class Api:
    """The application over two tables that are pushed to."""

    def __init__(self, folder: Path, **serve: Any) -> None:
        self.settings = replace(Served(folder).settings(**serve), tables={"orders": ORDERS, "notes": NOTES})
        self.app = create_app(self.settings)

    def push(self, body: Any, table: str = "orders", **headers: str) -> httpx.Response:
        return self.all([body], table, **headers)[0]

    def all(self, bodies: list[Any], table: str = "orders", **headers: str) -> list[httpx.Response]:
        async def ask() -> list[httpx.Response]:
            transport = httpx.ASGITransport(app=self.app)
            sent = {name.replace("_", "-"): value for name, value in headers.items()}
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost:9480") as client:
                asked = [
                    client.post(
                        f"/tables/{table}",
                        content=body if isinstance(body, bytes) else json.dumps(body).encode(),
                        headers={"content-type": "application/json", **sent},
                    )
                    for body in bodies
                ]
                return list(await asyncio.gather(*asked))

        return asyncio.run(ask())

    def get(self, path: str, **headers: str) -> Any:
        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(app=self.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost:9480") as client:
                return await client.get(path, headers={name.replace("_", "-"): one for name, one in headers.items()})

        return asyncio.run(ask()).json()

    def there(self, table: str = "orders") -> list[tuple[Op, Any]]:
        inbox = Inbox(self.settings.log, table, ORDERS.max_age)
        return [(op, json.loads(row)) for _, changes in inbox.after(0) for op, row in changes]


@pytest.fixture
def api(tmp_path: Path) -> Api:
    return Api(tmp_path)


def problem(answer: httpx.Response) -> tuple[int, str]:
    assert answer.headers["content-type"] == "application/problem+json"
    return answer.status_code, answer.json()["code"]


def upsert(number: Any, **more: Any) -> dict[str, Any]:
    return {"op": "upsert", "row": {"id": number, **more}}


def test_one_change_and_several_are_taken(api: Api) -> None:
    assert api.push(upsert(1, amount="1.5")).json() == {"accepted": 1, "position": 1}
    several = {"changes": [upsert(2, tags=[1, 2]), {"op": "delete", "row": {"id": 1, "region": "EU"}}]}
    assert api.push(several).json() == {"accepted": 2, "position": 2}
    assert api.there() == [
        (Op.UPSERT, {"amount": "1.5", "id": 1}),
        (Op.UPSERT, {"id": 2, "tags": [1, 2]}),
        (Op.DELETE, {"id": 1}),
    ]


def test_numbers_stay_as_exact_as_they_are_written(api: Api) -> None:
    assert api.push(b'{"op":"insert","row":{"id":1,"amount":1234567890123456.7891}}').status_code == 200
    assert api.there() == [(Op.UPSERT, {"amount": "1234567890123456.7891", "id": 1})]


def test_the_same_key_gives_the_same_answer_and_changes_nothing(api: Api) -> None:
    first = api.push(upsert(1), idempotency_key="a").json()
    assert api.push(upsert(2), idempotency_key="b").json()["position"] == 2
    assert api.push(upsert(1), idempotency_key="a").json() == first
    assert problem(api.push(upsert(7), idempotency_key="a")) == (422, "idempotency-key-reused")
    assert len(api.there()) == 2


def test_requests_at_the_same_time_share_commits(api: Api) -> None:
    answers = api.all([upsert(number) for number in range(50)])
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.json()["position"] for answer in answers}) <= 3
    assert sorted(row["id"] for _, row in api.there()) == list(range(50))


@pytest.mark.parametrize(
    ("body", "path", "hint"),
    [
        (upsert("x"), "row.id: 'x' is not a whole number", None),
        ({"changes": [upsert(1), upsert(2, amount="much")]}, "changes[1].row.amount: 'much' is not a number", None),
        (upsert(1, regin="EU"), "'row.regin'", "did you mean 'region'?"),
        (upsert(None), "row.id is null or missing", "the key is: id"),
        ({"op": "delete", "row": {"region": "EU"}}, "row.id is null or missing", None),
        ({"op": "upsrt", "row": {"id": 1}}, "op is none: upsrt", "did you mean 'upsert'?"),
        ({"op": "upsert", "rwo": {"id": 1}}, "there is no 'rwo'", "did you mean 'row'?"),
        ({"changes": []}, "'changes' is not a list", None),
        ({"changes": [7]}, "changes[0] is not an object", None),
        ([], "the body is not a change", None),
        (upsert(1, tags=[1, "x"]), "row.tags: 'x' is not a whole number", None),
        (upsert(1, amount="12345678901234567890"), "too large for decimal(20,4)", None),
        (upsert(2**63), "too large for 64 bits", None),
        ({**upsert(1), "id": ""}, "id is not a text", None),
        ({"changes": [{**upsert(1), "id": "a"}, {**upsert(2), "id": "a"}]}, "have the same id", None),
    ],
)
def test_what_does_not_fit_is_refused_whole_with_its_place(api: Api, body: Any, path: str, hint: str | None) -> None:
    answer = api.push(body)
    assert problem(answer) == (422, "bad-change")
    assert path in answer.json()["detail"]
    assert (hint or "") in answer.json()["hint"]
    assert api.there() == []


def test_bodies_and_addresses_are_checked(api: Api, tmp_path: Path) -> None:
    assert problem(api.push(b"{")) == (400, "bad-json")
    assert problem(api.push(upsert(1), table="ordres")) == (404, "unknown-table")
    assert problem(api.push(upsert(1), content_type="text/plain")) == (415, "not-json")
    small = Api(tmp_path / "small", limits={"body": 100})
    assert problem(small.push(upsert(1, region="x" * 200))) == (413, "body-too-large")
    assert problem(api.push(upsert(1), host="evil.example")) == (403, "host-forbidden")


def test_a_page_from_elsewhere_cannot_write_unasked(api: Api) -> None:
    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(app=api.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost:9480") as client:
            return await client.post("/tables/orders", content=json.dumps(upsert(1)).encode())

    assert problem(asyncio.run(ask())) == (415, "not-json")
    assert api.there() == []


def test_a_token_needs_the_scope_and_the_table(tmp_path: Path) -> None:
    keys = [
        api_key("reader", "r"),
        api_key("writer", "w", scopes=["write"]),
        api_key("noter", "n", scopes=["write"], tables=["notes"]),
        api_key("boss", "b", scopes=["admin"]),
        api_key("slow", "s", scopes=["write"], requests_per_second=1),
    ]
    api = Api(tmp_path, auth={"keys": keys})
    assert problem(api.push(upsert(1))) == (401, "no-token")
    assert problem(api.push(upsert(1), x_api_key="r")) == (403, "wrong-scope")
    assert api.push(upsert(1), x_api_key="w").status_code == 200
    refused = api.push(upsert(1), x_api_key="n")
    assert problem(refused) == (403, "table-forbidden")
    assert "notes" in refused.json()["hint"]
    assert problem(api.push(upsert(1), table="nothing", x_api_key="n")) == (403, "table-forbidden")
    assert api.push(upsert("a"), table="notes", x_api_key="n").status_code == 200
    assert api.push(upsert(2), x_api_key="b").status_code == 200
    assert api.push(upsert(3), x_api_key="s").status_code == 200
    assert problem(api.push(upsert(4), x_api_key="s")) == (429, "rate-limited")
    assert [row["id"] for _, row in api.there()] == [1, 2, 3]
    assert "/tables/orders" not in api.get("/openapi.json", x_api_key="r")["paths"]
    assert "/tables/orders" in api.get("/openapi.json", x_api_key="b")["paths"]


def test_signed_tokens_name_tables_too(tmp_path: Path) -> None:
    import time

    import jwt

    api = Api(tmp_path, auth={"jwt": {"secret": SECRET}})
    claims = {"aud": "cinema", "exp": int(time.time()) + 60, "scopes": ["write"], "tables": ["notes"]}
    token = jwt.encode(claims, SECRET, "HS256")
    assert problem(api.push(upsert(1), authorization=f"Bearer {token}")) == (403, "table-forbidden")
    assert api.push(upsert("a"), table="notes", authorization=f"Bearer {token}").status_code == 200
    wrong = jwt.encode({**claims, "tables": "notes"}, SECRET, "HS256")
    assert problem(api.push(upsert("a"), table="notes", authorization=f"Bearer {wrong}")) == (401, "bad-token")


def test_a_disk_that_fails_is_said_and_the_request_can_be_sent_again(api: Api) -> None:
    blocked = api.settings.log / ".inbox"
    blocked.parent.mkdir(parents=True, exist_ok=True)
    blocked.write_bytes(b"")  # a file where a folder should be
    assert problem(api.push(upsert(1), idempotency_key="a")) == (503, "inbox-unavailable")
    blocked.unlink()
    assert api.push(upsert(1), idempotency_key="a").status_code == 200
    assert len(api.there()) == 1


def test_the_openapi_document_says_what_a_table_takes(api: Api) -> None:
    found = api.get("/openapi.json")
    assert found["paths"]["/tables/orders"]["post"]["operationId"] == "push_orders"
    change = found["components"]["schemas"]["tables_orders"]["oneOf"][0]
    assert change["properties"]["row"]["required"] == ["id"]
    assert change["properties"]["row"]["properties"]["amount"]["x-headrace-type"] == "decimal(20,4)"
