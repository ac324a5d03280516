"""What Spark fixes, forgets or splits without a word, and what is done here so that it cannot bite.

The numbers are those of the list of traps: each test shows that one of them is refused, noticed or out of the way.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest
from pydantic import PrivateAttr

from headrace.core.context import Batch
from headrace.core.errors import ProjectError
from headrace.core.sink import Sink
from headrace.engine.flows.flow import FlowStarter
from headrace.engine.positions.upgrade import detect_change, start_new_generation
from headrace.engine.spark.failures import from_query
from headrace.engine.state.generations import Generation
from headrace.engine.state.state import StateDir
from headrace.plan.model import FlowPlan, SinkStep
from headrace.plan.planner import make_plan
from headrace.project.loader import load
from headrace.sinks.files import FilesSink
from headrace.testing.lists import ListSink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PROJECT = """
project: traps
streams:
  left:
    source: {{type: files, path: left, max_files_per_trigger: 1}}
    format: {{type: json, columns: "id bigint, at timestamp"}}
    event_time: {{column: at, watermark: 1s}}
  right:
    source: {{type: files, path: right, max_files_per_trigger: 1}}
    format: {{type: json, columns: "id bigint, at timestamp"}}
    event_time: {{column: at, watermark: 1s}}
flows:
  f:
    sql: {sql}
    output: {output}
    sinks: [{sink}]
    {keys}
