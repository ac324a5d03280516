"""JSON documents by path, over columns."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.errors import ProjectError
from headrace.functions.families.json import delete, query, update

DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**12), 10**12) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)


def ask(function: Any, text: str | None, path: str | None, *value: Any) -> str | None:
    columns = [pa.array([text], pa.string()), pa.array([path], pa.string()), *(pa.array([one]) for one in value)]
    return function(*columns).to_pylist()[0]  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("text", "path", "expected"),
    [
        ('{"a": 1.10, "b": [1, 2]}', "$.a", "1.10"),
        ('{"a": 12345678901234567890123}', "$.a", "12345678901234567890123"),
        ('{"a": null}', "$.a", None),
        ('{"a": 1}', "$.b.c", None),
        ('{"a": [1, 2, 3]}', "$.a[-1]", "3"),
        ('{"a": [1, 2, 3]}', "$.a[*]", "[1,2,3]"),
        ('{"a": [{"b": 1}, {"b": 2}]}', "$..b", "[1,2]"),
        ('{"a": [{"b": 1}, {"b": 2}]}', "$.a[?@.b > 1].b", "[2]"),
        ('{"a": 1}', "$..z", "[]"),
        ('{"a b": 1}', "$['a b']", "1"),
        ('"text"', "$", '"text"'),
        ("not json", "$.a", None),
        ("", "$.a", None),
        (None, "$.a", None),
        ("{}", None, None),
    ],
)
def test_query(text: str | None, path: str | None, expected: str | None) -> None:
    assert ask(query, text, path) == expected


@pytest.mark.parametrize(
    ("text", "path", "value", "expected"),
    [
        ("{}", "$.k1", "v1", '{"k1":"v1"}'),
        ('{"k1":null,"k2":"v2"}', "$.k2", "new", '{"k1":null,"k2":"new"}'),
        ('{"a":{"b":1}}', "$.a.c", 2, '{"a":{"b":1,"c":2}}'),
        ('{"a":[1,2]}', "$.a[1]", 5, '{"a":[1,5]}'),
        ('{"a":[1,2]}', "$.a[7]", 5, '{"a":[1,2]}'),
        ('{"a":[1,2]}', "$.a[*]", 0, '{"a":[0,0]}'),
        ('{"a":1}', "$.x.y", 5, '{"a":1}'),
        ('{"a":1}', "$.a.b", 5, '{"a":1}'),
        ('{"a":1}', "$.a", None, '{"a":null}'),
        ('{"a":1}', "$.a", {"x": [1]}, '{"a":{"x":[1]}}'),
        ("oops", "$.a", 1, None),
    ],
)
def test_update(text: str, path: str, value: Any, expected: str | None) -> None:
    assert ask(update, text, path, value) == expected


@pytest.mark.parametrize(
    ("text", "path", "expected"),
    [
        ('{"k1":"v1","k2":["a","b","c"]}', "$.k2[1]", '{"k1":"v1","k2":["a","c"]}'),
        ('{"a":[1,2,3]}', "$.a[*]", '{"a":[]}'),
        ('{"a":[1,2,3,4]}', "$.a[0,2]", '{"a":[2,4]}'),
        ('{"a":{"a":1},"b":{"a":2}}', "$..a", '{"b":{}}'),
        ('{"a":1}', "$.z", '{"a":1}'),
        ("oops", "$.a", None),
    ],
)
def test_delete(text: str, path: str, expected: str | None) -> None:
    assert ask(delete, text, path) == expected


@pytest.mark.parametrize("path", ["$ .k1", "", "$.a[", "$."])
def test_invalid_paths_say_so(path: str) -> None:
    for function, value in ((query, ()), (delete, ()), (update, (1,))):
        with pytest.raises(ProjectError, match="invalid path"):
            ask(function, "{}", path, *value)


@pytest.mark.parametrize("function", [delete, update])
def test_the_whole_document_is_not_changed(function: Any) -> None:
    with pytest.raises(ProjectError, match="whole document"):
        ask(function, "{}", "$", *([1] if function is update else []))


@settings(deadline=None, max_examples=60)
@given(st.dictionaries(st.sampled_from("abc"), DOCUMENTS), DOCUMENTS, st.sampled_from("abcd"))
def test_what_was_set_is_found_and_what_was_deleted_is_gone(document: Any, value: Any, key: str) -> None:
    text = json.dumps(document)
    changed = update(pa.array([text]), pa.array([f"$.{key}"]), pa.array([json.dumps(value)])).to_pylist()[0]
    assert json.loads(changed) == {**document, key: json.dumps(value)}
    assert json.loads(ask(query, changed, f"$.{key}") or "") == json.dumps(value)
    gone = json.loads(ask(delete, changed, f"$.{key}") or "")
    assert gone == {name: one for name, one in document.items() if name != key}
