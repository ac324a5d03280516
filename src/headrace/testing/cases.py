"""Tests of a project as YAML: input rows and expected rows.

```yaml
flow: counts
steps:
  - feed: {bookings: [{order_id: a, service: RIDE, at: 2026-01-01T00:00:01Z}]}
  - restart: true
  - feed: {bookings: ['not json']}
  - expect: {rows: [{service: RIDE, n: 1}], dead_letters: 1}
```
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field, ValidationError

from headrace.core.component import Options
from headrace.core.errors import Exit, ProjectError, ProjectErrors
from headrace.project.loader import Project
from headrace.project.problems import problems_of
from headrace.project.yaml_tree import load_tree
from headrace.testing.harness import ProjectHarness

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Expectation(Options):
    """The expectation of a step."""

    rows: list[dict[str, Any]] | None = Field(
        None,
        description="All rows so far, of a view its current rows, in any order; only the columns named here count.",
    )
    dead_letters: int | None = Field(None, ge=0, description="The number of dead letters so far.")
    late_rows: int | None = Field(None, ge=0, description="The number of late rows so far.")


class Step(Options):
    """One step of a test: exactly one of its keys."""

    feed: dict[str, list[Any]] | None = Field(
        None, description="By stream: rows, or raw records as strings. By table: rows to insert or update."
    )
    delete: dict[str, list[dict[str, Any]]] | None = Field(None, description="By table: the keys of rows to delete.")
    restart: bool | None = Field(None, description="Stop the flow and start it again from its checkpoint.")
    expect: Expectation | None = Field(None, description="What must be true now.")


class Case(Options):
    """One test of one flow."""

    flow: str = Field(description="The flow under test.")
    description: str = Field("", description="What the test shows.")
    steps: list[Step] = Field(min_length=1, description="What happens, in order.")


@dataclass(frozen=True)
class CaseOutcome:
    """The outcome of a test."""

    name: str
    passed: bool
    detail: str = ""


def load_case(file: Path, root: Path) -> Case:
    """Load a test; errors have the file and line."""
    tree = load_tree(file, str(file.relative_to(root)))
    try:
        return Case.model_validate(tree.data)
    except ValidationError as error:
        raise ProjectErrors(problems_of(error, tree, Case)) from None


def run_case(name: str, case: Case, project: Project, spark: SparkSession) -> CaseOutcome:
    """Run a test. A failed expectation is an outcome, a broken project an error."""
    with ProjectHarness(project, spark) as harness:
        for number, step in enumerate(case.steps, start=1):
            for stream, rows in (step.feed or {}).items():
                harness.feed(stream, rows)
            for table, rows in (step.delete or {}).items():
                harness.delete(table, rows)
            if step.restart:
                harness.restart()
            if step.feed or step.delete:
                harness.run(case.flow)
            difference = _difference(step.expect, harness, case.flow) if step.expect else None
            if difference:
                return CaseOutcome(name, False, f"step {number}: {difference}")
    return CaseOutcome(name, True)


def _difference(expected: Expectation, harness: ProjectHarness, flow: str) -> str | None:
    if expected.rows is not None:
        missing, extra = compare(expected.rows, harness.rows(flow))
        if missing or extra:
            lines = [f"  missing: {row}" for row in missing] + [f"  not expected: {row}" for row in extra]
            return "\n".join(["rows differ", *lines])
    letters = harness.dead_letters(flow)
    if expected.dead_letters is not None and expected.dead_letters != len(letters):
        reasons = "".join(f"\n  {letter['reason']}: {letter['detail']}" for letter in letters)
        return f"expected {expected.dead_letters} dead letters, found {len(letters)}{reasons}"
    late = harness.late_rows(flow)
    if expected.late_rows is not None and expected.late_rows != len(late):
        rows = "".join(f"\n  {row['row']}" for row in late)
        return f"expected {expected.late_rows} late rows, found {len(late)}{rows}"
    return None


def compare(expected: Sequence[dict[str, Any]], actual: Sequence[dict[str, Any]]) -> tuple[list[str], list[str]]:
    """Missing and unexpected rows as text; duplicates count."""
    names = {name for row in expected for name in row}
    left = [_text(row, names) for row in expected]
    right = [_text(row, names) if names else _text(row, set(row)) for row in actual]
    missing = list(left)
    extra = []
    for row in right:
        if row in missing:
            missing.remove(row)
        else:
            extra.append(row)
    return missing, extra


def _text(row: dict[str, Any], names: set[str]) -> str:
    return json.dumps({name: _plain(row.get(name)) for name in sorted(names)}, sort_keys=True, ensure_ascii=False)


def _plain(value: Any) -> Any:
    """A value in a form that is the same for YAML and Spark."""
    match value:
        case datetime():
            time = value if value.tzinfo else value.replace(tzinfo=UTC)
            return time.astimezone(UTC).isoformat()
        case date():
            return value.isoformat()
        case Decimal() | float() if value == value and value == int(value):
            return int(value)
        case Decimal():
            return float(value)
        case bytes():
            return value.decode(errors="replace")
        case dict():
            return {key: _plain(child) for key, child in value.items()}
        case list():
            return [_plain(child) for child in value]
        case str() if len(value) >= 19 and value[4:5] == "-" and value[10:11] in ("T", " "):
            return _as_time(value)
    return value


def _as_time(text: str) -> str:
    try:
        return str(_plain(datetime.fromisoformat(text)))
    except ValueError:
        return text


def find_cases(root: Path) -> list[Path]:
    """The test files of a project."""
    files = sorted((root / "tests").glob("*.yaml"))
    if not files:
        raise ProjectError(
            "no-tests",
            f"there is no test in {root / 'tests'}",
            hint="write tests/NAME.yaml with flow, steps and expect",
            exit_code=Exit.NOT_FOUND,
        )
    return files
