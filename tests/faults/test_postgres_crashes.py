"""The engine killed with -9 inside a PostgreSQL sink and around it: each event once, with a key and without."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.conftest import unavailable
from tests.faults.checker import Findings, Log, check_events
from tests.faults.planting import planted_environment
from tests.faults.scene import HERE, SHORT_LIVED, Engine, await_true
from tests.system.conftest import RunProject

from headrace.engine.state.state import StateDir
from headrace.testing.services import Postgres

if TYPE_CHECKING:
    from headrace.testing.services import Kafka

pytestmark = [pytest.mark.spark, pytest.mark.service]

PROJECT = """
project: proof
state: state
defaults: {{trigger: 200ms, max_records: 700}}
spark: {{master: "local[2]", conf: {conf}}}
streams:
  events:
    source: {{type: kafka, brokers: "{brokers}", topic: {topic}}}
    format: {{type: json, columns: "id string, k string, n bigint, amount bigint, ts bigint"}}
flows:
  rides:
    sql: SELECT id, k, n, amount, timestamp_millis(ts) AS ts FROM events
    sinks:
      - {{type: postgres, url: "{url}", table: rides, create: true}}
      - {{type: postgres, url: "{url}", table: by_key, create: true, key: [id]}}
"""
PATIENCE = 600.0
# the second is also between two sinks: the first of them has the batch, the other has not
POINTS = ("postgres_staged:1", "postgres_merged:2")


def start(folder: Path, life: int, crash: str) -> Engine:
    env = planted_environment(crash, FAULTS_LOCK=str(folder / "state" / "engine.lock"))
    log = folder / f"life-{life}.log"
    with log.open("wb") as output:
        command = [sys.executable, "-m", "headrace", "run", str(folder)]
        return Engine(subprocess.Popen(command, env=env, stdout=output, stderr=output, start_new_session=True), log)


def table(url: str, name: str) -> list[dict[str, Any]]:
    import psycopg
    from psycopg.rows import dict_row

    with psycopg.connect(url, row_factory=dict_row) as connection:  # type: ignore[arg-type]
        return list(connection.execute(f"SELECT * FROM {name}"))


def test_every_event_once_in_postgres(tmp_path: Path, kafka: Kafka, run_project: RunProject) -> None:
    problem = Postgres.problem()
    if problem is not None:
        unavailable(problem)
    topic, log = f"in-{uuid.uuid4().hex[:8]}", tmp_path / "acknowledged.jsonl"
    kafka.create_topic(topic, 4)
    generator = [
        sys.executable,
        str(HERE / "generator.py"),
        kafka.address,
        topic,
        str(log),
        "--count",
        "4000",
        "--seed",
        "7",
    ]
    subprocess.run(generator, check=True)
    with Postgres() as server:
        url = server.env["POSTGRES_URL"]
        conf = json.dumps({"spark.local.dir": str(tmp_path / "local"), **SHORT_LIVED})
        (tmp_path / "headrace.yaml").write_text(PROJECT.format(conf=conf, brokers=kafka.address, topic=topic, url=url))
        for number, point in enumerate(POINTS):
            engine = start(tmp_path, number, f"{point}:rides")
            assert await_true(engine.died, PATIENCE), f"{point} was not reached: {engine.tail()}"
            assert engine.process.returncode == -9, engine.tail()
        with StateDir(tmp_path / "state").lock():
            run_project(tmp_path)
        found = Findings()
        for name in ("rides", "by_key"):
            check_events(found, name, table(url, name), Log.read(log))
        assert found.violations == []
        assert found.figures["rides rows"] > 3000
        assert table(url, "(SELECT tablename FROM pg_tables WHERE tablename LIKE 'headrace_stage%') t") == []
