"""The engine killed with -9 while its rows are being asked about: each row once in PostgreSQL, or a dead letter.

`HEADRACE_FAULTS=full` kills it twice, the first time in its first batch.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from benchmarks.answers import Answers, answers
from tests.conftest import unavailable
from tests.faults.scene import SHORT_LIVED, Engine, await_true
from tests.system.conftest import RunProject

from headrace.engine.letters.dead_letters import read_dead_letters
from headrace.engine.state.state import StateDir
from headrace.testing.services import Postgres
from headrace.testing.services.ports import choose

pytestmark = [pytest.mark.spark, pytest.mark.service]

PROJECT = """
project: asked
state: state
defaults: {{trigger: 200ms}}
spark:
  master: "local[2]"
  conf: {conf}
streams:
  orders:
    source: {{type: files, path: in, max_files_per_trigger: 1}}
    format: {{type: json, columns: "id bigint, customer string"}}
flows:
  asked:
    sql: SELECT id, customer FROM orders
    after:
      - type: http
        url: "{url}/users/{{customer}}"
        capacity: 8
        columns: {{name: $.user.name}}
        cache: {{ttl: 1h}}
    sinks: [{{type: postgres, url: "{database}", table: asked, create: true}}]
"""
ROWS, FILES, PATIENCE = 2400, 6, 600.0
FULL = os.environ.get("HEADRACE_FAULTS") == "full"
# one batch asks 400 times, if it is not run again: in the small size it dies early in the second
CALLS = (150, 500) if FULL else (450,)


@pytest.fixture
def service() -> Iterator[Answers]:
    with answers(choose(["client"], {})["client"]) as made:
        made.control(delay=0.02, failing=50, status=400)
        yield made


@pytest.fixture
def database() -> Iterator[str]:
    problem = Postgres.problem()
    if problem is not None:
        unavailable(problem)
    with Postgres() as server:
        yield server.env["POSTGRES_URL"]


def start(folder: Path, number: int) -> Engine:
    log = folder / f"life-{number}.log"
    with log.open("wb") as output:
        command = [sys.executable, "-m", "headrace", "run", str(folder)]
        process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
    return Engine(process, log)


def test_every_row_once_whenever_the_engine_dies(
    tmp_path: Path, service: Answers, database: str, run_project: RunProject
) -> None:
    conf = json.dumps({"spark.local.dir": str(tmp_path / "local"), **SHORT_LIVED})
    (tmp_path / "headrace.yaml").write_text(PROJECT.format(url=service.url, database=database, conf=conf))
    for folder in ("in", "local"):
        (tmp_path / folder).mkdir()
    for part in range(FILES):
        lines = [json.dumps({"id": n, "customer": f"customer-{n}"}) for n in range(part, ROWS, FILES)]
        (tmp_path / "in" / f"{part}.json").write_text("\n".join(lines))
        os.utime(tmp_path / "in" / f"{part}.json", (1_700_000_000 + part,) * 2)

    lives = []
    try:
        for number, more in enumerate(CALLS):
            asked = service.stats()["calls"] + more
            lives.append(start(tmp_path, number))
            reached = await_true(lambda: service.stats()["calls"] >= asked or lives[-1].died(), PATIENCE, 0.02)  # noqa: B023
            assert reached, lives[-1].tail()
            assert lives[-1].process.poll() is None, lives[-1].tail()
            lives[-1].kill()
        with StateDir(tmp_path / "state").lock():
            run_project(tmp_path)
    finally:
        for engine in lives:
            if engine.process.poll() is None:
                engine.kill()
    assert service.stats()["calls"] > ROWS, "some batch was asked about twice"

    with psycopg.connect(database) as connection:
        rows = connection.execute("SELECT id, customer, name FROM asked").fetchall()
    assert all(name == f"name of {customer}" for _, customer, name in rows)
    letters = read_dead_letters(tmp_path / "state" / "dead_letters").to_pylist()
    refused = [json.loads(letter["value"])["id"] for letter in letters]
    assert len(refused) > 50
    assert sorted([row[0] for row in rows] + refused) == list(range(ROWS))
