"""Every example is a project that runs until it is caught up and gives the rows it says."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.system.conftest import RunProject

pytestmark = pytest.mark.spark

EXAMPLES = Path(__file__).parents[2] / "examples"
ALONE = sorted(file.parents[1] for file in EXAMPLES.glob("*/expected/*.json"))


def copied(example: Path, folder: Path) -> Path:
    """The example without what was left of earlier runs."""
    leftovers = shutil.ignore_patterns("out", "lake", ".headrace")
    return Path(shutil.copytree(example, folder / example.name, ignore=leftovers))


def written(folder: Path) -> list[dict[str, Any]]:
    """The rows of a files sink."""
    return [json.loads(line) for file in folder.glob("*.json") for line in file.read_text().splitlines()]


def in_order(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(json.dumps(row, sort_keys=True) for row in rows)


@pytest.mark.parametrize("example", list(dict.fromkeys(ALONE)), ids=lambda example: example.name)
def test_example(example: Path, tmp_path: Path, run_project: RunProject) -> None:
    folder = copied(example, tmp_path)
    run_project(folder)
    for expected in sorted((example / "expected").glob("*.json")):
        rows = written(folder / "out" / expected.stem)
        assert in_order(rows) == in_order(json.loads(expected.read_text())), expected.stem
