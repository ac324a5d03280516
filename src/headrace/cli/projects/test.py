"""`headrace test`: run a project's own tests, rows in, rows out."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from headrace.cli.terminal.output import printer
from headrace.cli.terminal.project_args import Json, Name, Overrides, Profile, ProjectOption, load_project, only_project
from headrace.core.errors import Exit

if TYPE_CHECKING:
    from headrace.project.loader import Project
    from headrace.testing.cases import CaseOutcome


def test(
    name: Name = None,
    project: ProjectOption = None,
    profile: Profile = None,
    overrides: Overrides = None,
    json: Json = False,
) -> None:
    """Run the tests in a project's tests/*.yaml, on its own SQL and formats but without its services."""
    loaded = load_project(only_project(name, project), profile, overrides)
    outcomes = _run(loaded, json)
    passed = sum(outcome.passed for outcome in outcomes)
    if json:
        found = [{"test": o.name, "passed": o.passed, "detail": o.detail} for o in outcomes]
        printer.document({"passed": passed, "failed": len(outcomes) - passed, "tests": found})
    else:
        printer.data(f"{passed} passed, {len(outcomes) - passed} failed")
    if passed < len(outcomes):
        raise typer.Exit(int(Exit.FAILED))


def _run(project: Project, json: bool) -> list[CaseOutcome]:
    from headrace.engine.spark.session import start_session
    from headrace.testing.cases import find_cases, load_case, run_case

    cases = [(file.stem, load_case(file, project.root)) for file in find_cases(project.root)]
    with tempfile.TemporaryDirectory() as scratch:
        spark = start_session(project.spec.spark, project.spec.project, Path(scratch))
        try:
            outcomes = []
            for name, case in cases:
                outcome = run_case(name, case, project, spark)
                outcomes.append(outcome)
                if not json:
                    printer.data(f"{'ok  ' if outcome.passed else 'FAIL'} {name}")
                    if outcome.detail:
                        printer.data("     " + outcome.detail.replace("\n", "\n     "))
            return outcomes
        finally:
            spark.stop()
