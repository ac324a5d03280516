"""The client and a real server: every question, over the wire."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from pathlib import Path

import httpx
import pytest
from tests.serve.conftest import filled
from tests.serve.kit import FILMS, Served, api_key, film
from tests.serve.rest.test_live import Running

from headrace.client import ApiError, Client, NotAllowedError

pytestmark = pytest.mark.service


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    found = filled(tmp_path_factory.mktemp("films"))
    yield found
    found.close()


@pytest.fixture(scope="module")
def url(served: Served) -> Iterator[str]:
    scopes = ["read", "events", "sql"]
    europe = {"films": {"fields": ["id", "title"], "filter": {"region": "EU"}}}
    keys = [api_key("all", "all-key", scopes=scopes), api_key("eu", "eu-key", scopes=scopes, endpoints=europe),
            api_key("reader", "reader-key")]  # fmt: skip
    # ample time: what is tested is not how fast a busy machine is
    running = Running(served.settings(auth={"keys": keys}, limits={"page": 8, "sql": {"time": "60s"}}))
    yield running.url
    running.close()


def test_rows(url: str) -> None:
    with Client(url, "all-key", timeout=90) as client:
        assert client.endpoints() == ["films", "notes", "visits"]
        films = client.endpoint("films")
        assert (films.get(7) or {})["title"] == "Film 7"
        assert films.get(99) is None
        assert (client.endpoint("visits").get(("Bö/b", date(2026, 2, 1))) or {})["pages"] == 3
        assert (client.endpoint("visits").get(("Ada, the first", date(2026, 1, 31))) or {})["pages"] == 3
        assert [row["id"] for row in films.query(order_by={"id": "desc"})] == list(range(20, 0, -1))
        assert len(list(films.query({"region": "EU"}, limit=9))) == 9
        assert films.count({"region": "US"}) == 6
        with pytest.raises(ApiError, match="unknown-column"):
            films.count({"colour": "red"})
        assert films.to_arrow({"id": 7}).schema.types == FILMS.columns.types


def test_sql(url: str) -> None:
    with Client(url, "all-key", timeout=90) as client:
        answer = client.sql("SELECT region, count(*) AS n FROM films WHERE id > ? GROUP BY ALL ORDER BY 1", [0])
        assert list(answer) == [{"region": "EU", "n": 14}, {"region": "US", "n": 6}]
        assert client.sql("SELECT 1.50 AS a").to_arrow().to_pydict() == {"a": [Decimal("1.50")]}
    with Client(url, "eu-key", timeout=90) as client:
        assert client.sql("SELECT count(*) AS n, min(id) AS id FROM films").values == [[14, 1]]
        assert list(client.sql("DESCRIBE films").to_pandas()["column_name"]) == ["id", "title"]
        for text, code in (("SELECT region FROM films", "bad-sql"), ("SELECT * FROM notes", "unknown-table")):
            with pytest.raises(ApiError, match=code):
                client.sql(text)
    with Client(url, "reader-key") as client, pytest.raises(NotAllowedError, match="wrong-scope"):
        client.sql("SELECT 1")
    with Client(url) as client, pytest.raises(NotAllowedError, match="no-token"):
        client.sql("SELECT 1")


@pytest.mark.parametrize(
    "body",
    ['{"sql": 1}', "[]", "{}", '{"sql": "SELECT 1", "parameters": 3}', '{"sql": "SELECT 1", "limit": 3}', "no json"],
)
def test_bodies_that_are_no_questions(url: str, body: str) -> None:
    headers = {"X-API-Key": "all-key", "Content-Type": "application/json"}
    answer = httpx.post(f"{url}/sql", content=body, headers=headers, timeout=90)
    assert answer.status_code == 400
    assert answer.json()["code"] in ("bad-sql", "bad-json")


def test_events(url: str, served: Served) -> None:
    films = Client(url, "eu-key", timeout=90).endpoint("films")
    with films.events({"id": {"$gt": 18}}, snapshot=True) as events:
        first = [next(events) for _ in range(3)]
        served.put(FILMS, [film(25, region="EU"), film(26, region="US")])
        change = next(events)
    assert [one.type for one in first] == ["snapshot", "snapshot", "snapshot_end"]
    assert (change.type, change.row) == ("insert", {"id": 25, "title": "Film 25"})
    served.put(FILMS, [film(25, region="EU", title="Again")])
    with films.events(after=change.id) as events:
        assert (next(events).row or {})["title"] == "Again"


def test_the_browser_client_is_there(url: str) -> None:
    answer = httpx.get(f"{url}/headrace.js", timeout=90)
    assert answer.headers["content-type"].startswith("text/javascript")
    script = Path(__file__).parents[2] / "src" / "headrace" / "serve" / "static" / "headrace.js"
    assert answer.content == script.read_bytes()
