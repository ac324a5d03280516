"""Projects on a Spark standalone cluster: a master and two workers of their own processes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable
from tests.system.conftest import consume, produce

from headrace.testing.services import Spark

if TYPE_CHECKING:
    from headrace.testing.services import Kafka

pytestmark = [pytest.mark.cluster, pytest.mark.service]

QUICKSTART = Path(__file__).parents[2] / "examples" / "quickstart"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Spark]:
    with Spark(workers=2) as started:
        yield started


def run(folder: Path, cluster: Spark, *settings: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "headrace", "run", str(folder), "--until-caught-up", "--json"]
    for setting in (f"spark.master={cluster.url}", "spark.conf={spark.executor.memory: 600m}", *settings):
        command += ["--set", setting]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return document


def test_the_quickstart_runs_on_a_cluster(tmp_path: Path, cluster: Spark) -> None:
    folder = tmp_path / "quickstart"
    shutil.copytree(QUICKSTART, folder, ignore=shutil.ignore_patterns("lake", ".headrace"))
    counts = [f"streams.{name}.source.count=6000" for name in ("bookings", "payments")]
    document = run(folder, cluster, *counts)
    assert {flow["flow"]: flow["rows_in"] for flow in document["flows"]} == dict.fromkeys(
        ("bookings_per_service", "payments_by_method", "big_rides"), 6000
    )
    letters = next(f["dead_letters"] for f in document["flows"] if f["flow"] == "bookings_per_service")
    assert 30 < letters < 90
    windows = DeltaTable(str(folder / "lake" / "bookings_per_service")).to_pyarrow_table()
    assert windows.num_rows > 3
    applications = cluster.status()["completedapps"]
    assert [app["name"] for app in applications] == ["headrace quickstart"]


def test_a_kafka_flow_runs_on_a_cluster(
    tmp_path: Path, cluster: Spark, kafka: Kafka, topic: Callable[..., str]
) -> None:
    source, target = topic(partitions=2), topic(partitions=2)
    produce(kafka, source, [json.dumps({"n": n}).encode() if n % 50 else b"bad" for n in range(5000)])
    (tmp_path / "headrace.yaml").write_text(
        f"""
project: clustered
streams:
  numbers:
    source: {{type: kafka, brokers: {kafka.address}, topic: {source}}}
    format: {{type: json, columns: n bigint}}
flows:
  even:
    sql: SELECT n FROM numbers WHERE n % 2 = 0
    sinks: [{{type: kafka, brokers: {kafka.address}, topic: {target}, key: n, delivery: exactly_once}}]
"""
    )
    document = run(tmp_path, cluster)
    found = sorted(json.loads(message.value())["n"] for message in consume(kafka, target))
    assert found == [n for n in range(0, 5000, 2) if n % 50]
    assert document["flows"][0]["dead_letters"] == 100
