"""`headrace tables`, and what `headrace status` and `headrace lint` say of tables."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.core.context import Context
from headrace.core.errors import Exit
from headrace.core.files.lock import hold_lock
from headrace.core.schema import from_ddl
from headrace.core.tables import TableShape
from headrace.log.tables import table_log
from headrace.log.tablestatus import LOCK, tables_folder, write_group

Run = Callable[..., Any]
PROJECT = """
project: shop
variables: {PASSWORD: hunter2}
tables:
  orders:
    description: What people bought
    source: {type: push, columns: 'id bigint, state string', key: [id]}
"""
ORDERS = TableShape(from_ddl("id bigint, state string"), ("id",))
SAID = {
    "pid": os.getpid(),
    "state": "degraded",
    "reason": {"code": "source-away", "text": "nobody answers", "hint": "start it", "transient": True},
    "since": "2026-05-01T12:00:00Z",
    "restarts": 3,
    "sequence": 1,
    "position": {"orders": 4},
    "changes": 2,
    "changes_per_s": 0.5,
    "lag": 1200,
    "caught_up": False,
    "newest": None,
    "tables": {"orders": {"rows": 2, "complete": True}},
}


@pytest.fixture
def root(write_project: Callable[[str, str], Path]) -> Path:
    return write_project("shop", PROJECT)


@pytest.fixture
def context(root: Path) -> Context:
    return Context(root, str(root / ".headrace"))


def read(context: Context) -> None:
    """Two rows were read."""
    rows = pa.table({"id": [1, 2], "state": ["new", "new"], "__weight": [1, 1]}, schema=ORDERS.weighted)
    at = datetime(2026, 5, 1, tzinfo=UTC)
    table_log(context, "push").commit({"orders": rows}, {"orders": 4}, {"orders": ORDERS}, at, ["orders"])


def test_a_table_that_nobody_has_read_yet(root: Path, headrace: Run) -> None:
    (found,) = headrace("tables", "list", root, "--json").data
    assert (found["name"], found["state"], found["rows"], found["columns"]) == (
        "orders",
        "nothing read yet",
        None,
        None,
    )
    shown = headrace("tables", "show", "orders", "-p", root, "--json").data
    assert (shown["columns"], shown["key"], shown["complete"]) == ("`id` bigint, `state` string", ["id"], False)


def test_a_table_is_shown_as_its_log_has_it(root: Path, context: Context, headrace: Run) -> None:
    read(context)
    (found,) = headrace("tables", "list", root, "--json").data
    assert (found["state"], found["rows"], found["complete"], found["lag"]) == ("not followed", 2, True, None)
    assert (found["newest"], found["position"]) == ("2026-05-01T00:00:00+00:00", {"orders": 4})
    lines = headrace("tables", "show", "orders", "-p", root).out.splitlines()
    assert lines[:2] == ["orders: not followed", "  What people bought"]
    assert "  rows: 2, at sequence 1 of its log" in lines


def test_what_the_capture_says_is_shown_while_it_lives(root: Path, context: Context, headrace: Run) -> None:
    read(context)
    folder = tables_folder(context)
    write_group(folder, "push", SAID)
    assert "orders: degraded?" in headrace("status", root).out
    with hold_lock(folder / LOCK, RuntimeError):
        (found,) = headrace("tables", "list", root, "--json").data
        assert (found["state"], found["lag"], found["reason"]["code"]) == ("degraded", 1200, "source-away")
        assert "nobody answers [source-away]" in headrace("tables", "show", "orders", "-p", root).out
        (said,) = headrace("status", root, "--json").data["tables"]
        assert (said["live"], said["state"], said["group"]) == (True, "degraded", "push")
        out = headrace("status", root).out
    assert "tables orders: degraded, 0.5 changes/s, 1,200 behind" in out
    assert "nobody answers [source-away], since 2026-05-01T12:00:00Z" in out


def test_a_table_that_there_is_not_is_told_with_the_nearest(root: Path, headrace: Run) -> None:
    ran = headrace("tables", "show", "oders", "-p", root, "--json")
    error = ran.error["error"]
    assert (ran.code, error["code"]) == (Exit.NOT_FOUND, "unknown-table")
    assert "did you mean 'orders'?" in error["hint"]


def test_lint_counts_tables_and_names_what_is_wrong_in_them(
    root: Path, write_project: Callable[[str, str], Path], headrace: Run
) -> None:
    ran = headrace("lint", root, "--json")
    assert (ran.data["tables"], [one["code"] for one in ran.data["warnings"]]) == (1, ["unread-table"])
    assert "1 table" in headrace("lint", root).out
    wrong = write_project("wrong", "project: a\ntables:\n  t: {source: {type: pusch}}\n  u: {sorce: push}\n")
    errors = headrace("lint", wrong, "--json").error["errors"]
    found = [(error["code"], error["where"]["line"]) for error in errors]
    assert found == [("unknown-kind", 3), ("missing-key", 4), ("unknown-key", 4)]
    assert "did you mean 'push'?" in errors[0]["hint"]
