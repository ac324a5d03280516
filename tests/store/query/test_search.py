"""Queries against a plain model: whatever the index, the answer is that of looking at every row."""

from __future__ import annotations

import json
import math
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from operator import eq, ge, gt, le, lt
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.store.kit import OpenStore, rows_of

from headrace.core.endpoints import Endpoint
from headrace.core.errors import RequestError
from headrace.core.schema import from_ddl
from headrace.store.lmdb.errors import StoreDamagedError
from headrace.store.query.cursors import Cursor
from headrace.store.query.filters import both, parse_filter
from headrace.store.query.planner import plan
from headrace.store.query.query import parse_query
from headrace.store.rows.layout import ROWS as ROWS_DB
from headrace.store.rows.tokens import tokens

LONG = "https://example.org/" + "path/" * 60
TIMES = [
    datetime(2026, 5, 1, tzinfo=UTC) + timedelta(seconds=n, microseconds=m) for n in range(3) for m in (0, 5, 10**5)
]
DDL = {
    "i": "int",
    "s": "string",
    "f": "double",
    "d": "decimal(6,2)",
    "b": "boolean",
    "r": "binary",
    "t": "timestamp",
    "l": "array<string>",
    "n": "struct<x: int, y: string>",
    "w": "string",
}
WORDS = ["apple", "Ball", "CAKE", "dance", "egg"]
SMALL: dict[str, st.SearchStrategy[Any]] = {
    "i": st.integers(-2, 3),
    "s": st.sampled_from(
        ["", "a", "a\x00", "b", "é", LONG, LONG + "1", LONG + "2", LONG + "22", LONG[:255], LONG[:262]]
    ),
    "f": st.sampled_from([-math.inf, -1.5, -0.0, 0.0, 2.0, math.inf, math.nan]),
    "d": st.sampled_from([Decimal("-1.50"), Decimal("0.00"), Decimal("0.01"), Decimal("9999.99")]),
    "b": st.booleans(),
    "r": st.sampled_from([b"", b"\x00", b"\x00\x01", b"\xff" * 300, b"\xff" * 301]),
    "t": st.sampled_from(TIMES),
    "l": st.lists(st.sampled_from(["a", "b", LONG]) | st.none(), max_size=3),
    "n": st.fixed_dictionaries({"x": st.integers(0, 2) | st.none(), "y": st.sampled_from(["a", LONG, None])}),
    "w": st.lists(st.sampled_from(WORDS), max_size=3).map(" ".join),
}
SCALARS = ["i", "s", "f", "d", "b", "r", "t"]
KEYS = [("i",), ("s",), ("s", "i"), ("r", "s"), ("t",), ()]


def as_json(value: Any) -> Any:
    """A value as a caller writes it."""
    match value:
        case float() if math.isnan(value):
            return "NaN"
        case float() if math.isinf(value):
            return "Infinity" if value > 0 else "-Infinity"
        case Decimal():
            return str(value)
        case bytes():
            return b64encode(value).decode()
        case datetime():
            return value.isoformat()
    return value


def rank(value: Any) -> Any:
    """Something that Python sorts as the store has to: null first, NaN last."""
    match value:
        case None:
            return (0,)
        case float() if math.isnan(value):
            return (2,)
        case list():
            return (1, [rank(one) for one in value])
        case dict():
            return (1, [rank(one) for one in value.values()])
    return (1, value)


Model = Callable[[dict[str, Any]], bool | None]
Condition = tuple[dict[str, Any], Model]
"""A filter as a document, and what it means."""


def compared(name: str, path: tuple[str, ...], how: str, value: Any) -> Condition:
    tests: dict[str, Callable[[Any, Any], bool]] = {
        "$eq": lambda found, wanted: found == wanted,
        "$ne": lambda found, wanted: found != wanted,
        "$lt": lambda found, wanted: found < wanted,
        "$lte": lambda found, wanted: found <= wanted,
        "$gt": lambda found, wanted: found > wanted,
        "$gte": lambda found, wanted: found >= wanted,
    }

    def model(row: dict[str, Any]) -> bool | None:
        found = row[name]
        for step in path:
            found = None if found is None else found[step]
        if value is None and how in ("$eq", "$ne"):
            return (found is None) == (how == "$eq")
        return None if found is None or value is None else tests[how](rank(found), rank(value))

    return {".".join((name, *path)): {how: as_json(value)}}, model


def opposite(condition: Condition) -> Condition:
    document, model = condition
    return {"$not": document}, lambda row: None if (found := model(row)) is None else not found


