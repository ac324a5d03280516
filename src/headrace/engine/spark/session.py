"""The Spark session of a project, with defaults for a laptop that also suit a cluster."""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError, Py4JNetworkError  # type: ignore[import-untyped]
from pyspark import SparkConf, SparkContext
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

import headrace
from headrace.core.errors import ProjectError
from headrace.core.files.object_store import ObjectStore
from headrace.engine.spark.acceleration import CLASS_PATH, Acceleration, acceleration_of
from headrace.engine.spark.fork_server import start_fork_server
from headrace.engine.spark.jars import engine_jars, require_jars, require_java
from headrace.engine.spark.java_helpers import cache_missing_classes
from headrace.engine.spark.scratch import record_jvm, scratch_folder
from headrace.project.model import SparkSpec

_LOG = logging.getLogger(__name__)
_LOG4J = Path(__file__).parent / "log4j2.properties"
# some systems limit the address of a Unix socket to 104 bytes, of which the name that Spark chooses takes 43
_SOCKET_FOLDER_LENGTH = 60
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"

DEFAULTS: Mapping[str, str] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # tables have few files; with the default of 50 partitions a commit took 12 s
    "spark.databricks.delta.snapshotPartitions": "1",
    # Delta's DSv2 reader returns wrong rows after a restart
    "spark.databricks.delta.v2.enableMode": "NONE",
    # a batch that runs again must have the same number of partitions
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.stateStore.rocksdb.boundedMemoryUsage": "true",
    # of all flows together; the operating system caches the rest of a large state
    "spark.sql.streaming.stateStore.rocksdb.maxMemoryUsageMB": "64",
    # limits the memory that a long-running driver spends on finished work
    "spark.sql.ui.retainedExecutions": "20",
    "spark.ui.retainedJobs": "50",
    "spark.ui.retainedStages": "50",
    "spark.sql.streaming.ui.retainedProgressUpdates": "20",
    "spark.sql.streaming.numRecentProgressUpdates": "50",
    # progress events without a batch; Headrace ignores them, and the one at the start of a query cannot be turned off
    "spark.sql.streaming.noDataProgressEventInterval": "1h",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "50000",
    # every batch looks up its generated classes again; with the default of 100 entries four flows evict each other's
    # classes, which are then generated and compiled again
    "spark.sql.codegen.cache.maxEntries": "1000",
    # a batch that exceeds Arrow's memory fails only its flow, which then takes smaller batches. By default it ends the
    # process, because an OutOfMemoryError is among its causes. An OutOfMemoryError of the JVM itself still ends it.
    "spark.executor.killOnFatalError.depth": "1",
}


def settings(
    spec: SparkSpec,
    log_file: Path,
    jars: Sequence[Path],
    scratch: Path | None = None,
    acceleration: Acceleration | None = None,
) -> dict[str, str]:
    """All Spark settings of a project, computed without Spark. `scratch` is for files that end with this process."""
    added = acceleration or Acceleration()
    java_options = " ".join([*_java_options(log_file, scratch), *added.archive_options])
    own = {
        **DEFAULTS,
        **added.settings(),
        "spark.driver.memory": spec.memory,
        _JAVA_OPTIONS: java_options,
        "spark.jars": ",".join(str(jar) for jar in jars),
    }
    if scratch is not None:
        own["spark.local.dir"] = str(scratch)
        # Over TCP, also on loopback, a task and its Python worker can deadlock when both write faster than the other
        # reads: Linux drops packets beyond a full buffer, and with them the acknowledgements that they carry.
        if _fits_socket(scratch):
            own["spark.python.unix.domain.socket.enabled"] = "true"
    if spec.master.startswith("local"):
        own |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
        # only compared when a stage runs again because an executor was lost; a local master has one executor
        own["spark.sql.shuffle.orderIndependentChecksum.enabled"] = "false"
    merged = {**own, **spec.conf}
    if _JAVA_OPTIONS in spec.conf:
        merged[_JAVA_OPTIONS] = f"{java_options} {spec.conf[_JAVA_OPTIONS]}"
    if CLASS_PATH in own and CLASS_PATH in spec.conf:
        merged[CLASS_PATH] = os.pathsep.join([own[CLASS_PATH], spec.conf[CLASS_PATH]])
    return merged


def _java_options(log_file: Path, scratch: Path | None) -> list[str]:
    return [
        # with two or four cores a parallel collector costs less CPU than G1's concurrent threads
        "-XX:+UseParallelGC",
        f"-Dlog4j2.configurationFile=file:{_LOG4J}",
        f"-Dheadrace.log={log_file}",
        f"-Dderby.system.home={log_file.parent}",
        *([f"-Djava.io.tmpdir={scratch}"] if scratch else []),
    ]


def _fits_socket(folder: Path) -> bool:
    return len(str(folder)) <= _SOCKET_FOLDER_LENGTH


