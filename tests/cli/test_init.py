"""`headrace init`: what it writes is a project without faults. That it runs is in tests/system/test_quickstart.py."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml

from headrace.cli.projects.init import project_name
from headrace.project.json_schema import project_schema

Run = Callable[..., Any]
FILES = [".gitignore", "README.md", "headrace.yaml", "sql/sales.sql"]


def test_the_new_project_is_without_faults(tmp_path: Path, headrace: Run) -> None:
    folder = tmp_path / "deep" / "my-shop"
    ran = headrace("init", folder)
    assert ran.code == 0
    assert [line.split()[0] for line in ran.out.splitlines()] == ["wrote"] * len(FILES)
    assert "headrace run" in ran.err
    linted = headrace("lint", folder, "--json")
    assert linted.code == 0, linted.err
    assert linted.data == {"ok": True, "streams": 1, "tables": 0, "flows": 1, "warnings": []}
    assert headrace("lint", folder, "--profile", "busy").code == 0
    text = (folder / "headrace.yaml").read_text()
    assert "project: my_shop" in text
    jsonschema_rs.validator_for(project_schema()).validate(yaml.safe_load(text))


def test_its_plan_is_exactly_once_into_the_lake(tmp_path: Path, headrace: Run) -> None:
    headrace("init", tmp_path / "shop")
    (flow,) = headrace("plan", tmp_path / "shop", "--json").data["flows"]
    assert [(sink["type"], sink["guarantee"]) for sink in flow["sinks"]] == [
        ("lake", "exactly_once"),
        ("console", "best_effort"),
    ]
    assert flow["inputs"][0]["columns"] == ["shop", "amount", "placed_at"]


def test_as_json(tmp_path: Path, headrace: Run) -> None:
    ran = headrace("init", tmp_path / "shop", "--json")
    assert ran.data == {"project": "shop", "folder": str(tmp_path / "shop"), "files": FILES, "written": True}


def test_a_dry_run_writes_nothing(tmp_path: Path, headrace: Run) -> None:
    ran = headrace("init", tmp_path / "shop", "--dry-run")
    assert ran.code == 0
    assert "would write" in ran.out
    assert list(tmp_path.iterdir()) == []


def test_a_folder_with_files_is_refused(tmp_path: Path, shell: Run) -> None:
    (tmp_path / "mine.txt").write_text("precious")
    ran = shell("init", tmp_path, "--json")
    assert (ran.code, ran.error["error"]["code"]) == (5, "folder-not-empty")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
    assert shell("init", tmp_path, "--force").code == 0
    assert (tmp_path / "mine.txt").read_text() == "precious"
    assert (tmp_path / "headrace.yaml").is_file()


def test_a_file_is_refused(tmp_path: Path, headrace: Run) -> None:
    (tmp_path / "file").touch()
    ran = headrace("init", tmp_path / "file", "--json")
    assert (ran.code, ran.error["error"]["code"]) == (5, "not-a-folder")


@pytest.mark.parametrize(
    ("folder", "expected"),
    [("shop", "shop"), ("My Shop-2", "my_shop_2"), ("2024", "project_2024"), ("äö", "project"), ("x" * 99, "x" * 60)],
)
def test_project_name(folder: str, expected: str) -> None:
    assert project_name(Path(folder)) == expected
