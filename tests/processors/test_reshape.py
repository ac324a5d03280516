from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pydantic import ValidationError
from tests.processors.steps import Around

from headrace.core.errors import ProjectError
from headrace.processors.reshape import Reshape


def shaped(tmp_path: Path, given: Any, **options: Any) -> Any:
    text = given if isinstance(given, str) or given is None else json.dumps(given)
    rows = pa.RecordBatch.from_pydict({"answer": pa.array([text], pa.string())})
    (made,) = Around(tmp_path).work(Reshape(column="answer", into="made", **options), rows)["made"].to_pylist()
    return None if made is None else json.loads(made)


def test_parts_get_other_names_and_places(tmp_path: Path) -> None:
    given = {"objectType": "Content", "owner": {"name": "Ada", "age": 3}, "other": 1, "tags": ["a", {"b": None}]}
    fields = {"objecttype": "objectType", "by.name": "owner.name", "tags": "tags", "missing": "owner.name.first"}
    wanted = {"objecttype": "Content", "by": {"name": "Ada"}, "tags": ["a", {"b": None}]}
    assert shaped(tmp_path, given, fields=fields) == wanted


def test_numbers_stay_as_they_are_written(tmp_path: Path) -> None:
    rows = pa.RecordBatch.from_pydict({"answer": ['{"a": 1.0, "b": 12345678901234567890123, "c": 1E400}']})
    step = Reshape(column="answer", fields={"x": "a", "y": "b", "z": "c"})
    made = Around(tmp_path).work(step, rows)["answer"].to_pylist()
    assert made == ['{"x":1.0,"y":12345678901234567890123,"z":1E400}']


@pytest.mark.parametrize(
    ("kind", "given", "wanted"),
    [
        ("text", 29, "29"),
        ("text", ["a"], '["a"]'),
        ("json", '{"os": "A\t9"}', {"os": "A\t9"}),
        ("json", ' ["English"]', ["English"]),
        ("json", "[broken", "[broken"),
        ("json", "plain", "plain"),
        ("long", "1571999041881", 1571999041881),
        ("long", "1.5E3", 1500),
        ("long", "nan", "nan"),
        ("long", 7.5, 7.5),
        ("epoch_ms", "2018-06-15T13:06:56.090+0000", 1529068016090),
        ("epoch_ms", "2018-08-01T13:41:53.695Z", 1533130913695),
        ("epoch_ms", "2018-08-01T13:41:53.695", 1533130913695),
        ("epoch_ms", 1571999041881, 1571999041881),
        ("epoch_ms", "yesterday", "yesterday"),
        ("any", False, False),
    ],
)
def test_types(tmp_path: Path, kind: str, given: Any, wanted: Any) -> None:
    assert shaped(tmp_path, {"a": given}, fields={"b": {"path": "a", "type": kind}}) == {"b": wanted}


@pytest.mark.parametrize(
    ("kind", "given", "wanted"), [("epoch_ms", "yesterday", 0), ("long", "", 0), ("long", "7", 7), ("text", "x", "x")]
)
def test_what_is_written_for_what_cannot_be_made(tmp_path: Path, kind: str, given: Any, wanted: Any) -> None:
    fields = {"b": {"path": "a", "type": kind, "otherwise": 0}}
    assert shaped(tmp_path, {"a": given}, fields=fields) == {"b": wanted}


def test_prefixes_defaults_and_characters_that_go(tmp_path: Path) -> None:
    fields = {"code": {"path": "c", "prefix": "IN-", "default": ""}, "spec": {"path": "s", "default": {}}, "n": "n"}
    assert shaped(tmp_path, {"c": "M\\H"}, fields=fields, strip="\\") == {"code": "IN-MH", "spec": {}}
    assert shaped(tmp_path, {"n": "", "c": None}, fields=fields) == {"code": "", "spec": {}, "n": ""}
    assert shaped(tmp_path, {"n": "", "c": None}, fields=fields, empty="drop") is None
    assert shaped(tmp_path, {"other": 1}, fields=fields) is None
    assert shaped(tmp_path, None, fields=fields) is None


def test_equal_texts_and_texts_that_are_no_objects(tmp_path: Path) -> None:
    around = Around(tmp_path)
    rows = pa.RecordBatch.from_pydict({"answer": ['{"a":1}', None, "oops", '{"a":1}', "[1]", "oops"], "n": range(6)})
    made = around.work(Reshape(column="answer", fields={"b": "a"}), rows)
    assert made.to_pylist() == [
        {"answer": '{"b":1}', "n": 0}, {"answer": None, "n": 1}, {"answer": '{"b":1}', "n": 3}
    ]  # fmt: skip
    letters = around.letters()
    assert [one["reason"] for one in letters] == ["not-json"] * 3
    assert "'answer': " in letters[0]["detail"]


def test_what_is_no_object_may_count_as_missing(tmp_path: Path) -> None:
    assert shaped(tmp_path, "no json", fields={"b": "a"}, invalid="missing") is None
    assert shaped(tmp_path, [1], fields={"b": "a"}, invalid="missing") is None


def test_what_is_refused() -> None:
    for wrong in ({"fields": {}}, {"fields": {"a..b": "c"}}, {"fields": {"a": "b."}}, {"fields": {"a": {"path": ""}}}):
        with pytest.raises(ValidationError):
            Reshape(column="answer", **wrong)
    step = Reshape(column="answer", into="made", fields={"a": "b"})
    with pytest.raises(ProjectError) as caught:
        step.output(pa.schema([("answer", pa.int64())]))
    assert caught.value.code == "step-type"
    assert step.output(pa.schema([("answer", pa.string())])).names == ["answer", "made"]
    assert step.uses(frozenset({"made", "x"})) == {"answer", "x"}
