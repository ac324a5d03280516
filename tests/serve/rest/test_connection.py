"""Connections: the short way to single rows gives what the long way gives, in order, to those who take it."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from datetime import date
from typing import Any

import httpx
import pytest
from tests.serve.kit import FILMS, VISITS, Running, Served, film
from uvicorn.server import ServerState

from headrace.serve.rest import app as app_module
from headrace.serve.rest import connection
from headrace.serve.rest.api import server
from headrace.serve.rest.app import create_app
from headrace.serve.rest.connection import HttpConnection

HOST = b"Host: localhost\r\n"


@pytest.fixture
def filled(served: Served) -> Served:
    served.put(FILMS, [film(number) for number in range(1, 101)])
    served.put(VISITS, [{"who": "a/b,c", "day": date(2026, 1, 31), "pages": 3, "tags": None, "place": None}])
    return served


@pytest.fixture
def running(filled: Served) -> Iterator[Running]:
    found = Running(filled.settings())
    yield found
    found.close()


def talk(running: Running, *sent: bytes) -> bytes:
    """All that is answered to what one connection sends, the last of it with 'Connection: close'."""
    with socket.create_connection(("127.0.0.1", running.port), timeout=20) as line:
        for one in sent:
            line.sendall(one)
        found = b""
        while more := line.recv(1 << 16):
            found += more
    return found


PATHS = ["/films/5", "/films/1000", "/films/x", "/nothing/5", "/films/%35", "/visits/a%2Fb%2Cc,2026-01-31", "/visits/a"]


@pytest.mark.service
def test_both_ways_say_the_same(running: Running, filled: Served) -> None:
    app = create_app(filled.settings())

    async def long_way(path: str) -> httpx.Response:
        transport = httpx.ASGITransport(app, client=("127.0.0.1", 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.get(path)

    for path in PATHS:
        short, long = httpx.get(running.url + path), asyncio.run(long_way(path))
        assert (short.status_code, short.content) == (long.status_code, long.content)
        assert {name: value for name, value in short.headers.items() if name != "date"} == dict(long.headers)
    row = httpx.get(f"{running.url}/films/5")
    assert row.json() == {**film(5)}
    assert httpx.get(f"{running.url}/films/5", headers={"If-None-Match": row.headers["etag"]}).status_code == 304
    text = httpx.get(f"{running.url}/metrics").text
    assert 'requests_total{endpoint="films",route="get",status="200",surface="rest"} 3.0' in text


@pytest.mark.service
def test_answers_come_in_the_order_of_requests(running: Running) -> None:
    body = b'{"$filter": {"id": 7}}'
    query = b"POST /films/query HTTP/1.1\r\n%bContent-Length: %d\r\n\r\n%b" % (HOST, len(body), body)
    row = b"GET /films/%d HTTP/1.1\r\n" + HOST
    found = talk(
        running,
        row % 1 + b"\r\n" + query + row % 2 + b"Content-Length: 3\r\n\r\nabc" + row % 3 + b"\r\n",
        row % 4 + b"\r\n" + query,
        row % 5 + b"Connection: close\r\n\r\n",
    )
    at = [found.index(b'"id":%d,' % number) for number in (1, 7, 2, 3, 4)]
    assert at == sorted(at)
    assert found.count(b"HTTP/1.1 200 OK") == 7
    assert found.index(b'"id":5,') > found.rindex(b'"id":7,') > at[-1]


@pytest.mark.service
def test_odd_requests(running: Running) -> None:
    close = HOST + b"Connection: close\r\n\r\n"
    assert b'"id":3,' in talk(running, b"GET http://localhost/films/3 HTTP/1.1\r\n" + close)
    assert b"bad-parameter" in talk(running, b"GET /films/3?x=1 HTTP/1.1\r\n" + close)
    old = talk(running, b"GET /films/3 HTTP/1.0\r\n" + HOST + b"\r\n")
    assert b"connection: close" in old
    assert b'"id":3,' in old
    assert talk(running, b"no request\r\n\r\n").startswith(b"HTTP/1.1 400")
    endless = b"GET /films/3 HTTP/1.1\r\nX: " + b"y" * 900_000
    with suppress(ConnectionResetError):  # it may be let go before all was sent
        assert b"too long" in talk(running, endless)


@pytest.mark.service
def test_who_does_not_read_gets_all_in_the_end(running: Running) -> None:
    count = 10_000
    asked = (b"GET /films/9 HTTP/1.1\r\n" + HOST + b"\r\n") * count
    with socket.create_connection(("127.0.0.1", running.port), timeout=30) as line:
        asking = threading.Thread(target=line.sendall, args=(asked,))
        asking.start()
        asking.join(1)  # by then its answers fill all buffers, and it is not read from either
        found = b""
        while found.count(b"HTTP/1.1 200") < count:
            found += line.recv(1 << 20)
        asking.join()


class Line:
    """A transport that only tells whether it was closed."""

    closed = False

    def get_extra_info(self, _name: str) -> Any:
        return None

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def write(self, _data: bytes) -> None: ...


def test_idle_connections_are_closed(filled: Served) -> None:
    async def looks(sent: bytes) -> int:
        config = server(filled.settings()).config
        config.load()
        line, one = Line(), HttpConnection(config, ServerState(), {}, asyncio.get_running_loop())
        one.connection_made(line)  # type: ignore[arg-type]
        one.data_received(sent)
        count = 0
        while not line.closed:
            one.check_idle()
            count += 1
        return count

    half = b"GET /films/1 HTTP/1.1\r\nHost"
    whole = half + b": localhost\r\n\r\n"
    idle = connection.IDLE_SECONDS // connection.CHECK_SECONDS + 1
    assert asyncio.run(looks(whole)) == idle
    assert asyncio.run(looks(half)) < idle
    assert asyncio.run(looks(whole + half)) < idle


def test_too_much_at_once(filled: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app_module, "_AT_ONCE", -1)

    async def asked() -> list[httpx.Response]:
        transport = httpx.ASGITransport(create_app(filled.settings(limits={"subscribers": 1})))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return [await client.get("/films"), await client.get("/films/5")]

    refused, row = asyncio.run(asked())
    assert (refused.status_code, refused.json()["code"], refused.headers["retry-after"]) == (503, "busy", "1")
    assert row.status_code == 200
