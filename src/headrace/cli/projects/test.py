"""Run a project's own tests."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from headrace.cli.terminal.output import printer
from headrace.cli.terminal.project_args import Json, Name, ProjectTarget, project_options
from headrace.core.errors import Exit
from headrace.core.lazy import lazy_modules

if TYPE_CHECKING:
    from headrace.engine.spark import session
    from headrace.project.loader import Project
    from headrace.testing import cases as testing_cases
    from headrace.testing.cases import CaseOutcome
else:
    session, testing_cases = lazy_modules("headrace.engine.spark.session", "headrace.testing.cases")


@project_options(Name)
def test(
    target: ProjectTarget,
    json: Json = False,
) -> None:
    """Run the tests in a project's tests/*.yaml, on its own SQL and formats but without its services."""
    loaded = target.load()
    outcomes = _run(loaded, json)
    passed = sum(outcome.passed for outcome in outcomes)
    if json:
        documents = [{"test": o.name, "passed": o.passed, "detail": o.detail} for o in outcomes]
        printer.document({"passed": passed, "failed": len(outcomes) - passed, "tests": documents})
    else:
        printer.data(f"{passed} passed, {len(outcomes) - passed} failed")
    if passed < len(outcomes):
        raise typer.Exit(int(Exit.FAILED))


def _run(project: Project, json: bool) -> list[CaseOutcome]:
    cases = [
        (file.stem, testing_cases.load_case(file, project.root)) for file in testing_cases.find_cases(project.root)
    ]
    with tempfile.TemporaryDirectory() as scratch:
        spark = session.start_session(project.spec.spark, project.spec.project, Path(scratch))
        try:
            outcomes = []
            for name, case in cases:
                outcome = testing_cases.run_case(name, case, project, spark)
                outcomes.append(outcome)
                if not json:
                    printer.data(f"{'ok  ' if outcome.passed else 'FAIL'} {name}")
                    if outcome.detail:
                        printer.data("     " + outcome.detail.replace("\n", "\n     "))
            return outcomes
        finally:
            spark.stop()