def start_session(spec: SparkSpec, name: str, log_dir: Path, store: ObjectStore | None = None) -> SparkSession:
    """Start Spark. The JVM writes its messages to `engine.log` in `log_dir`. With a store, `s3a://` paths work."""
    require_java()
    log_dir.mkdir(parents=True, exist_ok=True)
    log_file = (log_dir / "engine.log").absolute()
    scratch = scratch_folder()
    jars = [*engine_jars(), *(require_jars("s3") if store is not None else ())]
    acceleration = acceleration_of(spec)
    options = settings(spec, log_file, jars, scratch, acceleration)
    # with one arena per thread, the default, the C library keeps memory that RocksDB and Arrow have freed: the process
    # grew for as long as it ran
    os.environ.setdefault("MALLOC_ARENA_MAX", "2")
    options["spark.app.name"] = f"headrace {name}"
    options["spark.master"] = spec.master
    options["spark.sql.warehouse.dir"] = str(log_dir.absolute() / "warehouse")
    try:
        with _output_to(log_file), _keep_ctrl_c_handler():
            # PySpark reads the path of the workers' Python from the environment, not from its settings
            os.environ["PYSPARK_PYTHON"] = options.get("spark.pyspark.python") or _python(acceleration, scratch)
            spark = _create(options, acceleration)
    except Exception as error:
        raise ProjectError(
            "spark-not-started",
            f"Spark did not start on {spec.master}: {str(error).splitlines()[0][:300]}",
            hint=f"see {log_file}, and run: headrace doctor",
        ) from error
    _quiet_accumulators(spark)
    _silence_query_traces()
    if scratch is not None:
        record_jvm(scratch, spark.sparkContext._gateway.proc.pid)  # type: ignore[union-attr]
    if not spec.master.startswith("local"):
        _ship_package(spark, scratch)
    if store is not None:
        configure_store(spark, store)
    return spark


def _python(acceleration: Acceleration, scratch: Path | None) -> str:
    """The command that Spark starts as Python."""
    if acceleration.fork_python and scratch is not None and _fits_socket(scratch):
        return start_fork_server(scratch)
    return sys.executable


def _create(options: Mapping[str, str], acceleration: Acceleration) -> SparkSession:
    conf = SparkConf().setAll(list(options.items()))
    SparkContext._ensure_initialized(conf=conf)
    if acceleration.helpers is not None:
        cache_missing_classes(SparkContext._jvm)
    return SparkSession.builder.config(conf=conf).getOrCreate()


def configure_store(spark: SparkSession, store: ObjectStore) -> None:
    """Give Hadoop the credentials of a store. Session settings would show them on the command line of Java."""
    configuration = spark.sparkContext._jsc.hadoopConfiguration()
    for key, value in store.hadoop_settings().items():
        configuration.set(key, value)


def stop_session(spark: SparkSession) -> None:
    """Stop Spark; its process may have died already."""
    with suppress(Py4JError, ConnectionError):
        spark.stop()


def is_lost(error: Exception) -> bool:
    """Whether an error of a call into Spark means that Spark's process is gone."""
    if isinstance(error, Py4JNetworkError | ConnectionError):
        return True
    # an error that the JVM reported has a trace
    return type(error) is Py4JError and "Trace:" not in str(error)


def _quiet_accumulators(spark: SparkSession) -> None:
    """Spark reopens a closed accumulator connection, so PySpark need not print a trace when one closes."""

    def log_error(_request: Any, _address: Any) -> None:
        _LOG.debug("an accumulator connection was closed", exc_info=True)

    spark.sparkContext._accumulatorServer.handle_error = log_error  # type: ignore[assignment,method-assign]


def _silence_query_traces() -> None:
    """PySpark prints a trace for every query that fails analysis; Headrace reports these as errors."""
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL + 1)


@contextmanager
def _keep_ctrl_c_handler() -> Iterator[None]:
    """A new Spark context installs a handler that cancels all jobs in the middle of their batches."""
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, handler)


@contextmanager
def _output_to(log_file: Path) -> Iterator[None]:
    """Let a JVM started in this block write to the log file: some libraries print, and stdout is for data."""
    sys.stdout.flush()
    sys.stderr.flush()
    originals = {number: os.dup(number) for number in (1, 2)}
    try:
        with log_file.open("ab") as log:
            for number in originals:
                os.dup2(log.fileno(), number)
        yield
    finally:
        for number, original in originals.items():
            os.dup2(original, number)
            os.close(original)


def _ship_package(spark: SparkSession, parent: Path | None) -> None:
    """Send this package to the executors, so that they need only the libraries that it depends on."""
    folder = Path(headrace.__file__).parent
    with tempfile.TemporaryDirectory(dir=parent) as scratch:
        copy = Path(scratch) / "root" / "headrace"
        shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("__pycache__"))
        archive = shutil.make_archive(str(Path(scratch) / "headrace"), "zip", copy.parent)
        package = Path(tempfile.mkdtemp(dir=parent)) / "headrace.zip"
        shutil.move(archive, package)
    atexit.register(shutil.rmtree, package.parent, ignore_errors=True)
    spark.sparkContext.addPyFile(str(package))
