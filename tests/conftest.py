"""What tests share: one Spark session and one Kafka broker for the whole run, each started by the first that asks."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headrace.core.errors import ProjectError
from headrace.testing.services import S3, Kafka

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def unavailable(problem: ProjectError) -> None:
    """What cannot run here is skipped, except in CI, where everything must run."""
    if os.environ.get("CI") == "true":
        raise problem
    pytest.skip(str(problem))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest first: at the end one worker would wait for the other."""
    items.sort(key=lambda item: "/faults/" not in item.path.as_posix())


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The engine's own session, with two slots."""
    from headrace.engine.jars import JarSet, engine_jars
    from headrace.engine.session import start_session
    from headrace.project.model import SparkSpec

    try:
        objects = JarSet.named("s3")
        jars = [*engine_jars(), *(objects.paths() if objects.is_present() else ())]
        conf = {
            "spark.sql.shuffle.partitions": "2",
            "spark.local.dir": str(tmp_path_factory.mktemp("local")),
            "spark.jars": ",".join(map(str, jars)),
        }
        session = start_session(SparkSpec(master="local[2]", conf=conf), "tests", tmp_path_factory.mktemp("spark"))
    except ProjectError as problem:
        unavailable(problem)
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


@pytest.fixture(scope="session")
def s3() -> Iterator[S3]:
    """An object store; Spark's session has what it takes to reach it."""
    from headrace.engine.jars import require_jars

    problem = S3.problem()
    if problem is not None:
        unavailable(problem)
    try:
        require_jars("s3")
    except ProjectError as missing:
        unavailable(missing)
    with S3() as store:
        yield store


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
