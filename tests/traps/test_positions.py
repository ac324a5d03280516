"""Traps of Spark around positions: T10 (marks of a new checkpoint), T12 (retention in batches), T16 (Kafka reads)."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer
from tests.system.conftest import RunProject, produce, run_project

from headrace.cli.main import main
from headrace.core.errors import Exit, ProjectError
from headrace.engine.state.state import StateDir

if TYPE_CHECKING:
    from headrace.testing.services import Kafka

pytestmark = pytest.mark.spark
__all__ = ["run_project"]


def rows_of(folder: Path) -> list[int]:
    files = (folder / "out").glob("*.json")
    return sorted(json.loads(line)["n"] for file in files for line in file.read_text().splitlines())


def kafka_project(folder: Path, kafka: Kafka, topic: str, **flow: str) -> Path:
    settings = "".join(f"    {name}: {value}\n" for name, value in flow.items())
    (folder / "headrace.yaml").write_text(f"""
project: traps
streams:
  numbers:
    source: {{type: kafka, brokers: {kafka.address}, topic: {topic}}}
    format: {{type: json, columns: "n bigint"}}
flows:
  copy:
    sql: SELECT n FROM numbers
    sinks: [{{type: files, path: out, contains: json}}]
{settings}""")
    return folder


def numbers(*values: int) -> list[bytes]:
    return [json.dumps({"n": value}).encode() for value in values]


def test_t10_a_new_generation_is_not_taken_for_batches_already_written(
    tmp_path: Path, run_project: RunProject, capsys: pytest.CaptureFixture[str]
) -> None:
    """Batch ids begin at 0 again; a Delta table that knew only them would skip the rows in silence."""
    from deltalake import DeltaTable

    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_bytes(b"\n".join(numbers(1, 2, 3)))
    (tmp_path / "headrace.yaml").write_text("""
project: traps
streams:
  numbers: {source: {type: files, path: in}, format: {type: json, columns: "n bigint"}}
flows:
  copy: {sql: SELECT n FROM numbers, sinks: [{type: lake, path: lake/copy}]}
  down: {sql: SELECT n FROM copy, sinks: [{type: files, path: out, contains: json}]}
""")
    run_project(tmp_path)
    assert main(["rewind", "-p", str(tmp_path), "copy", "--to", "earliest", "--yes"]) == Exit.OK
    run_project(tmp_path)
    table = DeltaTable(str(tmp_path / "lake" / "copy"))
    assert sorted(table.to_pyarrow_table()["n"].to_pylist()) == [1, 1, 2, 2, 3, 3]
    assert main(["rewind", "-p", str(tmp_path), "copy", "--to", "latest", "--yes"]) == Exit.CONFLICT, "files cannot"

    # the flow that reads the table can begin at any of its versions
    assert rows_of(tmp_path) == [1, 1, 2, 2, 3, 3]
    capsys.readouterr()
    assert main(["offsets", "show", "-p", str(tmp_path), "down", "--json"]) == Exit.OK
    (flow,) = json.loads(capsys.readouterr().out)["flows"]
    assert (flow["lag"], flow["lag_s"], flow["partitions"][0]["committed"]) == (0, 0, 2)
    assert main(["offsets", "reset", "-p", str(tmp_path), "down", "--to-offset", "1", "--execute"]) == Exit.OK
    run_project(tmp_path, "down")
    assert rows_of(tmp_path) == [1, 1, 1, 2, 2, 2, 3, 3, 3]


@pytest.mark.service
def test_t12_one_can_go_back_behind_the_batches_spark_has_kept(
    tmp_path: Path, kafka: Kafka, topic: Callable[..., str], run_project: RunProject
) -> None:
    """Spark forgets batches by their number: a hundred, or two here. Positions do not come from there."""
    source = topic()
    kept = '{"spark.sql.streaming.minBatchesToRetain": "2"}'
    folder = kafka_project(tmp_path, kafka, source, max_records="5", spark=kept)
    produce(kafka, source, numbers(*range(40)))
    run_project(folder)
    checkpoint = StateDir(folder / ".headrace").current("copy").checkpoint
    until = time.monotonic() + 120
    while checkpoint.batch(0) is not None and time.monotonic() < until:
        time.sleep(0.1)  # Spark forgets in a thread of its own
    assert checkpoint.batch(0) is None, "the trap is there"
    assert main(["offsets", "reset", "-p", str(folder), "copy", "--to-offset", "12", "--execute"]) == Exit.OK
    run_project(folder)
    assert rows_of(folder) == sorted([*range(40), *range(12, 40)])


@pytest.mark.service
def test_t16_aborted_records_and_recreated_topics(
    tmp_path: Path,
    kafka: Kafka,
    topic: Callable[..., str],
    run_project: RunProject,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Kafka's readers see aborted records by default, and a topic made anew looks like one with more records."""
    source = topic()
    producer = Producer({"bootstrap.servers": kafka.address, "transactional.id": source})
    producer.init_transactions(30)
    for value, good in ((1, True), (2, False), (3, True), (4, False)):
        producer.begin_transaction()
        producer.produce(source, numbers(value)[0])
        if good:
            producer.commit_transaction(30)
        else:
            producer.flush(30)
            producer.abort_transaction(30)
    folder = kafka_project(tmp_path, kafka, source)
    run_project(folder)
    assert rows_of(folder) == [1, 3]
    capsys.readouterr()
    assert main(["offsets", "show", "-p", str(folder), "copy", "--json"]) == Exit.OK
    (flow,) = json.loads(capsys.readouterr().out)["flows"]
    assert (flow["lag"], flow["lag_s"]) == (0, 0), "markers of transactions are nothing to wait for"

    admin = kafka.admin()
    admin.delete_topics([source])[source].result(30)
    until = time.monotonic() + 120
    while source in admin.list_topics(timeout=60).topics and time.monotonic() < until:
        time.sleep(0.1)  # a topic goes by itself
    kafka.create_topic(source, 1)
    produce(kafka, source, numbers(*range(10, 30)))  # more than the flow has read: offsets alone would not tell
    with pytest.raises(ProjectError) as refused:
        run_project(folder)
    assert (refused.value.code, refused.value.exit_code) == ("topic-recreated", Exit.CONFLICT)
    assert main(["rewind", "-p", str(folder), "copy", "--to", "earliest", "--yes"]) == Exit.OK
    run_project(folder)
    assert rows_of(folder) == [1, 3, *range(10, 30)]
