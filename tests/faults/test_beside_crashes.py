"""The engine killed with -9 while a generation is built beside another and while it is switched to.

`HEADRACE_FAULTS=full` kills it at every point; else only where the most is half done.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from tests.faults.planting import planted_environment
from tests.faults.scene import SHORT_LIVED, Engine, await_true
from tests.system.conftest import RunProject, consume, produce

if TYPE_CHECKING:
    from headrace.testing.services import Kafka

pytestmark = [pytest.mark.spark, pytest.mark.service]

PROJECT = """
project: proof
state: state
defaults: {{trigger: 200ms, partitions: 1, max_records: {max_records}}}
spark: {{master: "local[2]", conf: {conf}}}
http: {{port: 0}}
streams:
  events:
    source: {{type: kafka, brokers: "{brokers}", topic: {source}}}
    format: {{type: json, columns: "k string, n bigint, ts bigint"}}
    event_time: {{column: ts, unit: ms, watermark: 10s}}
flows:
  sums:
    sql: |
      SELECT window.start AS since, k, {aggregate} AS n, '{by}' AS by
      FROM events GROUP BY window(ts, '5 seconds'), k
    sinks:
      - {{type: lake, path: lake/sums}}
      - {{type: kafka, brokers: "{brokers}", topic: {target}, key: k, delivery: exactly_once}}
      - {{type: lake, path: lake/again, key: [since, k]}}
"""
BEGAN = 1_767_225_600_000
PATIENCE = 600.0
FULL = os.environ.get("HEADRACE_FAULTS") == "full"
SWITCHED = ("between_publishes:0", "published:0")
"""Points at which the first table shows the new rows."""
# the first is in a batch of the candidate: the other generation is further by then
POINTS = ("after_sinks:1", "before_switch:0", *SWITCHED) if FULL else ("after_sinks:1", SWITCHED[0])


class Scene:
    """A flow that becomes another one while its engine is killed again and again."""

    def __init__(self, folder: Path, kafka: Kafka) -> None:
        mark = uuid.uuid4().hex[:8]
        self.folder, self.kafka = folder, kafka
        self.source, self.target = f"in-{mark}", f"out-{mark}"
        kafka.create_topic(self.source, 2)
        kafka.create_topic(self.target, 1)
        self.fed = 0
        self.lives: list[Engine] = []

    def write(self, by: str, aggregate: str, max_records: int) -> None:
        conf = json.dumps({"spark.local.dir": str(self.folder / "local"), **SHORT_LIVED})
        text = PROJECT.format(
            conf=conf, brokers=self.kafka.address, source=self.source, target=self.target,
            by=by, aggregate=aggregate, max_records=max_records,
        )  # fmt: skip
        (self.folder / "headrace.yaml").write_text(text)

    def feed(self, count: int) -> None:
        numbers = range(self.fed, self.fed + count)
        values = [json.dumps({"k": f"k{n % 3}", "n": n, "ts": BEGAN + n * 100}).encode() for n in numbers]
        produce(self.kafka, self.source, values, lambda n: b"%d" % (n % 7))
        self.fed += count

    def start(self, *arguments: str, crash: str | None = None) -> Engine:
        env = planted_environment(f"{crash}:sums" if crash else None)
        log = self.folder / f"life-{len(self.lives)}.log"
        with log.open("wb") as output:
            command = [sys.executable, "-m", "headrace", "run", str(self.folder), *arguments]
            process = subprocess.Popen(command, env=env, stdout=output, stderr=output, start_new_session=True)
        self.lives.append(Engine(process, log))
        return self.lives[-1]

    def windows(self, add: Callable[[int], int]) -> dict[tuple[int, str], int]:
        """An offline recompute of what the last event closes."""
        found: dict[tuple[int, str], int] = {}
        for n in range(self.fed):
            since = (BEGAN + n * 100) // 5000 * 5000
            if since + 5000 <= BEGAN + (self.fed - 1) * 100 - 10_000:
                found[since, f"k{n % 3}"] = found.get((since, f"k{n % 3}"), 0) + add(n)
        return found

    def table(self, name: str) -> list[dict[str, Any]]:
        try:
            rows: list[dict[str, Any]] = DeltaTable(str(self.folder / "lake" / name)).to_pyarrow_table().to_pylist()
        except TableNotFoundError:
            return []
        return rows

    def topic(self) -> list[dict[str, Any]]:
        return [json.loads(message.value()) for message in consume(self.kafka, self.target)]


def by_window(rows: list[dict[str, Any]]) -> dict[tuple[int, str], tuple[int, str]]:
    found = {}
    for row in rows:
        since = datetime.fromisoformat(row["since"]) if isinstance(row["since"], str) else row["since"]
        key = (round(since.timestamp() * 1000), row["k"])
        assert key not in found, f"{key} is there twice"
        found[key] = (row["n"], row["by"])
    return found


def test_every_window_once_whenever_the_engine_dies(tmp_path: Path, kafka: Kafka, run_project: RunProject) -> None:
    scene = Scene(tmp_path, kafka)
    scene.write("old", "count(*)", 200)
    scene.feed(600)
    run_project(tmp_path)

    scene.write("new", "sum(n)", 300)
    for number, point in enumerate(POINTS):
        asked = () if number else ("--new-generation", "sums", "--beside")
        engine = scene.start(*asked, crash=point)
        assert await_true(engine.died, PATIENCE), f"{point} was not reached: {engine.tail()}"
        assert engine.process.returncode == -9, engine.tail()
        seen = {row["by"] for row in scene.table("sums")}
        assert seen == ({"new"} if point in SWITCHED else {"old"}), point
        scene.feed(60)
    last = scene.start()
    wanted = {key: (n, "new") for key, n in scene.windows(int).items()}
    done = await_true(lambda: len(scene.topic()) >= len(wanted) and last.process.poll() is None, PATIENCE, 1.0)
    last.process.send_signal(2)
    last.process.wait(120)
    assert done, last.tail()
    assert last.process.returncode == 0, last.tail()
    assert "stopping" in last.log.read_text()
    assert "Traceback" not in last.log.read_text()
    assert by_window(scene.table("sums")) == wanted
    assert by_window(scene.table("again")) == wanted
    counted, said = scene.windows(lambda _: 1), by_window(scene.topic())
    assert said == {key: (counted[key], "old") if said[key][1] == "old" else wanted[key] for key in wanted}
    assert {by for _n, by in said.values()} == {"old", "new"}
    assert sorted(path.name for path in (tmp_path / "lake").iterdir()) == ["again", "sums"]
