"""Queries as upstream's clients write them: what is accepted, what is refused, and which rows come in which order."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.store.kit import OpenStore, rows_of

from headrace.core.endpoints import Endpoint
from headrace.core.errors import RequestError
from headrace.core.schema import from_ddl
from headrace.store.query.filters import parse_filter
from headrace.store.query.query import parse_query

VECTORS = json.loads((Path(__file__).parent / "vectors" / "queries.json").read_text())
FILMS = Endpoint(
    "films",
    from_ddl("film_id bigint, description string, rental_rate float, release_year int, updated_at timestamp"),
    key=("film_id",),
    indexes=(("release_year",),),
    text=("description",),
)
PARSED = Endpoint("parsed", from_ddl("a int, b int, c int, a_b int, t boolean, abc string"), key=("a",))


def dataset(name: str) -> tuple[Endpoint, list[dict[str, Any]]]:
    if name == "films52":
        films = [{"film_id": number, "release_year": 2006} for number in (268, 524)]
        films += [{"film_id": one, "description": f"Film {one}", "release_year": 2006} for one in range(1, 51)]
        return FILMS, films
    found = VECTORS["datasets"][name]
    columns = from_ddl(found["ddl"])
    indexes = tuple(tuple(one) for one in found.get("indexes", []))
    endpoint = Endpoint(name, columns, tuple(found["key"]), indexes, tuple(found.get("text", [])))
    return endpoint, [dict(zip(columns.names, row, strict=True)) for row in found["rows"]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, OpenStore]]:
    found = {name: OpenStore(tmp_path_factory.mktemp(name), *dataset(name)) for name in ("abc", "words", "films52")}
    yield found
    for one in found.values():
        one.close()


@pytest.mark.parametrize("case", VECTORS["cases"], ids=lambda case: case["id"])
def test_vectors(made: dict[str, OpenStore], case: dict[str, Any]) -> None:
    store = made[case["dataset"]]
    rows = rows_of(store.page(case["body"]))
    assert (len(rows), store.count(case["body"])) == (case["count"], case["count"])
    if "rows" in case:
        assert [row[store.endpoint.key[0]] for row in rows] == case["rows"]


@pytest.mark.parametrize("document", VECTORS["filter_parse"]["accept"], ids=json.dumps)
def test_filters_that_are_accepted(document: Any) -> None:
    parse_filter(document, PARSED)


@pytest.mark.parametrize("document", VECTORS["filter_parse"]["reject"], ids=json.dumps)
def test_filters_that_are_refused(document: Any) -> None:
    with pytest.raises(RequestError) as found:
        parse_filter(document, PARSED)
    assert found.value.code in ("bad-filter", "unknown-column", "unknown-operator")
    assert found.value.status == 400


@pytest.mark.parametrize("document", VECTORS["order_by_parse"]["accept"], ids=json.dumps)
def test_orders_that_are_accepted(document: Any) -> None:
    parse_query({"$order_by": document}, PARSED, page=100)


@pytest.mark.parametrize("document", VECTORS["order_by_parse"]["reject"], ids=json.dumps)
def test_orders_that_are_refused(document: Any) -> None:
    with pytest.raises(RequestError) as found:
        parse_query({"$order_by": document}, PARSED, page=100)
    assert found.value.code in ("bad-query", "unknown-column")


def code_of(document: Any, page: int | None = 100) -> str:
    with pytest.raises(RequestError) as found:
        parse_query(document, PARSED, page=page)
    return found.value.code


@pytest.mark.parametrize(
    "document",
    [
        [],
        "all",
        {"filter": {}},
        {"$limit": -1},
        {"$limit": "10"},
        {"$limit": 1.5},
        {"$limit": True},
        {"$limit": 2**63},
        {"$skip": -1},
        {"$skip": 5, "$after": "x"},
        {"$order_by": [{"a": "asc"}] * 3},
    ],
    ids=json.dumps,
)
def test_queries_that_are_refused(document: Any) -> None:
    assert code_of(document) == "bad-query"


def test_a_page_has_a_size() -> None:
    assert parse_query({}, PARSED, page=100).limit == 50
    assert parse_query({}, PARSED, page=20).limit == 20
    assert parse_query({"$limit": 100}, PARSED, page=100).limit == 100
    assert parse_query({"$limit": 5000}, PARSED, page=None, default=None).limit == 5000
    assert parse_query(None, PARSED, page=None, default=None).limit is None
    with pytest.raises(RequestError) as found:
        parse_query({"$limit": 101}, PARSED, page=100)
    assert (found.value.code, found.value.status) == ("page-too-large", 422)
    assert "100" in found.value.message


def test_pages_follow_each_other(made: dict[str, OpenStore]) -> None:
    asked = {"$filter": {"c": {"$gte": 521}}, "$order_by": {"b": "asc"}, "$limit": 3}
    pages, after = [], None
    while not pages or after:
        page = made["abc"].page({**asked, "$after": after})
        pages.append([row["a"] for row in rows_of(page)])
        after = page.next
    assert pages == [[3, 4, 7], [2, 6, 5], [1]]


def test_a_cursor_belongs_to_its_query(made: dict[str, OpenStore]) -> None:
    asked = {"$filter": {"c": {"$gte": 521}}, "$order_by": {"b": "asc"}, "$limit": 3}
    cursor = made["abc"].page(asked).next
    for changed in ({"$filter": {"c": {"$gte": 522}}}, {"$order_by": {"b": "desc"}}, {"$order_by": {"c": "asc"}}):
        with pytest.raises(RequestError, match="another query") as found:
            made["abc"].page({**asked, **changed, "$after": cursor})
        assert found.value.code == "bad-cursor"
    # how many rows a page has may change on the way
    assert len(made["abc"].page({**asked, "$limit": 50, "$after": cursor}).rows) == 4


@pytest.mark.parametrize("text", ["", "x", "é", "====", "AAAA", "kYGB", 5, "A" * 10_000])
def test_what_is_no_cursor(text: Any) -> None:
    assert code_of({"$after": text}) == "bad-cursor"


def test_a_sealed_cursor_shows_nothing(made: dict[str, OpenStore]) -> None:
    store, seal = made["films52"], b"s" * 32

    def page(document: dict[str, Any], seal: bytes | None) -> Any:
        with store.transaction() as transaction:
            return transaction.query(parse_query(document, FILMS, page=100, seal=seal), 100)

    first = page({"$limit": 50}, seal)
    assert first.next is not None
    rest = page({"$limit": 50, "$after": first.next}, seal)
    assert [row["film_id"] for row in rows_of(rest)] == [268, 524]
    for other in (None, b"t" * 32):
        with pytest.raises(RequestError, match="not a cursor"):
            page({"$limit": 50, "$after": first.next}, other)
