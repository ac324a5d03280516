"""`headrace sql` before Spark starts: where statements come from, and what is refused.

The answers are in tests/system/test_quickstart.py (a project) and tests/functions/test_vectors.py (no project).
"""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.sql import _text
from headrace.engine.adhoc import split_statements

Run = Callable[..., Any]


def test_statements_come_from_arguments_a_file_or_stdin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "script.sql").write_text("SELECT 'x;y'; SELECT 2")
    monkeypatch.setattr("sys.stdin", io.StringIO("SELECT 3;;"))
    assert split_statements(_text(["SELECT 1", "SELECT ';'"], None)) == ["SELECT 1", "SELECT ';'"]
    assert split_statements(_text(None, tmp_path / "script.sql")) == ["SELECT 'x;y'", "SELECT 2"]
    assert split_statements(_text(None, None)) == ["SELECT 3"]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ([" ; "], 2, "there is no statement to run"),
        (["SELECT 1", "--format", "xml"], 2, "there is no format 'xml'"),
        (["--file", "nowhere.sql"], 4, "[missing-file]"),
    ],
)
def test_what_is_refused(arguments: list[str], code: int, said: str, headrace: Run) -> None:
    ran = headrace("sql", *arguments)
    assert (ran.code, ran.out) == (code, "")
    assert said in ran.err
