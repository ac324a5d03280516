"""State on an object store: nothing is lost or doubled by kill -9, rewinds and replays, and one engine has it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable
from tests.faults.planting import planted_environment
from tests.system.conftest import RunProject

from headrace.core.errors import ProjectError
from headrace.core.files.objects import ObjectPath
from headrace.engine.letters.dead_letter_index import DeadLetterFilter, DeadLetterIndex
from headrace.engine.letters.late_rows import read_late_rows
from headrace.engine.observe.housekeeping import remove_old_generations
from headrace.engine.positions.rewind import Rewinder, while_stopped
from headrace.engine.positions.rewind_plan import CheckpointCopy
from headrace.engine.positions.savepoints import Savepoints
from headrace.engine.positions.upgrade import detect_change
from headrace.engine.replay.replay import DeadLetterReplayer
from headrace.engine.replay.replay_folders import UnfinishedReplays
from headrace.engine.replay.replay_plan import ReplayPlanner
from headrace.engine.spark.session import configure_store
from headrace.engine.state.lease import Owner
from headrace.engine.state.state import StateDir
from headrace.plan.planner import make_plan
from headrace.project.loader import Project, load

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.testing.services import S3

pytestmark = [pytest.mark.spark, pytest.mark.service]

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
STARTED = time.time() - 100
PROJECT = """
project: shop
state: s3://BUCKET/shop
object_store: {endpoint: "http://ADDRESS", access_key: "${secret:SHOP_KEY}", secret_key: "${secret:SHOP_SECRET}"}
spark: {master: "local[2]"}
streams:
  orders:
    source: {type: files, path: in, max_files_per_trigger: 1}
    format: {type: json, columns: "id bigint, amount TYPE, at timestamp"}
    event_time: {column: at, watermark: 1s, max_future: 1h}
flows:
  counts:
    spark: {spark.sql.shuffle.partitions: 1}
    sql: |
      SELECT TUMBLE_START(at, INTERVAL '10' SECOND) AS since, count(*) AS n, min(id) AS first
      FROM orders GROUP BY TUMBLE(at, INTERVAL '10' SECOND)
    sinks: [{type: lake, path: lake}, {type: files, path: out}]
  copies:
    sql: SELECT id, CAST(amount AS double) AS amount FROM orders
    sinks: [{type: files, path: copies}]
