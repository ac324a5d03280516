"""`headrace sql` before Spark starts: where statements come from, and what is refused.

The answers are in tests/system/test_quickstart.py (a project) and tests/functions/test_vectors.py (no project).
"""

from __future__ import annotations

import csv
import io
import json
import math
import threading
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.cli.projects.sql import _logs, _print, _run_statement, _script, _text
from headrace.cli.terminal.output import printer
from headrace.core.errors import ProjectError
from headrace.engine.state.state import StateDir
from headrace.sql.errors import SqlError

Run = Callable[..., Any]


def test_statements_come_from_arguments_a_file_or_stdin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "script.sql").write_text("\ufeffSELECT 'x;y';\n\n  SELECT 2")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"SELECT 3;;")))
    arguments, file, stdin = (["SELECT 1", "SELECT ';'"], None), (None, tmp_path / "script.sql"), (None, None)
    found = [[(one.text, one.where.line) for one in _script(*_text(*given))] for given in (arguments, file, stdin)]
    assert found == [[("SELECT 1", 1), ("SELECT ';'", 2)], [("SELECT 'x;y'", 1), ("SELECT 2", 3)], [("SELECT 3", 1)]]


def test_a_project_that_may_only_be_read_can_be_asked(tmp_path: Path) -> None:
    kept, blocked = StateDir(tmp_path / "state"), StateDir(tmp_path / "file" / "state")
    (tmp_path / "file").touch()
    assert _logs(kept, tmp_path) == tmp_path / "state" / "logs"
    assert _logs(blocked, tmp_path) == tmp_path


class _Refusing:
    """A session that refuses everything on the second line of a statement."""

    def run(self, statement: str) -> pa.Table:
        raise SqlError("unknown-column", statement, line=2) if "x" in statement else ProjectError("lake-missing", "no")


def test_an_error_has_its_place_in_the_script(capsys: pytest.CaptureFixture[str]) -> None:
    for statement in _script("SELECT 1;\n\nSELECT\n  x;", "ask.sql"):
        assert not _run_statement(_Refusing(), statement, "json", threading.Event())
    first, second = (json.loads(line)["error"]["where"] for line in capsys.readouterr().out.splitlines())
    assert (first["file"], first["line"], second["line"]) == ("ask.sql", 1, 4)


ANSWER = pa.table(
    {
        "double": [math.nan, -math.inf],
        "decimal": pa.array([Decimal("12345678901234567890.123456789"), Decimal("0E-9")], pa.decimal128(38, 9)),
        "float": pa.array([0.1, None], pa.float32()),
        "at": pa.array([datetime(2026, 1, 31, 12, tzinfo=UTC), None], pa.timestamp("us", "UTC")),
        "day": [date(2026, 1, 31), None],
        "bytes": [b"\x00\xff", b"text"],
        "map": pa.array([[("a", b"\xff")], [("b", None)]], pa.map_(pa.string(), pa.binary())),
        "struct": [{"n": [1, None], "d": Decimal("1.50")}, None],
        "text": ["[/x]", 'a,"b"\nc'],
        "flag": [True, None],
    }
)


def test_json_has_every_value_whole(capsys: pytest.CaptureFixture[str]) -> None:
    _print(ANSWER, "json")
    text = capsys.readouterr().out
    found = json.loads(text, parse_float=str, parse_constant=pytest.fail)
    assert found["columns"] == ANSWER.column_names
    plain = ["NaN", "12345678901234567890.123456789", "0.1", "2026-01-31T12:00:00+00:00", "2026-01-31", "AP8="]
    assert found["rows"] == [
        [*plain, {"a": "/w=="}, {"n": [1, None], "d": "1.50"}, "[/x]", True],
        ["-Infinity", 0, None, None, None, "text", {"b": None}, None, 'a,"b"\nc', None],
    ]
    assert text.count("\n") == 1


def test_csv_and_tables_have_nested_values_as_json_and_hide_secrets(capsys: pytest.CaptureFixture[str]) -> None:
    printer.begin(json_errors=False)
    printer.hide(lambda text: text.replace("text", "****"))
    _print(ANSWER, "csv")
    header, *rows = csv.reader(io.StringIO(capsys.readouterr().out))
    printer.begin(json_errors=False)
    assert header[-2:] == ["****", "flag"]
    assert rows[0][5:] == ["AP8=", '{"a": "/w=="}', '{"n": [1, null], "d": 1.50}', "[/x]", "true"]
    assert rows[1][1:] == ["0", "", "", "", "****", '{"b": null}', "", 'a,"b"\nc', ""]
    wide = pa.table({"text": ["x" * 500], "[b]": ["[/b]"]})
    _print(wide, "table")
    shown = capsys.readouterr().out
    assert "x" * 500 in shown  # a pipe has no width
    assert "[b]" in shown
    assert "[/b]" in shown


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ([" ; "], 2, "no statement to run"),
        (["SELECT 1", "--format", "xml"], 2, "format 'xml'"),
        (["--file", "nowhere.sql"], 4, "[missing-file]"),
        (["--file", "latin.sql"], 1, "[file-unreadable]"),
        (["SELECT 1", "--file", "latin.sql"], 2, "exclude each other"),
    ],
)
def test_what_is_refused(
    arguments: list[str], code: int, said: str, headrace: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "latin.sql").write_bytes(b"SELECT '\xe9'")
    ran = headrace("sql", *arguments)
    assert (ran.code, ran.out) == (code, "")
    assert said in ran.err
