"""What tests share: one Spark session and one Kafka broker for the whole run, each started by the first that asks."""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headrace.core.errors import ProjectError
from headrace.engine.jars import engine_jars
from headrace.testing.services import Kafka

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def unavailable(problem: ProjectError) -> None:
    """What cannot run here is skipped, except in CI, where everything must run."""
    if os.environ.get("CI") == "true":
        raise problem
    pytest.skip(str(problem))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A local session with two slots and the engine's jars."""
    try:
        jars = engine_jars()
    except ProjectError as problem:
        unavailable(problem)
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    home = tmp_path_factory.mktemp("spark")
    settings = {
        "spark.jars": ",".join(map(str, jars)),
        "spark.driver.memory": "1g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(home / "warehouse"),
        "spark.local.dir": str(home / "local"),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.databricks.delta.snapshotPartitions": "1",
        "spark.databricks.delta.v2.enableMode": "NONE",
    }
    builder = SparkSession.builder.master("local[2]").appName("headrace tests")
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def kafka() -> Iterator[Kafka]:
    """A broker with a plain, a SASL (user alice) and a TLS listener."""
    problem = Kafka.problem()
    if problem is not None:
        unavailable(problem)
    with Kafka(users={"alice": "wonder-land"}, ssl=True) as broker:
        yield broker


@pytest.fixture
def topic(kafka: Kafka) -> Callable[..., str]:
    """Makes topics of the test's own: `topic(partitions=4)` gives a name."""

    def make(partitions: int = 1, **settings: str) -> str:
        name = f"test-{uuid.uuid4().hex[:10]}"
        kafka.create_topic(name, partitions, **settings)
        return name

    return make


@pytest.fixture
def state(tmp_path: Path) -> str:
    """A folder for the state of flows."""
    return str(tmp_path / "state")
