"""Filters: typed by the columns, with the logic of SQL, and never anything but a filter or a clear refusal."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.endpoints import Endpoint
from headrace.core.errors import RequestError
from headrace.core.schema import from_ddl
from headrace.store.query.filters import RowFilter, both, parse_filter
from headrace.store.query.query import parse_query
from headrace.store.rows.tokens import LONGEST, tokens

ENDPOINT = Endpoint(
    "orders",
    from_ddl(
        "id bigint, small tinyint, price decimal(6,2), rate double, single float, name string, open boolean,"
        " raw binary, day date, at timestamp, local timestamp_ntz, tags array<string>, sizes array<int>,"
        " address struct<city: string, place: struct<x: double, y: double>>, labels map<string, string>,"
        " counts map<string, struct<n: int>>, `a.b` int"
    ),
    key=("id",),
)


def chosen(document: dict[str, Any], row: dict[str, Any]) -> bool:
    return parse_filter(document, ENDPOINT).matches(row)


@pytest.mark.parametrize(
    ("document", "row"),
    [
        ({"id": "9007199254740993"}, {"id": 9007199254740993}),
        ({"id": 5.0}, {"id": 5}),
        ({"small": {"$lt": 1000}}, {"small": 127}),
        ({"small": {"$ne": 1000}}, {"small": 127}),
        ({"small": {"$gt": -1000.5}}, {"small": -128}),
        ({"small": {"$gte": 2.5}}, {"small": 3}),
        ({"small": {"$lte": -2.5}}, {"small": -3}),
        ({"price": "12.50"}, {"price": "12.50"}),
        ({"price": 12.5}, {"price": "12.50"}),
        ({"price": {"$gt": "12.499", "$lt": "12.501"}}, {"price": "12.50"}),
        ({"price": {"$lt": "1e30"}}, {"price": "9999.99"}),
        ({"price": {"$in": ["1.001", 12.5]}}, {"price": "12.50"}),
        ({"rate": "NaN"}, {"rate": "NaN"}),
        ({"rate": {"$gt": "Infinity"}}, {"rate": "NaN"}),
        ({"rate": {"$lt": "NaN"}}, {"rate": "Infinity"}),
        ({"rate": {"$gt": 1}}, {"rate": 1.5}),
        ({"rate": {"$in": ["NaN", 0]}}, {"rate": -0.0}),
        ({"single": 0.1}, {"single": 0.1}),
        ({"name": {"$gte": "a", "$lt": "b"}}, {"name": "apple"}),
        ({"name": {"$gt": "\uffff"}}, {"name": "\U0001f600"}),
        ({"open": False}, {"open": False}),
        ({"raw": "AAE="}, {"raw": "AAE="}),
        ({"raw": {"$gt": "AAE="}}, {"raw": "/w=="}),
        ({"day": {"$gte": "2026-05-01"}}, {"day": "2026-05-01"}),
        ({"at": "2026-05-01T14:00:00+02:00"}, {"at": "2026-05-01T12:00:00Z"}),
        ({"at": {"$lt": "2026-05-01T12:00:00.5Z"}}, {"at": "2026-05-01T12:00:00Z"}),
        ({"at": {"$gte": "2026-05-01"}}, {"at": "2026-05-01T00:00:00.000001Z"}),
        ({"local": {"$lte": "2026-05-01 12:00"}}, {"local": "2026-05-01T12:00:00"}),
        ({"tags": {"$contains": "new"}}, {"tags": ["old", None, "new"]}),
        ({"tags": {"$matches_any": ["new", "x"]}}, {"tags": ["new"]}),
        ({"sizes": {"$matches_all": [1, "2"]}}, {"sizes": [2, 3, 1]}),
        ({"sizes": {"$eq": [1, None]}}, {"sizes": [1, None]}),
        ({"sizes": {"$gt": [1, 2]}}, {"sizes": [1, 2, 0]}),
        ({"sizes": {"$in": [[3], [1, 2]]}}, {"sizes": [1, 2]}),
        ({"address.city": "Oslo"}, {"address": {"city": "Oslo", "place": None}}),
        ({"address": {"city": {"$ne": "Rome"}}}, {"address": {"city": "Oslo", "place": None}}),
        ({"address.place.x": {"$lt": 3}}, {"address": {"city": None, "place": {"x": 2.5, "y": None}}}),
        ({"address": {"place.x": None}}, {"address": None}),
        ({"address": {"$eq": {"city": "Oslo"}}}, {"address": {"city": "Oslo", "place": None}}),
        ({"address": {"$ne": None}}, {"address": {"city": None, "place": None}}),
        ({"labels.colour": "red"}, {"labels": {"colour": "red"}}),
        ({"labels": {"a.b": "red"}}, {"labels": {"a.b": "red"}}),
        ({"labels.a.b": "red"}, {"labels": {"a.b": "red"}}),
        ({"labels.none": None}, {"labels": {"colour": "red"}}),
        ({"labels": {"$eq": {"y": "2", "x": "1"}}}, {"labels": {"x": "1", "y": "2"}}),
        ({"counts.a.n": {"$gt": 1}}, {"counts": {"a": {"n": 2}}}),
        ({"a.b": 3}, {"a.b": 3}),
        ({"name": {"$contains": "straße"}}, {"name": "Lange STRASSE 5"}),
        ({"name": {"$matches_any": ["none", "Five six"]}}, {"name": "chapter six"}),
        ({"name": {"$not": {"$contains": "six"}}}, {"name": "chapter"}),
    ],
    ids=str,
)
def test_what_is_chosen_and_its_opposite(document: dict[str, Any], row: dict[str, Any]) -> None:
    assert chosen(document, row)
    assert not chosen({"$not": document}, row)
    assert chosen({"$not": {"$not": document}}, row)


@pytest.mark.parametrize(
    "document",
    [
        {"id": 1},
        {"id": {"$ne": 1}},
        {"id": {"$lt": 1}},
        {"id": {"$nin": [1, 2]}},
        {"id": {"$in": [1, 2]}},
        {"id": 1.5},
        {"small": {"$lt": 1000}},
        {"id": {"$lte": None}},
        {"name": {"$contains": "x"}},
        {"name": {"$contains": None}},
        {"tags": {"$contains": "x"}},
        {"address.city": "x"},
        {"$and": [{"id": 1}, {"open": None}]},
        {"$or": [{"id": 1}, {"open": {"$ne": None}}]},
    ],
    ids=str,
)
def test_of_a_null_nothing_is_known_nor_its_opposite(document: dict[str, Any]) -> None:
    row: dict[str, Any] = {}
    assert not chosen(document, row)
    assert not chosen({"$not": document}, row)


def test_nulls_can_be_asked_for() -> None:
    row = {"id": None, "open": True}
    assert chosen({"id": None}, row)
    assert chosen({"id": {"$in": [1, None]}}, row)
    assert not chosen({"id": {"$nin": [1, None]}}, row)
    assert not chosen({"id": {"$ne": None}}, row)
    assert chosen({"$or": [{"id": 1}, {"open": True}]}, row)
    assert chosen({"$not": {"id": 1, "open": False}}, row)


@pytest.mark.parametrize(
    ("document", "wanted"),
    [
        ({"id": "five"}, ("id", "bigint", '"five"')),
        ({"id": True}, ("id", "true")),
        ({"id": "1.5"}, ("id", "bigint")),
        ({"price": "a lot"}, ("price", "decimal(6,2)")),
        ({"price": "1e9999"}, ("price", "1e9999")),
        ({"rate": "1.5"}, ("rate", "double")),
        ({"single": 1e300}, ("single", "float")),
        ({"name": 5}, ("name", "string", "5")),
        ({"name": "\ud800"}, ("name",)),
        ({"open": 1}, ("open", "true or false")),
        ({"raw": "not base64"}, ("raw", "base64")),
        ({"day": "1 May"}, ("day", "2026-05-01")),
        ({"day": "2026-02-30"}, ("day", "2026-02-30")),
        ({"at": 1714564800}, ("at", "2026-05-01T12:00:00Z")),
        ({"at": "2026-05-01T12:00:00.1234567Z"}, ("six digits",)),
        ({"local": "2026-05-01T12:00:00Z"}, ("local", "timestamp_ntz")),
        ({"tags": {"$eq": "x"}}, ("tags", "array<string>", "a list")),
        ({"sizes": {"$contains": "x"}}, ("sizes", "whole number")),
        ({"sizes": {"$eq": [300.5]}}, ("sizes",)),
        ({"labels": {"$eq": {"x": 1}}}, ("labels",)),
        ({"id": {"$in": 5}}, ("id", "list")),
        ({"id": {"$in": list(range(10_001))}}, ("id", "10,000")),
        ({"id": {"$contains": 5}}, ("$contains", "bigint")),
        ({"name": {"$contains": "?!"}}, ("name", "no word")),
        ({"name": {"$contains": ["a"]}}, ("name", "a list")),
        ({"id": {"$gt": 1, "x": 2}}, ("id",)),
        ({"id": {"$not": 5}}, ("$not",)),
        ({"$and": [{"id": 1} for _ in range(1_001)]}, ("1,000",)),
    ],
    ids=lambda one: str(one)[:60],
)
def test_a_value_that_does_not_fit(document: dict[str, Any], wanted: tuple[str, ...]) -> None:
    with pytest.raises(RequestError) as found:
        parse_filter(document, ENDPOINT)
    assert (found.value.code, found.value.status) == ("bad-filter", 400)
    assert all(part in found.value.message for part in wanted), found.value.message


@pytest.mark.parametrize(
    ("document", "code", "hint"),
    [
        ({"nmae": 1}, "unknown-column", "did you mean 'name'?"),
        ({"address.town": 1}, "unknown-column", "columns of 'address': city, place"),
        ({"address": {"citty": 1}}, "unknown-column", "did you mean 'city'?"),
        ({"tags.x": 1}, "unknown-column", "$contains"),
        ({"id.x": 1}, "unknown-column", "structs"),
        ({"id": {"$gte ": 1}}, "unknown-operator", "did you mean '$gte'?"),
        ({"id": {"gte": 1}}, "unknown-operator", "did you mean '$gte'?"),
        ({"$ore": []}, "unknown-operator", "did you mean '$or'?"),
    ],
    ids=str,
)
def test_names_that_are_not_there(document: dict[str, Any], code: str, hint: str) -> None:
    with pytest.raises(RequestError) as found:
        parse_filter(document, ENDPOINT)
    assert found.value.code == code
    assert hint in (found.value.hint or "")


@pytest.mark.parametrize("join", ["$not", "$and", "address"])
def test_no_document_is_too_deep(join: str) -> None:
    document: Any = {"id": 1}
    for _ in range(5_000):
        document = {join: [document, document] if join == "$and" else document}
    with pytest.raises(RequestError) as found:
        parse_filter(document, ENDPOINT)
    assert found.value.code in ("bad-filter", "unknown-column")


def test_two_filters_are_both_met() -> None:
    one, other = parse_filter({"id": {"$gt": 1}}, ENDPOINT), parse_filter({"open": True, "id": {"$lt": 5}}, ENDPOINT)
    merged = both(one, other)
    assert merged is not None
    assert [merged.matches({"id": number, "open": True}) for number in (1, 2, 5)] == [False, True, False]
    assert (both(one, None), both(None, one), both(None, None)) == (one, one, None)


OPERATORS = ["$and", "$or", "$not", "$eq", "$in", "$nin", "$lt", "$contains", "$matches_any", "$x"]
FIELDS = ["id", "price", "at", "name", "tags", "address", "address.city", "labels", "labels.", "a.b", "rate", "raw"]
NAMES = st.sampled_from([*OPERATORS, *FIELDS, "", "nothing", "\x00", "\ud800"])
VALUES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=6)
    | st.sampled_from(
        ["NaN", "2026-05-01", "9999-12-31T23:59:59+00:01", "0001-01-01T00:00:00-12:00", "1e999", "AAE=", "-0", 10**400]
    )
)
DOCUMENTS = st.recursive(
    VALUES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES | st.text(max_size=3), inner, max_size=3),
    max_leaves=12,
)


@settings(max_examples=100)
@given(DOCUMENTS, DOCUMENTS, DOCUMENTS)
def test_any_document_is_a_filter_or_refused(condition: Any, order: Any, number: Any) -> None:
    try:
        found = parse_filter(condition, ENDPOINT)
    except RequestError:
        pass
    else:
        assert isinstance(found, RowFilter)
        assert found.matches({}) in (True, False)
    with suppress(RequestError):
        parse_query({"$filter": condition, "$order_by": order, "$limit": number, "$after": number}, ENDPOINT, page=9)
    with suppress(RequestError):
        parse_query({"$filter": condition}, ENDPOINT, page=9)


@given(st.text())
def test_words_of_any_text_fit_into_keys(text: str) -> None:
    for word in tokens(text):
        assert 0 < len(word) <= LONGEST
        assert "\x00" not in word
        assert len(word.encode()) <= 4 * LONGEST


def test_words() -> None:
    assert tokens("The ÉCOLE's 2nd ﬁle_name: " + "x" * 100) == {"the", "école", "s", "2nd", "file_name", "x" * 64}
    assert tokens("E\u0301cole") == {"école"}
