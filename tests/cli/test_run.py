"""What `headrace run` says besides the rows. That it runs is in tests/system."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from headrace.cli.projects.run import _summary, _until, _where_to_look
from headrace.plan.planner import make_plan
from headrace.project.loader import load

PROJECT = """\
project: shop
streams:
  orders:
    source: {type: generate, rate: 5, fields: {id: {sequence: 1}}}
flows:
  kept: {sql: SELECT id FROM orders, sinks: [{type: lake, path: lake/kept}]}
  none: {sql: SELECT id FROM orders WHERE id < 0, sinks: [{type: lake, path: lake/none}]}
"""


def _run(name: str, rows: int, state: str = "running") -> Any:
    counters = SimpleNamespace(rows_per_s=lambda: rows / 10)
    return SimpleNamespace(plan=SimpleNamespace(name=name), rows_in=rows, state=state, counters=counters)


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        ([_run("a", 0, "starting")], "waiting for the first rows; a starting"),
        ([_run("a", 1200)], "1,200 rows in, 120 rows/s"),
        ([_run("a", 1200), _run("b", 30, "degraded")], "1,230 rows in (a 1,200, b 30), 123 rows/s; b degraded"),
        ([_run(f"f{n}", 10) for n in range(9)], "90 rows in, 9 rows/s"),
    ],
)
def test_all_flows_are_one_line_on_a_terminal(runs: list[Any], expected: str) -> None:
    assert _summary(runs) == expected


def test_it_says_when_it_ends() -> None:
    assert _until(40, False) == "running for 40 s; Ctrl-C stops earlier"
    assert _until(None, False) == "running; Ctrl-C stops"
    assert _until(None, True).startswith("running until all existing records")


def test_it_says_where_the_rows_are_as_seen_from_here(
    write_project: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_project("shop", PROJECT)
    write_deltalake(folder / "lake" / "kept", pa.table({"id": [1]}))
    project = load(folder)
    runs: Any = [SimpleNamespace(plan=flow) for flow in make_plan(project).flows]
    monkeypatch.chdir(folder.parent)
    assert list(_where_to_look(runs, project, bad=True)) == [
        "kept is in shop/lake/kept; query it:",
        "  headrace sql -p shop 'SELECT * FROM kept LIMIT 10'",
        "none has written no rows yet: shop/lake/none does not exist",
        "dead letters are records that could not be processed; list them:",
        "  headrace dead-letters list -p shop",
    ]
    monkeypatch.chdir(folder)
    assert next(iter(_where_to_look(runs, project, bad=False))) == "kept is in lake/kept; query it:"
