"""Records that are POSTed to a stream: unpacked, durable when answered, taken once, answered in the project's form."""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.serve.kit import Served, api_key
from tests.serve.nodekit import until

from headrace.serve.rest.app import create_app
from headrace.sources.http import HttpSource

FIELDS = {
    "did": {"header": "X-Device-Id"},
    "mid": {"field": "mid", "uuid": True},
    "id": {"field": "mid"},
    "syncts": {"now": "ms"},
    "dataset": {"value": "sb-telemetry"},
}
REPLY = {"id": "api.telemetry", "ver": "1.0", "ets": "{now}", "params": {}, "responseCode": "SUCCESS"}
REFUSAL = {"id": "api.telemetry", "params": {"err": "{code}", "errmsg": "{message}"}, "responseCode": "{fault}"}


class Api:
    """The application over one stream."""

    def __init__(self, folder: Path, source: dict[str, Any], **serve: Any) -> None:
        self.source = HttpSource.model_validate({"path": "/v1/telemetry", **source})
        self.settings = replace(Served(folder).settings(**serve), streams={"telemetry": self.source})
        self.app = create_app(self.settings)

    def ask(self, *requests: dict[str, Any], method: str = "POST") -> list[httpx.Response]:
        async def all() -> list[httpx.Response]:
            transport = httpx.ASGITransport(app=self.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost:9480") as client:
                return list(await asyncio.gather(*(client.request(method, **one) for one in requests)))

        answers = asyncio.run(all())
        # a server sends nothing that is longer or shorter than it says
        for answer in answers:
            if method != "HEAD" and "content-encoding" not in answer.headers:
                assert int(answer.headers.get("content-length", 0)) == len(answer.content)
        return answers

    def post(self, body: Any, *, path: str = "/v1/telemetry", **headers: str) -> httpx.Response:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        sent = {"content-type": "application/json", **{k.replace("_", "-"): v for k, v in headers.items()}}
        return self.ask({"url": path, "content": content, "headers": sent})[0]

    def there(self) -> list[bytes]:
        return [row for _, rows in self.source.inbox(self.settings.log).after(0) for _, row in rows]


@pytest.fixture
def api(tmp_path: Path) -> Callable[..., Api]:
    return lambda serve=None, **source: Api(tmp_path, source, **(serve or {}))


def problem(answer: httpx.Response) -> tuple[int, str]:
    assert answer.headers["content-type"] == "application/problem+json"
    return answer.status_code, answer.json()["code"]


def test_fields_are_set_and_the_rest_is_kept_digit_by_digit(api: Callable[..., Api]) -> None:
    one = api(fields=FIELDS, reply=REPLY)
    body = b'{"mid": "m1", "did": "theirs", "ets": 12345678901234567890123, "events": [{"x": 1.10,\n "y":\t"\\u00e9"}]}'
    answer = one.post(body, x_device_id="d1")
    said = answer.json()
    assert (answer.status_code, said) == (200, {**REPLY, "ets": said["ets"]})
    assert isinstance(said["ets"], int)
    one.post({"did": "theirs", "events": []})
    first, second = one.there()
    assert first.startswith(b'{"mid":"m1","did":"d1","ets":12345678901234567890123,"events":[{"x":1.10,"y":"\\u00e9"}]')
    kept = json.loads(second)
    assert kept["id"] == kept["mid"]
    assert len(kept["mid"]) == 36
    assert "did" not in kept
    assert kept["dataset"] == "sb-telemetry"
    assert kept["syncts"] > 1_700_000_000_000


@pytest.mark.parametrize(
    ("coding", "pack"),
    [
        ("gzip", gzip.compress),
        ("gzip", lambda body: gzip.compress(body[:3]) + gzip.compress(body[3:])),
        ("deflate", zlib.compress),
        ("deflate", lambda body: zlib.compress(body, wbits=-15)),
        ("identity", bytes),
    ],
)
def test_compressed_bodies_are_taken(api: Callable[..., Api], coding: str, pack: Callable[[bytes], bytes]) -> None:
    one = api()
    assert one.post(pack(b'{"a":1}'), content_encoding=coding).json() == {"position": 1}
    assert one.there() == [b'{"a":1}']


def test_large_bodies_are_looked_at_aside(api: Callable[..., Api]) -> None:
    one = api()
    body = {"events": ["x" * 200] * 1000}
    assert one.post(body).status_code == 200
    assert json.loads(one.there()[0]) == body


@pytest.mark.parametrize(
    ("body", "headers", "refused"),
    [
        (b"[1]", {}, (400, "bad-json")),
        (b'{"a":', {}, (400, "bad-json")),
        (b'{"a":"\xff"}', {}, (400, "bad-json")),
        (b'{"a":' + b"[" * 50_000 + b"]" * 50_000 + b"}", {}, (400, "bad-json")),
        (b"", {}, (400, "bad-json")),
        (b'{"a":1}', {"content_encoding": "gzip"}, (400, "bad-compression")),
        (gzip.compress(b'{"a":1}', mtime=0)[:-9], {"content_encoding": "gzip"}, (400, "bad-compression")),
        (gzip.compress(b'{"a":1}', mtime=0) + b"more", {"content_encoding": "gzip"}, (400, "bad-compression")),
        (gzip.compress(b"") * 2000 + gzip.compress(b"{}"), {"content_encoding": "gzip"}, (400, "bad-compression")),
        (gzip.compress(b"[" * 150_000) + gzip.compress(b"]"), {"content_encoding": "gzip"}, (413, "body-too-large")),
        (b'{"a":1}', {"content_encoding": "br"}, (415, "unknown-coding")),
        (b'{"a":1}', {"content_type": "text/plain"}, (415, "not-json")),
        (b'{"a":"' + b"x" * 200_000 + b'"}', {}, (413, "body-too-large")),
        (
            gzip.compress(b'{"a":"' + b"x" * 10_000_000 + b'"}', mtime=0),
            {"content_encoding": "gzip"},
            (413, "body-too-large"),
        ),
        (b'{"a":1}', {"idempotency_key": "x" * 300}, (400, "bad-idempotency-key")),
    ],
)
def test_what_cannot_be_a_record_is_refused(
    api: Callable[..., Api], body: bytes, headers: dict[str, str], refused: tuple[int, str]
) -> None:
    one = api(max_body="150kB")
    assert problem(one.post(body, **headers)) == refused
    assert one.there() == []


def test_refusals_have_the_form_of_the_project(api: Callable[..., Api]) -> None:
    answer = api(refusal=REFUSAL).post(b"[1]")
    assert answer.status_code == 400
    assert answer.json() == {
        "id": "api.telemetry",
        "params": {"err": "bad-json", "errmsg": "the body is not a JSON object"},
        "responseCode": "CLIENT_ERROR",
    }


SCHEMA = {"type": "object", "required": ["mid"], "properties": {"ets": {"type": "number"}}}


@pytest.mark.parametrize("mode", ["report", "refuse"])
def test_documents_are_checked_and_those_with_something_wrong_named(
    api: Callable[..., Api], tmp_path: Path, mode: str
) -> None:
    (tmp_path / "schemas").mkdir()
    (tmp_path / "schemas/start.json").write_text(json.dumps(SCHEMA))
    validation = {"mode": mode, "schemas": "schemas", "schema": "{eid}.json", "documents": "events", "id": "mid"}
    one = api(validation=validation)
    good, bad = {"eid": "START", "mid": "a", "ets": 1}, {"eid": "START", "mid": "b", "ets": "x"}
    assert one.post({"events": [good]}).json() == {"position": 1}
    answer = one.post({"events": [good, bad, {"eid": "STOP"}, 7]})
    errors = {error["document"]: error for error in answer.json()["errors"]}
    assert (answer.status_code, len(one.there())) == ((200, 2) if mode == "report" else (400, 1))
    assert errors[1]["id"] == "b"
    assert (errors[1]["errors"][0]["keyword"], errors[1]["errors"][0]["path"]) == ("type", "/ets")
    assert [error["errors"][0]["keyword"] for error in errors.values()] == ["type", "schema", "type"]
    assert one.post({"events": 1}).json()["errors"][0]["errors"][0]["path"] == "/events"


def test_a_request_that_comes_again_adds_nothing_whatever_the_clock_says(api: Callable[..., Api]) -> None:
    one = api(fields=FIELDS)
    assert one.post({"a": 1}, idempotency_key="k").json() == {"position": 1}
    assert one.post({"a": 1}, idempotency_key="k").json() == {"position": 1}
    assert problem(one.post({"a": 2}, idempotency_key="k")) == (422, "idempotency-key-reused")
    assert len(one.there()) == 1


def test_many_at_once_share_a_commit(api: Callable[..., Api]) -> None:
    one = api()
    headers = {"content-type": "application/json"}
    answers = one.ask(*({"url": "/v1/telemetry", "json": {"n": n}, "headers": headers} for n in range(40)))
    assert len({answer.json()["position"] for answer in answers}) < 10
    assert sorted(json.loads(row)["n"] for row in one.there()) == list(range(40))


def test_callers_wait_while_too_much_is_unread(api: Callable[..., Api]) -> None:
    one = api(max_backlog="500B", refusal=REFUSAL)
    assert one.post({"a": 1}).status_code == 200
    full = one.post({"a": 2})
    assert (full.status_code, full.headers["retry-after"]) == (503, "5")
    assert full.json()["responseCode"] == "SERVER_ERROR"
    one.source.inbox(one.settings.log).release(1, timedelta(0))
    until(lambda: one.post({"a": 3}).status_code == 200)


def test_writing_needs_its_right(api: Callable[..., Api]) -> None:
    keys = [
        api_key("reader", "r"),
        api_key("writer", "w", scopes=["write"], tables=["telemetry"]),
        api_key("other", "o", scopes=["write"], tables=["orders"]),
    ]
    one = api(serve={"auth": {"keys": keys}})
    assert problem(one.post({})) == (401, "no-token")
    assert problem(one.post({}, x_api_key="r")) == (403, "wrong-scope")
    assert problem(one.post({}, x_api_key="o")) == (403, "stream-forbidden")
    assert one.post({}, x_api_key="w").status_code == 200
    paths = one.ask({"url": "/openapi.json", "headers": {"x-api-key": "w"}}, method="GET")[0].json()["paths"]
    assert list(paths) == ["/v1/telemetry"]


def test_pages_from_elsewhere_are_let_in_where_the_project_says_so(api: Callable[..., Api]) -> None:
    asked = {"origin": "https://a.org", "access-control-request-headers": "x-device-id, content-encoding"}
    one = api(cors=["https://a.org"])
    before = one.ask({"url": "/v1/telemetry", "headers": asked}, method="OPTIONS")[0]
    assert before.headers["access-control-allow-headers"] == asked["access-control-request-headers"]
    assert before.headers["access-control-allow-origin"] == "https://a.org"
    assert one.post({}, origin="https://a.org").headers["access-control-allow-origin"] == "https://a.org"
    assert "access-control-allow-origin" not in one.post({}, origin="https://b.org").headers


def test_other_methods_and_paths_are_not_known(api: Callable[..., Api]) -> None:
    one = api()
    answer = one.ask({"url": "/v1/telemetry"}, method="PUT")[0]
    assert problem(answer) == (405, "method-not-allowed")
    assert answer.headers["allow"] == "POST, OPTIONS"
    assert one.post({}, path="/v1/telemetri").status_code in (404, 405)


def test_health_says_whether_a_record_would_be_taken(api: Callable[..., Api]) -> None:
    form = {"path": "/v1/telemetry/health", "status": 500, "reply": {"ets": "{now}"}, "refusal": {"err": "{code}"}}
    one = api(max_backlog="500B", health=form, serve={"auth": {"keys": [api_key("w", "w", scopes=["write"])]}})

    def asked(method: str = "GET") -> httpx.Response:
        return one.ask({"url": "/v1/telemetry/health"}, method=method)[0]

    well = asked()
    assert (well.status_code, list(well.json()), well.headers["cache-control"]) == (200, ["ets"], "no-store")
    assert (asked("HEAD").status_code, asked("HEAD").content) == (200, b"")
    assert problem(asked("POST")) == (405, "method-not-allowed")
    assert one.post({"a": 1}, x_api_key="w").status_code == 200
    full = asked()
    assert (full.status_code, full.json()) == (500, {"err": "inbox-full"})
    one.source.inbox(one.settings.log).release(1, timedelta(0))
    until(lambda: asked().status_code == 200)
    log = Path(str(one.settings.log))
    log.rename(log.with_name("away"))
    log.write_text("a file where the folder was")
    until(lambda: asked().status_code == 500)
    assert asked().json() == {"err": "inbox-unavailable"}
    log.unlink()
    log.with_name("away").rename(log)
    until(lambda: asked().status_code == 200)


def test_health_in_place_of_the_nodes_own_and_as_a_problem(api: Callable[..., Api], tmp_path: Path) -> None:
    one = api(health={"path": "/health"})
    assert one.ask({"url": "/health"}, method="GET")[0].json() == {"status": "ready"}
    stranger = one.ask({"url": "http://evil.example/health"}, method="GET")[0]
    assert problem(stranger) == (403, "host-forbidden")
    (tmp_path / "log" / ".inbox").rename(tmp_path / "away")
    (tmp_path / "log" / ".inbox").write_text("")
    until(lambda: one.ask({"url": "/health"}, method="GET")[0].status_code == 503)
    assert problem(one.ask({"url": "/health"}, method="GET")[0]) == (503, "inbox-unavailable")
