"""HTTP clients, against a real server that fails, redirects and answers too much."""

from __future__ import annotations

import asyncio
import pickle
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from tests.errors import code_of

from headrace.core.context import Context
from headrace.core.runtime.backoff import Backoff
from headrace.systems.http.async_client import AsyncHttpClient, NoReplyError, Request
from headrace.systems.http.client import HttpClient, basic_authentication, is_transient, retry_after
from headrace.systems.http.download import DownloadError, TooLongError, download
from headrace.systems.http.options import HttpOptions, check_address
from headrace.systems.tls import TlsTexts

AT_ONCE = Backoff(0.001, 0.001)


class Server:
    """Answers with `statuses`, one after the other, then with 200; `/redirect` leads to `elsewhere`."""

    def __init__(self) -> None:
        self.statuses: list[int] = []
        self.requests: list[tuple[str, str, dict[str, str], bytes]] = []
        self.elsewhere = ""
        self.body = b"fine"
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                outer.requests.append((self.command, self.path, dict(self.headers), body))
                redirects = self.path == "/redirect"
                self.send_response(302 if redirects else outer.statuses.pop(0) if outer.statuses else 200)
                if redirects:
                    self.send_header("Location", outer.elsewhere)
                content = b"" if self.command == "HEAD" else outer.body
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = do_HEAD = answer  # noqa: N815

            def log_message(self, *_: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def server() -> Iterator[Server]:
    running = Server()
    yield running
    running.stop()


def client(server: Server, retry_for: float = 10.0) -> HttpClient:
    return HttpClient("the server", server.url, {"X-Key": "secret"}, 5.0, retry_for, TlsTexts())


def async_client(server: Server, **changes: Any) -> AsyncHttpClient:
    options: dict[str, Any] = {"timeout": 5.0, "connect_timeout": 5.0, "max_response": 1000}
    return AsyncHttpClient("the server", "POST", {}, None, "secret", TlsTexts(), **{**options, **changes})


def fetch(address: str, **changes: Any) -> bytes:
    options: dict[str, Any] = {"timeout": 5.0, "backoff": AT_ONCE, "retries": 2}
    return download(address, {"X-Key": "secret"}, **{**options, **changes}).body


def test_retry_after_is_seconds_or_a_date() -> None:
    assert retry_after(None) is None
    assert retry_after("soon") is None
    assert retry_after("1.5") == 1.5
    assert retry_after("86400") == 30.0
    later = format_datetime(datetime.now(UTC) + timedelta(seconds=25), usegmt=True)
    assert 0 < (retry_after(later) or 0) <= 25


def test_addresses() -> None:
    assert check_address("https://host:1/path", "wrong") == "https://host:1/path"
    for wrong in ("ftp://host", "http://", "host:80", "http://me:word@host"):
        with pytest.raises(ValueError, match=r"wrong|do not belong"):
            check_address(wrong, "wrong")


def test_options_become_headers_that_are_never_shown(tmp_path: Path) -> None:
    with pytest.raises(ValidationError):
        HttpOptions(username="me")
    options = HttpOptions.model_validate({"username": "me", "password": "s3cret", "headers": {"X-Key": "s3cret"}})
    made = options.client("label", "http://host/", Context(tmp_path, "state"))
    assert made.headers == {**basic_authentication(("me", "s3cret")), "X-Key": "s3cret"}
    assert made.headers["Authorization"] == "Basic bWU6czNjcmV0"
    assert "s3cret" not in repr(made) + repr(options)
    assert made.url == "http://host"


def test_transient_statuses() -> None:
    assert [status for status in (200, 304, 400, 404, 408, 425, 429, 500, 503) if is_transient(status)] == [
        408, 425, 429, 500, 503,
    ]  # fmt: skip


def test_requests_are_retried_while_the_server_is_busy(server: Server) -> None:
    server.statuses = [503, 429]
    sender = pickle.loads(pickle.dumps(client(server)))  # noqa: S301 — as it goes to the workers
    assert sender.send("POST", "/in", b"body").body == b"fine"
    assert [(method, path, body) for method, path, _, body in server.requests] == [("POST", "/in", b"body")] * 3
    assert all(headers["X-Key"] == "secret" for _, _, headers, _ in server.requests)


def test_what_a_client_raises_and_what_it_returns(server: Server) -> None:
    server.statuses = [500] * 9
    assert code_of(lambda: client(server, retry_for=0.0).send("GET", "/")) == "service-away"
    server.statuses = [401]
    assert code_of(lambda: client(server).send("GET", "/")) == "service-authentication"
    server.statuses = [404]
    reply = client(server).send("GET", "/")
    assert (reply.status, reply.ok, reply.text) == (404, False, "HTTP 404 fine")
    server.elsewhere = server.url
    assert client(server).send("GET", "/redirect").redirects
    server.stop()
    assert code_of(lambda: client(server, retry_for=0.0).send("GET", "/")) == "service-away"


def test_downloads(server: Server) -> None:
    server.statuses = [500, 429]
    assert fetch(f"{server.url}/set") == b"fine"
    server.statuses = [500] * 3
    with pytest.raises(DownloadError, match="HTTP 500"):
        fetch(f"{server.url}/set")
    assert download(f"{server.url}/set", {}, timeout=5.0, backoff=AT_ONCE, retries=0).headers["Content-Length"] == "4"


def test_a_download_that_is_redirected_keeps_its_headers_to_itself(server: Server) -> None:
    other = Server()
    server.elsewhere = other.url.replace("127.0.0.1", "localhost")
    assert fetch(f"{server.url}/redirect") == b"fine"
    assert "X-Key" in server.requests[0][2]
    assert "X-Key" not in other.requests[0][2]
    other.stop()
    with pytest.raises(DownloadError):
        fetch(f"{server.url}/redirect")


def test_a_download_that_is_too_long(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.systems.http.download._MOST_BYTES", 3)
    with pytest.raises(TooLongError):
        fetch(server.url)


def test_a_download_goes_through_a_proxy_if_told(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", server.url)
    monkeypatch.delenv("no_proxy", raising=False)
    assert fetch("http://registry.invalid/schemas", use_proxies=True) == b"fine"
    assert server.requests[0][1] == "http://registry.invalid/schemas"


def test_many_requests_at_once(server: Server) -> None:
    async def exchange() -> None:
        sender = async_client(server)
        replies = await asyncio.gather(*(sender.send(Request(f"{server.url}/{n}", (), b"x")) for n in range(5)))
        assert [reply.status for reply in replies] == [200] * 5
        assert {headers["Authorization"] for _, _, headers, _ in server.requests} == {"Bearer secret"}
        server.statuses = [404]
        assert (await sender.send(Request(server.url))).text == "HTTP 404 fine"
        await sender.probe(server.url, head=True, timeout=5.0)
        await sender.close()

    asyncio.run(exchange())


def test_requests_without_a_reply(server: Server) -> None:
    async def kind_of(sender: AsyncHttpClient) -> str:
        with pytest.raises(NoReplyError) as caught:
            await sender.send(Request(server.url))
        await sender.close()
        return caught.value.kind

    async def probe(sender: AsyncHttpClient) -> None:
        await sender.probe(server.url, head=False, timeout=5.0)

    assert asyncio.run(kind_of(async_client(server, max_response=2))) == "too-large"
    asyncio.run(probe(async_client(server, max_response=2)))
    server.statuses = [503]
    assert code_of(lambda: asyncio.run(probe(async_client(server)))) == "service-away"
    server.stop()
    assert asyncio.run(kind_of(async_client(server))) == "connection"
    assert code_of(lambda: asyncio.run(probe(async_client(server)))) == "service-away"
