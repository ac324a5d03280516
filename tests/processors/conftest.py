"""What tests of steps share: a desk that runs a step on rows without Spark, and services to ask."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from benchmarks.answers import Answers
from benchmarks.answers import answers as service
from tests.conftest import unavailable

from headrace.core.context import Context
from headrace.core.processor import ArrowProcessor, StepContext
from headrace.core.tallies.step_tally import StepTally
from headrace.processors._enrich import enricher
from headrace.processors._enrich.async_requests import event_loop
from headrace.testing.services import Postgres, Redis
from headrace.testing.services.ports import choose


@dataclass
class Kept:
    """Dead letters of a step: the row, the reason, the detail."""

    letters: list[tuple[dict[str, Any], str, str]] = field(default_factory=list)

    def keep(self, rows: pa.RecordBatch, index: int, reason: str, detail: str, *, whole: bool = True) -> None:
        self.letters.append((rows.slice(index, 1).to_pylist()[0], reason, detail))

    def flush(self) -> None:
        """They are where they should be."""


@dataclass
class StepDesk:
    """Runs one step on rows, in this process."""

    root: Path
    kept: Kept = field(default_factory=Kept)
    tally: StepTally | None = None

    @property
    def context(self) -> Context:
        return Context(self.root, "state")

    @property
    def at(self) -> StepContext:
        return StepContext(self.context, flow="flow", step="after.0", letters=self.kept)

    @property
    def counts(self) -> dict[str, int]:
        assert self.tally is not None
        return dict(self.tally.counts)

    @property
    def reasons(self) -> list[str]:
        return [reason for _, reason, _ in self.kept.letters]

    def run(self, step: ArrowProcessor, *batches: dict[str, Any] | pa.RecordBatch) -> list[dict[str, Any]]:
        given = [one if isinstance(one, pa.RecordBatch) else pa.RecordBatch.from_pydict(one) for one in batches]
        work = step.work(given[0].schema, self.at)
        self.tally = work.tally = StepTally("flow", "after.0")  # type: ignore[attr-defined]
        schema = step.output(given[0].schema)
        rows: list[dict[str, Any]] = []
        for batch in work(iter(given)):
            assert batch.schema == schema
            rows += batch.to_pylist()
        return rows


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[StepDesk]:
    enricher._live.clear()
    yield StepDesk(tmp_path)
    for live in enricher._live.values():
        event_loop().run_until_complete(live.caller.service.close())
    enricher._live.clear()


@pytest.fixture(scope="session")
def _answers() -> Iterator[Answers]:
    with service(choose(["client"], {})["client"]) as made:
        yield made


@pytest.fixture
def answers(_answers: Answers) -> Answers:
    """The HTTP service, as if it had just been started."""
    if _answers.process.poll() is not None:
        _answers.start_again()
    _answers.control()
    return _answers


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    problem = Postgres.problem()
    if problem is not None:
        unavailable(problem)
    with Postgres() as server:
        yield server


@pytest.fixture(scope="session")
def redis_server() -> Iterator[Redis]:
    problem = Redis.problem()
    if problem is not None:
        unavailable(problem)
    with Redis() as server:
        yield server
