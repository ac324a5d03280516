"""Templates, paths and values: nothing that a row holds can be taken for anything else."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.encoding.json_values import UnfitValueError, converter
from headrace.core.schema import from_ddl
from headrace.processors._enrich import templates
from headrace.processors._enrich.keys import keys_of
from headrace.processors._enrich.outputs import JsonPath, Outputs
from headrace.processors.postgres import bound_query

# no lone surrogates: they are not text
TEXT = st.text(st.characters(exclude_categories=["Cs"]))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)


def filled(parts: templates.Parts, **values: Any) -> str:
    return templates.Text.of(parts, list(values)).filled(list(values.values()))


@settings(max_examples=50)
@given(TEXT.filter(bool), TEXT)
def test_a_url_has_the_parts_it_was_written_with(a: str, b: str) -> None:
    path = filled(templates.url_parts("/x/{a}/y", templates.in_path), a=a)
    query = filled(templates.url_parts("?q={b}&r=1", templates.in_query), b=b)
    parts = urlsplit(f"http://host{path}{query}")
    assert (parts.netloc, [unquote(part) for part in parts.path.split("/")]) == ("host", ["", "x", a, "y"])
    assert parse_qs(parts.query, keep_blank_values=True) == {"q": [b], "r": ["1"]}


@settings(max_examples=50)
@given(JSON, TEXT, TEXT)
def test_json_is_what_it_was_written_as(value: Any, text: str, key: str) -> None:
    nested = templates.JsonText(json.dumps(value))
    parts = templates.json_parts('{"a": {v}, "b": [{t}, {}], "c": "<{t}> {x} \\" {t}", "d": "{k}"}')
    assert templates.columns_of(parts) == ("v", "t", "x", "k")
    made = json.loads(filled(parts, v=nested, t=text, x=1, k=key))
    assert made == {"a": value, "b": [text, {}], "c": f'<{text}> 1 " {text}', "d": key}


@given(TEXT)
def test_a_header_is_one_line(text: str) -> None:
    try:
        made = filled(templates.parts_of("a {b} c", templates.in_header), b=text)
    except UnfitValueError:
        assert any(ord(letter) < 32 or ord(letter) == 127 for letter in text)
    else:
        assert made == f"a {text} c"
        assert "\n" not in made
        assert "\r" not in made


@settings(max_examples=50)
@given(JSON, st.lists(st.one_of(TEXT.filter(lambda t: "'" not in t and "\\" not in t), st.integers(-5, 5)), max_size=4))
def test_a_path_finds_what_is_there(document: Any, steps: list[str | int]) -> None:
    expected = document
    for step in steps:
        try:
            fits = isinstance(expected, dict) if isinstance(step, str) else isinstance(expected, list)
            expected = expected[step] if fits else None
        except (KeyError, IndexError):
            expected = None
    path = "$" + "".join(f"['{step}']" if isinstance(step, str) else f"[{step}]" for step in steps)
    JsonPath(path).check()
    assert JsonPath(path)(document) == expected


def test_other_paths_are_left_to_the_library() -> None:
    document = {"hits": [{"id": 1, "n": 5}, {"id": 2, "n": 7}]}
    assert JsonPath("$.hits[*].id")(document) == [1, 2]
    assert JsonPath("$.hits[?@.n > 6].id")(document) == [2]
    assert JsonPath("$..nobody")(document) is None


@pytest.mark.parametrize(
    ("kind", "value", "made"),
    [
        ("string", {"a": [1, None]}, '{"a":[1,null]}'),
        ("string", True, "true"),
        ("int", "12", 12),
        ("int", 12.0, 12),
        ("int", 2**31, None),
        ("int", True, None),
        ("int", "1.5", None),
        ("double", "1.5", 1.5),
        ("double", 3, 3.0),
        ("double", "x", None),
        ("boolean", "true", True),
        ("boolean", 1, None),
        ("decimal(5,2)", 1.005, Decimal("1.01")),
        ("decimal(5,2)", "123.4", Decimal("123.40")),
        ("decimal(5,2)", 1000, None),
        ("timestamp", "2026-01-31T12:00:00+01:00", datetime(2026, 1, 31, 11, tzinfo=UTC)),
        ("timestamp", "2026-01-31", datetime(2026, 1, 31, tzinfo=UTC)),
        ("timestamp", 5, None),
        ("date", "2026-01-31", date(2026, 1, 31)),
        ("date", "x", None),
        ("binary", "aGk=", b"hi"),
        ("binary", "?", None),
        ("array<int>", [1, None, "3"], [1, None, 3]),
        ("array<int>", [1, "x"], None),
        ("struct<a: int, b: string>", {"a": 1, "c": 2}, {"a": 1, "b": None}),
        ("map<string, int>", {"a": "1"}, [("a", 1)]),
        ("map<string, int>", [], None),
    ],
)
def test_values_become_what_their_column_is(kind: str, value: Any, made: Any) -> None:
    arrow = from_ddl(f"a {kind}").field(0).type
    if made is None:
        with pytest.raises(UnfitValueError):
            converter(arrow)(value)
    else:
        assert pa.array([converter(arrow)(value)], arrow).to_pylist() == [made]


@settings(max_examples=50)
@given(st.lists(st.tuples(st.none() | TEXT, st.none() | st.integers(0, 3), st.lists(st.integers(0, 1), max_size=1))))
def test_each_key_is_asked_about_once(rows: list[tuple[Any, Any, Any]]) -> None:
    columns = [[row[number] for row in rows] for number in range(3)]
    types = (pa.string(), pa.int64(), pa.list_(pa.int64()))
    arrays = [pa.array(values, kind) for values, kind in zip(columns, types, strict=True)]
    keys = keys_of(pa.RecordBatch.from_arrays(arrays, names=["a", "b", "c"]), ["a", "b", "c"])
    assert len(set(keys.values)) == len(keys.values)
    for row, place in zip(rows, keys.places.to_pylist(), strict=True):
        if place is None:
            assert None in row
        else:
            assert keys.values[place] == (row[0], row[1], json.dumps(row[2]))


def test_outputs_replace_columns_of_their_name() -> None:
    outputs = Outputs.of({"b": "$.b", "c": "$.c"}, "json")
    given = pa.schema([("a", pa.int64()), ("b", pa.int64())])
    assert outputs.added(given) == pa.schema([("a", pa.int64()), ("b", pa.string()), ("c", pa.string())])


@pytest.mark.parametrize(
    ("query", "bound", "names"),
    [
        ("SELECT a FROM t WHERE id = :id", "SELECT a FROM t WHERE id = %s", ["id"]),
        ("SELECT ':a', x::text, '50%' -- :b\nFROM t WHERE y = :a::int AND z = :\"p.q\"",
         "SELECT ':a', x::text, '50%%' -- :b\nFROM t WHERE y = %s::int AND z = %s", ["a", "p.q"]),
        ("SELECT 1 % 2", "SELECT 1 %% 2", []),
        ("SELECT :a + :a", "SELECT %s + %s", ["a", "a"]),
        ("SELECT a[1 : 2] FROM t", "SELECT a[1 : 2] FROM t", []),
        ("SELECT $$:x$$, :order", "SELECT $$:x$$, %s", ["order"]),
    ],
)  # fmt: skip
def test_columns_in_sql_become_parameters(query: str, bound: str, names: list[str]) -> None:
    assert bound_query(query) == (bound, names)


def test_one_statement_only() -> None:
    with pytest.raises(ValueError, match="more than one statement"):
        bound_query("SELECT 1; DROP TABLE t")
    assert bound_query("SELECT 1;")[1] == []
