"""A PostgreSQL server that stands still: nothing waits for it for ever, and each row is there once in the end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.conftest import frozen, unavailable

from headrace.engine.flows.flow import FlowStarter
from headrace.engine.state.state import StateDir
from headrace.engine.supervise.runner import FlowRun, Runner
from headrace.plan.planner import make_plan
from headrace.project.loader import load
from headrace.testing.services import Postgres

pytestmark = [pytest.mark.spark, pytest.mark.service]

PROJECT = """
project: frozen
streams:
  made: {source: {type: generate, rate: 100, fields: {id: {sequence: "{}"}}}}
flows:
  kept:
    sql: SELECT id, tier FROM made
    before:
      made:
        - {type: postgres, url: "URL", query: "SELECT 'gold' AS tier WHERE :id::text <> ''", columns: {tier: tier},
           timeout: 3s, retries: 1, give_up: 5s, on_error: fail}
    sinks:
      - {type: postgres, url: "URL", table: kept, create: true, timeout: 2s, retry_for: 1s, statement_timeout: 1s}
defaults: {trigger: 200ms}
restart: {backoff: 200ms, max_backoff: 1s}
"""


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    problem = Postgres.problem()
    if problem is not None:
        unavailable(problem)
    with Postgres() as one:
        yield one


def await_(condition: Callable[[], bool], run: FlowRun, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, (run.state, run.reason, run.last_error)
        time.sleep(0.02)


def test_a_flow_outlives_a_server_that_stands_still(spark: Any, server: Postgres, tmp_path: Path) -> None:
    url = server.env["POSTGRES_URL"]
    (tmp_path / "headrace.yaml").write_text(PROJECT.replace("URL", url))
    project = load(tmp_path)
    state = StateDir(Path(project.context.state))
    runner = Runner(FlowStarter(project, state, spark), make_plan(project, []))
    (run,) = runner.runs
    thread = threading.Thread(target=runner.run)
    thread.start()
    try:
        await_(lambda: run.batches >= 2, run)
        with frozen(server.port):
            await_(lambda: run.state == "degraded", run)
            assert run.reason is not None
            assert run.reason.code == "service-away"
            await_(lambda: run.query is None, run)  # no task waits any more
        before = run.batches
        await_(lambda: run.state == "running" and run.batches > before + 1, run)
    finally:
        runner.stopping.set()
        thread.join(120)
    assert run.restarts >= 1
    with psycopg.connect(url) as connection:
        found = [int(one) for (one,) in connection.execute("SELECT id FROM kept")]
        (other,) = connection.execute("SELECT count(*) FROM kept WHERE tier IS DISTINCT FROM 'gold'").fetchone() or (1,)
    assert sorted(found) == list(range(len(found))), "each row once"
    assert other == 0
    assert run.counters.rows_out == len(found)