def joined(how: str, parts: list[Condition]) -> Condition:
    decisive = how == "$or"

    def model(row: dict[str, Any]) -> bool | None:
        found = [part(row) for _, part in parts]
        return decisive if decisive in found else None if None in found else not decisive

    return {how: [document for document, _ in parts]}, model


def has_words(row: dict[str, Any], words: list[str], every: bool) -> bool | None:
    if row["w"] is None:
        return None
    there = tokens(row["w"])
    return (all if every else any)(word.lower() in there for word in words)


def has_members(row: dict[str, Any], value: str) -> bool | None:
    return None if row["l"] is None else value in row["l"]


@st.composite
def conditions(draw: st.DrawFn) -> Condition:
    match draw(st.integers(0, 9)):
        case 0:
            name = draw(st.sampled_from(SCALARS))
            values = draw(st.lists(SMALL[name] | st.none(), max_size=4))
            parts = [compared(name, (), "$eq", value) for value in values]
            _, model = joined("$or", parts)
            return {name: {"$in": [as_json(value) for value in values]}}, (
                # of no values there is nothing to compare with, yet a null is still not known to be among them
                model if values else lambda row: None if row[name] is None else False
            )
        case 1:
            words, every = draw(st.lists(st.sampled_from(WORDS), min_size=1, max_size=2)), draw(st.booleans())
            how = "$matches_all" if every else "$matches_any"
            return {"w": {how: words}}, lambda row: has_words(row, words, every)
        case 2:
            value = draw(st.sampled_from(["a", LONG, "z"]))
            return {"l": {"$contains": value}}, lambda row: has_members(row, value)
        case 3:
            path = draw(st.sampled_from(["x", "y"]))
            value = draw((st.integers(0, 2) if path == "x" else st.sampled_from(["a", LONG])) | st.none())
            return compared("n", (path,), draw(st.sampled_from(["$eq", "$lt", "$gte", "$ne"])), value)
        case _:
            name = draw(st.sampled_from(SCALARS))
            how = draw(st.sampled_from(["$eq", "$eq", "$ne", "$lt", "$lte", "$gt", "$gte"]))
            return compared(name, (), how, draw(SMALL[name] | st.none()))


FILTERS = st.recursive(
    conditions(),
    lambda inner: (
        inner.map(opposite)
        | st.tuples(st.sampled_from(["$and", "$or"]), st.lists(inner, min_size=2, max_size=3)).map(
            lambda one: joined(*one)
        )
    ),
    max_leaves=5,
)
ORDERS = st.lists(
    st.tuples(st.sampled_from([*SCALARS, "l", "n"]), st.sampled_from(["asc", "desc"])),
    max_size=3,
    unique_by=lambda o: o[0],
).map(dict)


@st.composite
def endpoints(draw: st.DrawFn) -> Endpoint:
    indexes = draw(st.lists(st.lists(st.sampled_from(SCALARS), min_size=1, max_size=3, unique=True), max_size=4))
    return Endpoint(
        "made",
        from_ddl(", ".join(f"{name} {kind}" for name, kind in DDL.items())),
        key=draw(st.sampled_from(KEYS)),
        indexes=tuple(dict.fromkeys(tuple(one) for one in indexes)),
        text=draw(st.sampled_from([(), ("w",), ("s", "w")])),
    )


ROWS = st.lists(
    st.fixed_dictionaries(
        {name: values | (st.none() if name not in "i" else st.nothing()) for name, values in SMALL.items()}
    ),
    max_size=14,
)


