"""Lookups in JSON files: found, missing, refreshed."""

from __future__ import annotations

import pickle
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.core.errors import ProjectError
from headrace.functions.families.lookups import Contains, Get, LookupFiles

HOUR = timedelta(hours=1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in {
        "dart-get/cities": '{"1": "Paris", "2": "Oslo", "3": null, "4": 5}',
        "dart-get/list": "[1]",
        "dart-contains/blocked": '{"data": ["a", "b.c", 7, null]}',
        "dart-contains/empty": '{"data": []}',
        "dart-contains/odd": '{"x": 1}',
        "dart-get/broken": "{",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return tmp_path


def ask(function: Any, names: list[Any], values: list[Any], *more: pa.Array) -> list[Any]:
    return function(pa.array(names, pa.string()), pa.array(values, pa.string()), *more).to_pylist()  # type: ignore[no-any-return]


def test_get(folder: Path) -> None:
    get = pickle.loads(pickle.dumps(Get(str(folder), HOUR)))  # noqa: S301
    assert ask(get, ["cities"] * 6, ["1", "2", "3", "4", "9", None]) == ["Paris", "Oslo", None, "5", None, None]
    assert ask(get, ["cities", None], ["1", "1"], pa.array([24, 24])) == ["Paris", None]
    assert get(pa.array(["cities"]), pa.array([2], pa.int64())).to_pylist() == ["Oslo"]
    other = [pa.array([1] * 3), pa.array(["x", "y", "z"])]
    assert ask(get, ["cities"] * 3, ["1", "9", "3"], *other) == ["Paris", "y", None]
    assert ask(get, [], []) == []
    assert ask(Get(folder.as_uri(), HOUR), ["cities"], ["1"]) == ["Paris"]


def test_contains(folder: Path) -> None:
    contains = Contains(str(folder), HOUR)
    names = ["blocked"] * 4
    assert ask(contains, names, ["a", "7", "z", None]) == [True, True, False, None]
    assert ask(contains, names, ["a1", "xb.c", "z", None], pa.array(["%s.*"] * 4)) == [True, False, False, None]
    assert ask(contains, names, ["a1", "xb.c", "a", None], pa.array([".%s", ".%s", "%s", "%s"]), pa.array([1] * 4)) == [
        False, True, True, None,
    ]  # fmt: skip
    assert ask(contains, ["empty", "blocked"], ["a", "a"]) == [False, True]
    assert ask(contains, ["empty"], ["a"], pa.array(["%s"])) == [False]


@pytest.mark.parametrize(
    ("function", "name", "code"),
    [
        (Get, "none", "lookup-missing"),
        (Get, "list", "lookup-invalid"),
        (Get, "broken", "lookup-invalid"),
        (Contains, "odd", "lookup-invalid"),
        (Get, "../x", "function-argument"),
        (Contains, "/etc/passwd", "function-argument"),
    ],
)
def test_what_is_missing_or_wrong_is_said(folder: Path, function: Any, name: str, code: str) -> None:
    with pytest.raises(ProjectError) as found:
        ask(function(str(folder), HOUR), [name], ["1"])
    assert found.value.code == code


def test_without_a_folder_they_say_what_to_set() -> None:
    with pytest.raises(ProjectError, match="need the folder") as found:
        ask(Get(None, HOUR), ["cities"], ["1"])
    assert "functions: {lookups:" in str(found.value.hint)


def test_a_pattern_that_is_none_is_refused(folder: Path) -> None:
    with pytest.raises(ProjectError, match="not a pattern"):
        ask(Contains(str(folder), HOUR), ["blocked"], ["a"], pa.array(["("]))


def test_files_are_read_again_when_they_are_old_and_kept_when_they_are_gone(folder: Path) -> None:
    now = [0.0]
    shelf = LookupFiles(str(folder), lambda: now[0])
    file = folder / "dart-get" / "cities"
    assert shelf.get("dart-get/cities", 3600)["1"] == "Paris"
    file.write_text('{"1": "Lyon"}')
    now[0] = 3599
    assert shelf.get("dart-get/cities", 3600)["1"] == "Paris"
    now[0] = 3600
    assert shelf.get("dart-get/cities", 3600)["1"] == "Lyon"
    file.unlink()
    now[0] = 9999
    assert shelf.get("dart-get/cities", 3600)["1"] == "Lyon"