"""
COPY = "SELECT id FROM left"
COUNT = "SELECT id % 4 AS k, count(*) AS n FROM (SELECT id FROM left UNION ALL SELECT id FROM right) AS b GROUP BY 1"


@dataclass
class Trap:
    """A project with one flow whose sinks a test may take the place of."""

    folder: Path
    spark: SparkSession
    fed: int = field(default=0)

    def write(self, sql: str, keys: str = "", sink: str = "noop", output: str = "append") -> None:
        text = PROJECT.format(sql=sql, keys=keys, sink=sink, output=output)
        (self.folder / "headrace.yaml").write_text(text)

    def feed(self, count: int = 10) -> None:
        for name in ("left", "right"):
            (self.folder / name).mkdir(exist_ok=True)
            rows = [{"id": n, "at": "2026-01-01T00:00:00Z"} for n in range(self.fed, self.fed + count)]
            (self.folder / name / f"{self.fed:04}.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
        self.fed += count

    @property
    def state(self) -> StateDir:
        return StateDir(self.folder / ".headrace")

    @property
    def generation(self) -> Generation:
        return self.state.current("f")

    def plan(self) -> FlowPlan:
        return make_plan(load(self.folder)).flow("f")

    def run(self, *sinks: Sink) -> None:
        """Run until caught up, into these sinks instead of the project's; the flow's error is raised."""
        flow = self.plan()
        if sinks:
            flow = replace(flow, sinks=tuple(SinkStep(f"s{n}", sink) for n, sink in enumerate(sinks)))
        query = FlowStarter(load(self.folder), self.state, self.spark, until_caught_up=True).start(flow)
        try:
            assert query.awaitTermination(300)
        except Exception as failure:
            raise from_query(flow, failure) from failure

    def anew(self) -> Generation:
        project = load(self.folder)
        return start_new_generation(project, self.state, detect_change(project, self.state, self.plan()))


@pytest.fixture
def trap(tmp_path: Path, spark: SparkSession) -> Trap:
    made = Trap(tmp_path, spark)
    made.feed()
    return made


class FailsOnce(ListSink):
    """Takes a batch, and then the engine dies: the batch is not committed."""

    _dead: bool = PrivateAttr(False)

    def write_batch(self, rows: DataFrame, batch: Batch) -> None:
        """Fail after the second batch is written."""
        super().write_batch(rows, batch)
        if batch.batch_id == 1 and not self._dead:
            self._dead = True
            raise RuntimeError("the engine dies here")


class Glances(Sink):
    """A custom sink that looks at one row of a batch only."""

    type: Literal["glances"] = "glances"

    def write_batch(self, rows: DataFrame, batch: Batch) -> None:
        """Read one row, so that tasks of other partitions never run."""
        rows.limit(1).collect()


def final(sink: ListSink) -> dict[int, int]:
    """The last count of each key."""
    return {row["k"]: row["n"] for row in sink.rows}


@pytest.mark.spark
def test_t2_the_offset_log_is_one_that_survives_a_crash_in_a_batch(trap: Trap) -> None:
    trap.write(COUNT, output="update")
    trap.feed()
    sink = FailsOnce()
    with pytest.raises(ProjectError, match="the engine dies here"):
        trap.run(sink)
    assert trap.generation.checkpoint.in_flight()
    logs = [file for file in (trap.generation.checkpoint_folder / "offsets").iterdir() if file.name.isdecimal()]
    assert {file.read_text().splitlines()[0] for file in logs} == {"v1"}
    trap.feed()
    trap.run(sink)
    assert final(sink) == {k: 2 * sum(n % 4 == k for n in range(30)) for k in range(4)}


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("spark.sql.streaming.offsetLog.formatVersion", "2"),
        ("spark.sql.streaming.queryEvolution.enableSourceEvolution", "true"),
        ("spark.sql.streaming.stateStore.stateSchemaCheck", "false"),
        ("spark.sql.streaming.checkpoint.verifyMetadataExists.enabled", "false"),
        ("spark.sql.adaptive.enabled", "true"),
        ("spark.databricks.delta.v2.enableMode", "AUTO"),
    ],
)
@pytest.mark.parametrize("place", ["flow", "project"])
def test_t2_t11_t17_t19_settings_that_open_a_trap_are_refused(
    tmp_path: Path, setting: str, value: str, place: str
) -> None:
    keys = f"spark: {{{setting}: {value}}}"
    text = PROJECT.format(sql=COPY, output="append", sink="noop", keys=keys if place == "flow" else "")
    if place == "project":
        text += f"spark: {{conf: {{{setting}: {value}}}}}\n"
    (tmp_path / "headrace.yaml").write_text(text)
    with pytest.raises(ProjectError) as refused:
        make_plan(load(tmp_path))
    assert refused.value.code == "spark-setting-refused"
    assert refused.value.where is not None


@pytest.mark.spark
def test_t4_a_setting_that_spark_would_ignore_is_refused(trap: Trap) -> None:
    provider = "spark.sql.streaming.stateStore.providerClass"
    trap.write(COUNT, output="update")
    trap.run(ListSink())
    other = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
    trap.write(COUNT, output="update", keys=f"spark: {{{provider}: {other}}}")
    with pytest.raises(ProjectError) as refused:
        trap.run(ListSink())
    assert (refused.value.code, int(refused.value.exit_code)) == ("pinned-setting", 5)
    assert other in str(refused.value)

    old = trap.generation
    old.describe(replace(old.manifest, pins=detect_change(load(trap.folder), trap.state, trap.plan()).pins))
    trap.feed()
    trap.run(ListSink())
    assert old.checkpoint.planned().settings[provider].endswith("RocksDBStateStoreProvider")  # type: ignore[union-attr]

    made = trap.anew()
    trap.run(ListSink())
    assert made.checkpoint.planned().settings[provider] == other  # type: ignore[union-attr]


@pytest.mark.spark
def test_t11_a_checkpoint_without_its_identity_is_refused(trap: Trap) -> None:
    trap.write(COPY, sink="{type: files, path: out, contains: json}")
    trap.run()
    metadata = trap.generation.checkpoint_folder / "metadata"
    kept = metadata.read_bytes()
    trap.feed()
    for spoil in (
        metadata.unlink,
        lambda: metadata.write_text('{"id": "another"}'),
        lambda: shutil.rmtree(metadata.parent),
    ):
        saved = trap.folder / "saved"
        shutil.copytree(metadata.parent, saved)
        spoil()
        with pytest.raises(ProjectError) as refused:
            trap.run()
        assert (refused.value.code, int(refused.value.exit_code)) == ("checkpoint-damaged", 5)
        shutil.rmtree(metadata.parent, ignore_errors=True)
        saved.rename(metadata.parent)
    assert metadata.read_bytes() == kept
    trap.run()
    assert sorted(ids(trap.folder / "out")) == list(range(20)), "no row is lost, none is there twice"


def ids(folder: Path) -> list[int]:
    return [json.loads(line)["id"] for file in folder.glob("*.json") for line in file.read_text().splitlines()]


@pytest.mark.spark
def test_t13_a_sink_that_reads_only_a_part_loses_nothing_of_what_is_kept(trap: Trap) -> None:
    trap.write(COUNT, output="update")
    trap.run(Glances())
    trap.feed()
    sink = ListSink()
    trap.run(sink)
    assert final(sink) == {k: 2 * sum(n % 4 == k for n in range(20)) for k in range(4)}


@pytest.mark.spark
def test_t15_a_new_generation_adds_to_the_folder_of_the_old(trap: Trap) -> None:
    trap.write(COPY, sink="{type: files, path: out, contains: json}")
    trap.run()
    trap.anew()
    trap.feed()
    trap.run()
    assert sorted(ids(trap.folder / "out")) == sorted([*range(10), *range(20)])
    assert not list((trap.folder / "out").rglob("_spark_metadata")), "Spark's own file sink would skip batches by it"
    assert "writer" not in dir(FilesSink)


@pytest.mark.spark
def test_t17_lake_tables_are_read_by_deltas_first_reader(trap: Trap) -> None:
    trap.write(COPY, sink="{type: lake, path: lake/f}")
    trap.run()
    text = (trap.folder / "headrace.yaml").read_text()
    reader = (
        "  g:\n    sql: SELECT id FROM f\n    sinks: [noop]\n  h:\n    sql: SELECT id FROM held\n    sinks: [noop]\n"
    )
    held = "streams:\n  held: {source: {type: lake, path: lake/f}}\n"
    (trap.folder / "headrace.yaml").write_text(text.replace("streams:\n", held) + reader)
    project = load(trap.folder)
    plan = make_plan(project)
    starter = FlowStarter(project, trap.state, trap.spark, until_caught_up=True)
    for name in ("g", "h"):
        rows: Any = starter.rows(plan.flow(name))
        logical = rows._jdf.queryExecution().analyzed().toString()
        assert "StreamingRelation delta" in logical
        assert "StreamingRelationV2" not in logical


def test_t18_a_kafka_partition_is_never_split(tmp_path: Path) -> None:
    for option in ("minPartitions", "maxRecordsPerPartition"):
        source = f"{{type: kafka, brokers: [a:1], topic: t, options: {{{option}: '9'}}}}"
        text = f"project: p\nstreams:\n  s:\n    source: {source}\n    format: json\n"
        (tmp_path / "headrace.yaml").write_text(text)
        with pytest.raises(ProjectError, match=option):
            load(tmp_path)


@pytest.mark.spark
def test_t19_partitions_of_a_flow_do_not_vary(trap: Trap) -> None:
    trap.write(COUNT, output="update", keys="partitions: 3")

    class Counts(ListSink):
        _partitions: list[int] = PrivateAttr(default_factory=list)

        def write_batch(self, rows: DataFrame, batch: Batch) -> None:
            assert rows.sparkSession.conf.get("spark.sql.adaptive.enabled") == "false"
            self._partitions.append(rows.rdd.getNumPartitions())
            super().write_batch(rows, batch)

    sink = Counts()
    trap.run(sink)
    assert set(sink._partitions) == {3}