def by_key(endpoint: Endpoint, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What becomes of rows that are put one after the other."""
    if not endpoint.key:
        return rows
    found = {}
    for row in rows:
        found[json.dumps([as_json(row[name]) for name in endpoint.key])] = row
    return list(found.values())


def shown(rows: list[dict[str, Any]]) -> list[str]:
    """Rows told apart."""
    plain = [{name: as_json(value) for name, value in row.items()} for row in rows]
    return sorted(json.dumps(row, sort_keys=True) for row in plain)


def served(rows: list[dict[str, Any]]) -> list[str]:
    """Served rows, made the same as those of the model."""
    times = [row if row["t"] is None else {**row, "t": datetime.fromisoformat(row["t"]).isoformat()} for row in rows]
    return sorted(json.dumps(row, sort_keys=True) for row in times)


def ranks(rows: list[dict[str, Any]], order: dict[str, str]) -> list[Any]:
    """What rows are sorted by, as the model sees it."""
    typed: dict[str, Callable[[Any], Any]] = {
        "f": float,
        "d": Decimal,
        "r": b64decode,
        "t": datetime.fromisoformat,
    }

    def value(row: dict[str, Any], name: str) -> Any:
        return row[name] if row[name] is None or name not in typed else typed[name](row[name])

    return [[rank(value(row, name)) for name in order] for row in rows]


def is_sorted(rows: list[dict[str, Any]], order: dict[str, str]) -> bool:
    found = ranks(rows, order)
    return all(_not_after(one, other, list(order.values())) for one, other in pairwise(found))


def _not_after(one: list[Any], other: list[Any], directions: list[str]) -> bool:
    for left, right, direction in zip(one, other, directions, strict=True):
        if left != right:
            return bool(left < right) == (direction == "asc")
    return True


def pages(store: OpenStore, asked: dict[str, Any], limit: int, between: Callable[[], None]) -> list[dict[str, Any]]:
    """All pages, with something done between one and the next."""
    found: list[dict[str, Any]] = []
    after = None
    while True:
        page = store.page({**asked, "$limit": limit, "$after": after})
        found += rows_of(page)
        after = page.next
        if after is None:
            return found
        assert len(page.rows) == limit
        between()


@settings(max_examples=25, suppress_health_check=list(HealthCheck))
@given(
    endpoints(),
    ROWS,
    st.lists(st.tuples(FILTERS, ORDERS), min_size=1, max_size=6),
    st.integers(1, 4),
    st.integers(0, 5),
)
def test_every_answer_is_that_of_a_full_scan(
    endpoint: Endpoint, rows: list[dict[str, Any]], queries: list[Any], limit: int, skip: int
) -> None:
    with TemporaryDirectory() as folder:
        store = OpenStore(Path(folder), endpoint, rows)
        there = by_key(endpoint, rows)
        try:
            for (document, model), order in queries:
                asked = {"$filter": document, "$order_by": order}
                expected = shown([row for row in there if model(row) is True])
                found = store.query(asked)
                assert served(found) == expected
                assert is_sorted(found, order)
                assert store.count(asked) == len(found)
                assert store.query({**asked, "$skip": skip, "$limit": limit}) == found[skip:][:limit]
                assert store.count({**asked, "$skip": skip, "$limit": limit}) == len(found[skip:][:limit])
                assert pages(store, asked, limit, lambda: None) == found
        finally:
            store.close()


@settings(max_examples=30, suppress_health_check=list(HealthCheck))
@given(st.data(), endpoints().filter(lambda one: bool(one.key)), ROWS, ROWS, FILTERS, ORDERS, st.integers(1, 3))
def test_what_stays_is_seen_once_whatever_else_changes(
    data: st.DataObject,
    endpoint: Endpoint,
    rows: list[dict[str, Any]],
    others: list[dict[str, Any]],
    condition: Condition,
    order: dict[str, str],
    limit: int,
) -> None:
    document, model = condition
    there = by_key(endpoint, rows)
    touched = others + [row for row in there if data.draw(st.booleans())]

    def keys(found: list[dict[str, Any]]) -> set[str]:
        return {json.dumps([as_json(row[name]) for name in endpoint.key]) for row in found}

    staying = [row for row in there if not keys([row]) & keys(touched) and model(row) is True]
    with TemporaryDirectory() as folder:
        store = OpenStore(Path(folder), endpoint, there)

        def between() -> None:
            some = [row for row in touched if data.draw(st.booleans())]
            (store.put if data.draw(st.booleans()) else store.take)(some)

        try:
            found = served(pages(store, {"$filter": document, "$order_by": order}, limit, between))
            for row in shown(staying):
                assert found.count(row) == 1
        finally:
            store.close()


SHOP = Endpoint(
    "shop",
    from_ddl("id int, region string, amount int, paid boolean, note string, place struct<x: int>"),
    key=("id",),
    indexes=(("region", "amount"), ("amount",)),
    text=("note",),
)
REGIONS = ["EU", "US", None]


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenStore]:
    rows = [
        {"id": n, "region": REGIONS[n % 3], "amount": n % 50, "paid": n % 2 == 0, "note": f"no {n}", "place": {"x": n}}
        for n in range(300)
    ]
    made = OpenStore(tmp_path_factory.mktemp("shop"), SHOP, rows)
    yield made
    made.close()


@pytest.mark.parametrize(
    ("document", "order"),
    [
        ({}, "key"),
        ({"$filter": {"id": 7}}, "key"),
        ({"$filter": {"id": {"$in": [7, 8]}, "region": "EU"}}, "key"),
        ({"$filter": {"id": 7}, "$order_by": {"amount": "desc", "region": "asc"}}, "sorted"),
        ({"$order_by": {"id": "desc"}}, "key backwards"),
        ({"$filter": {"region": "EU"}}, "ix0"),
        ({"$filter": {"region": "EU", "amount": {"$gt": 10}}}, "ix0"),
        ({"$filter": {"region": "EU"}, "$order_by": {"amount": "desc"}}, "ix0 backwards exactly"),
        ({"$filter": {"region": "EU"}, "$order_by": {"region": "desc", "amount": "asc", "id": "asc"}}, "ix0 exactly"),
        ({"$filter": {"region": "EU", "amount": 5}, "$order_by": {"id": "asc"}}, "ix0 exactly"),
        ({"$filter": {"region": {"$in": ["EU", None]}}, "$order_by": {"region": "asc"}}, "ix0 exactly"),
        ({"$filter": {"region": {"$in": ["EU", None]}}, "$order_by": {"amount": "asc"}}, "sorted"),
        ({"$order_by": {"amount": "asc"}}, "ix1"),
        ({"$order_by": {"amount": "asc", "id": "asc"}}, "ix1"),
        ({"$order_by": {"amount": "asc", "id": "desc"}}, "sorted"),
        ({"$filter": {"paid": True}, "$order_by": {"amount": "desc"}}, "ix1 backwards"),
        ({"$filter": {"$or": [{"amount": 1}, {"region": "EU"}]}}, "key"),
        ({"$filter": {"note": {"$contains": "7"}}}, "key"),
        ({"$filter": {"note": {"$contains": "7"}, "amount": {"$gt": 3}}}, "key"),
    ],
    ids=str,
)
def test_plans(shop: OpenStore, document: dict[str, Any], order: str) -> None:
    with shop.transaction() as transaction:
        chosen = plan(parse_query(document, SHOP, page=100), SHOP, transaction.reader.indexes)
    assert chosen.order == order


def refused(shop: OpenStore, document: dict[str, Any], bound: int, counted: bool = False) -> RequestError:
    with pytest.raises(RequestError) as found:
        (shop.count if counted else shop.query)(document, bound=bound)
    assert (found.value.code, found.value.status) == ("scan-too-large", 422)
    return found.value


@pytest.mark.parametrize(
    ("document", "hint"),
    [
        ({"$filter": {"paid": True, "amount": {"$gt": 1}}}, "indexes: [[paid, amount]]"),
        ({"$filter": {"paid": True}, "$order_by": {"amount": "desc"}}, "indexes: [[paid, amount]]"),
        ({"$order_by": {"paid": "asc", "amount": "asc"}}, "indexes: [[paid, amount]]"),
        ({"$filter": {"region": {"$contains": "EU"}}}, "text: [region]"),
        ({"$filter": {"place.x": 5}}, "request fewer rows"),
        ({"$filter": {"amount": {"$gt": 5}}, "$skip": 200}, "$after"),
    ],
    ids=str,
)
def test_past_the_bound_the_index_to_add_is_named(shop: OpenStore, document: dict[str, Any], hint: str) -> None:
    error = refused(shop, document, 50)
    assert "more than 50 rows of 'shop'" in error.message
    assert hint in (error.hint or "")


def test_what_an_index_answers_has_no_bound(shop: OpenStore) -> None:
    assert len(shop.query({"$filter": {"region": "EU"}, "$order_by": {"amount": "asc"}}, bound=0)) == 100
    assert len(shop.query({}, bound=0)) == 300
    assert shop.count({"$filter": {"region": "EU", "amount": {"$gte": 25}}}, bound=5) == 50
    refused(shop, {"$filter": {"region": "EU"}}, 5, counted=True)
    assert shop.count({"$filter": {"region": "EU"}, "$limit": 30}, bound=5) == 30
    refused(shop, {"$filter": {"paid": True}}, 200, counted=True)
    assert shop.count({"$filter": {"paid": True}}, bound=300) == 150


def test_a_full_page_is_never_refused_for_what_may_follow(shop: OpenStore) -> None:
    page = shop.page({"$filter": {"place.x": {"$lt": 2}}, "$limit": 2}, bound=10)
    assert [row["id"] for row in rows_of(page)] == [0, 1]
    assert page.next is not None


def test_a_hint_names_no_column_of_a_restriction(shop: OpenStore) -> None:
    query = parse_query({"$filter": {"amount": {"$ne": 5}}}, SHOP, page=100)
    hidden = replace(query, filter=both(parse_filter({"paid": True}, SHOP), query.filter))
    with shop.transaction() as transaction, pytest.raises(RequestError) as found:
        transaction.query(hidden, 3)
    assert "paid" not in str(found.value)


def test_a_restriction_holds_on_every_page(shop: OpenStore) -> None:
    hidden = parse_filter({"region": "EU"}, SHOP)
    found: list[int] = []
    after = None
    while not found or after:
        document = {"$order_by": {"amount": "asc"}, "$limit": 7, "$after": after}
        query = parse_query(document, SHOP, page=100)
        with shop.transaction() as transaction:
            page = transaction.query(replace(query, filter=both(hidden, query.filter)), 1_000)
        found += [row["id"] for row in rows_of(page)]
        after = page.next
    assert sorted(found) == list(range(0, 300, 3))


def test_a_made_up_cursor_is_only_a_place(shop: OpenStore) -> None:
    for document in (
        {"$order_by": {"amount": "asc"}},
        {"$order_by": {"region": "asc"}},
        {},
        {"$order_by": {"paid": "asc"}},
    ):
        query = parse_query(document, SHOP, page=100)
        for size in (0, 1, 300, 600):
            with shop.transaction() as transaction:
                order = plan(query, SHOP, transaction.reader.indexes).order
                transaction.query(replace(query, after=Cursor(order, b"\x01" * size, b"\xff" * size)), 1_000)


def test_an_index_that_leads_nowhere_is_damage(tmp_path: Path) -> None:
    made = OpenStore(tmp_path, SHOP, [{"id": 1, "region": "EU"}])
    key = made.reader.keys.row_key([1])
    with made.reader._environment.lmdb.begin(write=True) as txn:
        txn.delete(key, db=made.reader.databases[ROWS_DB])
    with pytest.raises(StoreDamagedError):
        made.query({"$filter": {"region": "EU"}})
    with pytest.raises(StoreDamagedError):
        made.query({"$filter": {"region": "EU", "paid": True}})
    made.close()


def test_a_cursor_after_the_restriction_changed_the_plan(shop: OpenStore) -> None:
    query = parse_query({"$limit": 5}, SHOP, page=100)
    with shop.transaction() as transaction:
        page = transaction.query(query, 100)
        again = parse_query({"$limit": 5, "$after": page.next}, SHOP, page=100)
        with pytest.raises(RequestError, match="another query"):
            transaction.query(replace(again, filter=parse_filter({"region": "EU"}, SHOP)), 100)


LONG_VALUES = [LONG + str(n) for n in range(13)] + [(LONG * 2)[:size] for size in range(250, 290, 3)]
PLACES = [
    Endpoint("pages", from_ddl("id int, s string"), key=("id",), indexes=(("s",), ("s", "id"))),
    Endpoint("pages", from_ddl("id int, s string"), key=("s", "id")),
]


@pytest.mark.parametrize("endpoint", PLACES, ids=["index", "key"])
def test_long_values_are_found_and_sorted_exactly(tmp_path: Path, endpoint: Endpoint) -> None:
    rows = [{"id": n, "s": value} for n, value in enumerate(LONG_VALUES * 2)]
    made = OpenStore(tmp_path, endpoint, rows)
    tests: dict[str, Callable[[str, str], bool]] = {"$eq": eq, "$lt": lt, "$lte": le, "$gt": gt, "$gte": ge}
    for bound in (LONG + "5", LONG + "50", (LONG * 2)[:265], (LONG * 2)[:279], LONG[:100]):
        for how, test in tests.items():
            asked: dict[str, Any] = {"$filter": {"s": {how: bound}}}
            wanted = [row["id"] for row in rows if test(str(row["s"]), bound)]
            assert sorted(row["id"] for row in made.query(asked)) == wanted
            assert made.count(asked) == len(wanted)
    for direction in ("asc", "desc"):
        asked = {"$filter": {"s": {"$gt": LONG + "3"}}, "$order_by": {"s": direction}}
        expected = sorted((str(row["s"]) for row in rows if str(row["s"]) > LONG + "3"), reverse=direction == "desc")
        assert [row["s"] for row in pages(made, asked, 3, lambda: None)] == expected
    made.close()