"""


@dataclass
class Shop:
    """A project of 20 records per file, one of them with an amount that is no whole number."""

    folder: Path
    text: str

    def write(self, kind: str) -> None:
        (self.folder / "headrace.yaml").write_text(self.text.replace("TYPE", kind))

    def add(self, *files: int) -> None:
        for file in files:
            lines = [json.dumps(self.record(number)) for number in range(file * 20, file * 20 + 20)]
            written = self.folder / "in" / f"{file:03}.json"
            written.write_text("\n".join(lines))
            # Spark reads them in the order of their times, and those of one file read too soon would make others late
            os.utime(written, (STARTED + file, STARTED + file))

    def record(self, number: int) -> dict[str, Any]:
        amount = number + (0.5 if number == 7 else 0)
        return {"id": number, "amount": amount, "at": (EPOCH + timedelta(seconds=number)).isoformat()}

    @property
    def project(self) -> Project:
        return load(self.folder)

    @property
    def state(self) -> StateDir:
        return StateDir.of(self.project.context)

    def run(self, *arguments: str, crash: str | None = None) -> subprocess.CompletedProcess[str]:
        """A command in a process of its own."""
        command = [sys.executable, "-c", "import sys; from headrace.cli.main import main; sys.exit(main())"]
        return subprocess.run(
            [*command, *arguments], cwd=self.folder, env=planted_environment(crash), capture_output=True, text=True,
            timeout=400, start_new_session=True, check=False,
        )  # fmt: skip

    def counted(self) -> list[list[tuple[int, int]]]:
        """What each sink has of each window: its first id, and how many there are."""
        tables = (DeltaTable(str(self.folder / "lake")).to_pyarrow_table(), ds.dataset(self.folder / "out").to_table())
        return [sorted((row["first"], row["n"]) for row in table.to_pylist()) for table in tables]

    def windows(self, files: int) -> list[tuple[int, int]]:
        """What an offline recount says of the windows that are closed: those before the watermark."""
        return [(first, 10) for first in range(0, files * 20, 10) if first + 10 < files * 20 - 1]


@pytest.fixture
def shop(tmp_path: Path, s3: S3, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Shop:
    monkeypatch.setenv("SHOP_KEY", s3.access_key)
    monkeypatch.setenv("SHOP_SECRET", s3.secret_key)
    bucket = f"b{os.urandom(4).hex()}"
    s3.make_bucket(bucket)
    configure_store(spark, s3.store)
    (tmp_path / "in").mkdir()
    made = Shop(tmp_path, PROJECT.replace("BUCKET", bucket).replace("ADDRESS", s3.address))
    made.write("bigint")
    return made


def test_all_that_keeps_state_works_on_an_object_store(
    shop: Shop, spark: SparkSession, run_project: RunProject
) -> None:
    shop.add(0, 1, 2)
    killed = shop.run("run", "counts", "--until-caught-up", crash="between_sinks:1:counts")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert "secret" not in killed.stderr + (shop.folder / ".headrace" / "logs" / "engine.log").read_text().lower()
    state = shop.state
    assert isinstance(state.root, ObjectPath)
    assert state.current("counts").checkpoint.in_flight()
    assert {path.name for path in (shop.folder / ".headrace").iterdir()} == {"logs", "status.json"}

    # the next engine takes the lock of the killed one, and no other does meanwhile
    with state.lock():
        run_project(shop.folder)
        with pytest.raises(ProjectError) as refused, shop.state.lock():
            pass
        assert refused.value.code == "state-in-use"
    assert read_late_rows(state.late).num_rows == 0
    assert shop.counted() == [shop.windows(3), shop.windows(3)]
    assert sorted(ds.dataset(shop.folder / "copies").to_table()["id"].to_pylist()) == [n for n in range(60) if n != 7]

    _rewind(shop, run_project)
    _replay(shop, spark)
    _others(shop)


def _rewind(shop: Shop, run_project: RunProject) -> None:
    """Savepoint, more records, and back again: the same rows as without."""
    project, state = shop.project, shop.state
    plan = make_plan(project)
    flow = plan.flow("counts")
    with while_stopped(state, "counts"):
        saved = Savepoints(state, "counts").create(flow, project.context, "before")
    shop.add(3)
    run_project(shop.folder)
    assert shop.counted() == [shop.windows(4), shop.windows(4)]
    before = state.current("counts").id
    with while_stopped(state, "counts"):
        rewinder = Rewinder(flow, plan, state, project.context)
        rewinder.execute(rewinder.to_checkpoint(CheckpointCopy("before", saved.generation), replace=True))
    assert shop.counted() == [shop.windows(3), shop.windows(3)]
    run_project(shop.folder)
    assert shop.counted() == [shop.windows(4), shop.windows(4)]
    assert state.current("counts").manifest.parent == before
    Savepoints(state, "counts").delete("before")
    assert Savepoints(state, "counts").all() == []
    assert detect_change(project, state, flow).verdict.kind == "safe"
    assert len(remove_old_generations(state.generations("counts"), timedelta(0))) == 0, "parents stay"


def _replay(shop: Shop, spark: SparkSession) -> None:
    """The record that no column could hold comes through once after a fix."""
    book = DeadLetterIndex(shop.state.dead_letters)
    assert [row["flow"] for row in book.read().newest(book.read().index, None)].count("copies") == 1
    shop.write("double")
    project, state = shop.project, shop.state
    with book.history.lock(), book.locked():
        shelf = book.read("copies")
        plan = ReplayPlanner(project, state, shelf).plan(
            DeadLetterFilter().of(shelf.index), UnfinishedReplays(state.replays).flows()
        )
        outcomes = [DeadLetterReplayer(project, state, spark).run(one, shelf) for one in plan.replays]
    assert [(one.replayed, one.still_bad, one.rows) for one in outcomes] == [(1, 0, 1)]
    found = Counter(ds.dataset(shop.folder / "copies").to_table()["id"].to_pylist())
    assert found == dict.fromkeys(range(80), 1)
    assert DeadLetterFilter().of(book.read("copies").index).num_rows == 0
    assert UnfinishedReplays(state.replays).flows() == set()


def _others(shop: Shop) -> None:
    """Commands that only look, and an engine elsewhere."""
    shown = json.loads(shop.run("offsets", "show", "counts", "--json").stdout)
    assert "counts" in json.dumps(shown)
    assert json.loads(shop.run("status", "--json").stdout)["freshness"] == "no-engine"
    state = shop.state
    with state.lock():
        (lease,) = state.fence._leases
        held = json.loads(lease.file.read_bytes())
        lease.file.put(json.dumps({**held, "host": "far", "machine": "far", "pid": 77}).encode())
        assert shop.state.holder() == Owner(77, "far")
        stopping = shop.run("stop", "--json")
        assert stopping.returncode == 5
        assert "engine-elsewhere" in stopping.stderr
