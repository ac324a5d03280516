"""What tests share: a Spark session of each process, and one of each server that is slow to start for all of them.

The first that asks starts it, and the process that all others belong to ends it.
"""

from __future__ import annotations

import fcntl
import os
import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import psutil
import pytest
from hypothesis import HealthCheck, settings

from headrace.core.context import Context
from headrace.core.errors import ProjectError
from headrace.testing.services import S3, Kafka, OpenSearch, Service

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SLOW = ("spark", "service", "cluster")
ALL_SLOW = re.compile(rf"^pytestmark = .*\bpytest\.mark\.({'|'.join(SLOW)})\b", re.MULTILINE)
SharedService = TypeVar("SharedService", bound=Service)

# A JVM of a test lives for seconds or minutes: without its second compiler it takes about half the processor time. It
# then has room for 48 MB of compiled code, which a shared session fills in some minutes: from there on it would throw
# away what it soon compiles again, which took a quarter of its time.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m")
# HEADRACE_ACCELERATE=0 runs all tests as with `spark.accelerate: false`, in this process and in those that tests start.
ACCELERATED = os.environ.get("HEADRACE_ACCELERATE") != "0"
if not ACCELERATED:
    from tests.faults.planting import planted_environment

    from headrace.engine.spark import session
    from headrace.engine.spark.acceleration import Acceleration

    session.acceleration_of = lambda _spec: Acceleration()
    os.environ["PYTHONPATH"] = planted_environment()["PYTHONPATH"]
# On a busy machine an example takes any time, and says nothing by it.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


def unavailable(problem: ProjectError) -> None:
    """What cannot run here is skipped, except in CI, where everything must run."""
    if os.environ.get("CI") == "true":
        raise problem
    pytest.skip(str(problem))


@contextmanager
def frozen(port: int) -> Iterator[None]:
    """A server that stands still: the process that listens there and all that it has started."""
    listens = next(c.pid for c in psutil.net_connections("tcp") if c.laddr.port == port and c.status == "LISTEN")
    processes = [psutil.Process(listens), *psutil.Process(listens).children(recursive=True)]
    for process in processes:
        process.suspend()
    try:
        yield
    finally:
        for process in processes:
            process.resume()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """In a run without slow tests, files that have no others are not loaded: each worker would rewrite all of them."""
    if collection_path.suffix != ".py" or any(f"not {name}" not in config.option.markexpr for name in SLOW):
        return None
    return True if ALL_SLOW.search(collection_path.read_text(encoding="utf-8")) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first, those with nothing but fast tests last: at the end one worker would wait for the other.

    With `--dist loadfile` this holds only under `--no-loadscope-reorder`: else files with many tests go first, and the
    longest have one.
    """
    order = ("faults", "system", "views")
    slow = {item.path for item in items if any(item.get_closest_marker(name) for name in SLOW)}

    def place(item: pytest.Item) -> int:
        if item.path not in slow:
            return len(order) + 1
        return next((n for n, part in enumerate(order) if part in item.path.parts), len(order))

    items.sort(key=place)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How much was tried of what is random: tests say it as properties, so that it comes from other processes too."""
    said = [dict(report.user_properties) for report in terminalreporter.getreports("passed")]
    told = [one for one in said if "view cases" in one]
    if told:
        total = sum(one["view cases"] for one in told)
        terminalreporter.write_line(f"views: {total} random cases of {len(told)} shapes, seed {told[0]['view seed']}")


@pytest.fixture(scope="session")
def accelerated() -> None:
    """Of tests that are about an acceleration of Spark."""
    if not ACCELERATED:
        pytest.skip("HEADRACE_ACCELERATE=0")


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The engine's own session, with two slots."""
    from headrace.engine.spark.jars import JarSet, engine_jars
    from headrace.engine.spark.session import start_session
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


def started(service: SharedService) -> SharedService:
    """A server that all processes of a test run use: it is known by its folder."""
    problem = service.problem()
    if problem is not None:
        unavailable(problem)
    with service.home.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return service.start()


def shared_services(config: pytest.Config) -> tuple[Kafka, OpenSearch]:
    """Those that take long to start, in the folder of the whole test run: those of pytest-xdist's workers are in it.

    A test that stops or freezes a server does so with one of its own.
    """
    folder: Path = config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]  # as pytest-xdist asks for it
    if hasattr(config, "workerinput"):
        folder = folder.parent
    return Kafka(folder / "kafka", users={"alice": "wonder-land"}, ssl=True), OpenSearch(folder / "opensearch")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """The process that has waited for all others ends what they shared."""
    if not hasattr(session.config, "workerinput"):
        for service in shared_services(session.config):
            service.remove()


@pytest.fixture(scope="session")
def kafka(pytestconfig: pytest.Config) -> Kafka:
    """A broker with a plain, a SASL (user alice) and a TLS listener; each test has topics of its own."""
    return started(shared_services(pytestconfig)[0])


@pytest.fixture(scope="session")
def opensearch(pytestconfig: pytest.Config) -> OpenSearch:
    """A node; each test has indices of its own."""
    return started(shared_services(pytestconfig)[1])


@pytest.fixture
def own_kafka() -> Iterator[Kafka]:
    """A broker that a test may stop or freeze."""
    problem = Kafka.problem()
    if problem is not None:
        unavailable(problem)
    with Kafka() as broker:
        yield broker


@pytest.fixture(scope="session")
def s3() -> Iterator[S3]:
    """An object store; Spark's session has what it takes to reach it."""
    from headrace.engine.spark.jars import require_jars

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


@pytest.fixture
def context(tmp_path: Path) -> Context:
    """A project in an empty folder."""
    return Context(tmp_path, str(tmp_path / "state"))
