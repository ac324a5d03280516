"""One Spark session for a whole project, with defaults that suit a laptop and hold on a cluster."""

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
from typing import TYPE_CHECKING, Any

import headrace
from headrace.core.errors import ProjectError
from headrace.core.files.object_store import ObjectStore
from headrace.engine.spark import workers
from headrace.engine.spark.class_archive import java_options
from headrace.engine.spark.fork_server import forking_python
from headrace.engine.spark.jars import engine_jars, require_jars, require_java
from headrace.engine.spark.java_helpers import CLASS_PATH, own_settings, remember_missing_classes
from headrace.engine.spark.scratch import remember_jvm, scratch_folder
from headrace.project.model import SparkSpec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOG = logging.getLogger(__name__)
_LOG4J = Path(__file__).parent / "log4j2.properties"
# an address has at most 104 bytes on some systems, of which the name that Spark makes up takes 43
_SOCKET_FOLDER_LENGTH = 60
_DAEMON = "spark.python.daemon.module"

DEFAULTS: Mapping[str, str] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # a table of a few files must not be planned like a warehouse: commits took 12 s without it
    "spark.databricks.delta.snapshotPartitions": "1",
    # Delta's second reader has known wrong answers on restart
    "spark.databricks.delta.v2.enableMode": "NONE",
    # the number of partitions is part of what a replayed batch must repeat
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.stateStore.rocksdb.boundedMemoryUsage": "true",
    # of all flows together; the rest of a large state is the operating system's to keep at hand
    "spark.sql.streaming.stateStore.rocksdb.maxMemoryUsageMB": "64",
    # what a long-running driver remembers about finished work
    "spark.sql.ui.retainedExecutions": "20",
    "spark.ui.retainedJobs": "50",
    "spark.ui.retainedStages": "50",
    "spark.sql.streaming.ui.retainedProgressUpdates": "20",
    "spark.sql.streaming.numRecentProgressUpdates": "50",
    # reports on batches that never were: one at the start of a query cannot be helped, more would only be passed over
    "spark.sql.streaming.noDataProgressEventInterval": "1h",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "50000",
    # every batch asks for its generated classes again: with room for a hundred, as is usual, four flows push out each
    # other's, which are then made and compiled anew
    "spark.sql.codegen.cache.maxEntries": "1000",
    # a batch that does not fit into Arrow's memory fails its flow, which then takes smaller ones; by default it ends
    # the whole process, as its cause is an OutOfMemoryError. One that is the failure itself still does.
    "spark.executor.killOnFatalError.depth": "1",
}


def settings(
    spec: SparkSpec,
    log_file: Path,
    jars: Sequence[Path],
    scratch: Path | None = None,
    java: Sequence[str] = (),
    own_classes: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """All Spark settings of a project; `scratch` is for what ends with this process. Pure, so a test needs no Spark."""
    flags = [
        # with two or four cores a parallel collector costs less CPU than G1's concurrent threads
        "-XX:+UseParallelGC",
        f"-Dlog4j2.configurationFile=file:{_LOG4J}",
        f"-Dheadrace.log={log_file}",
        "-Dderby.system.home=" + str(log_file.parent),
        *([f"-Djava.io.tmpdir={scratch}"] if scratch else []),
        *java,
    ]
    own = {
        **DEFAULTS,
        **(own_classes or {}),
        "spark.driver.memory": spec.memory,
        "spark.driver.extraJavaOptions": " ".join(flags),
        "spark.jars": ",".join(str(jar) for jar in jars),
    }
    if scratch is not None:
        own["spark.local.dir"] = str(scratch)
        # over TCP, even on loopback, a task and its Python worker that both write faster than the other reads can wait
        # for each other for ever: Linux drops what is beyond a full buffer, together with the answers that it carries
        if len(str(scratch)) <= _SOCKET_FOLDER_LENGTH:
            own["spark.python.unix.domain.socket.enabled"] = "true"
    if spec.master.startswith("local"):
        own |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
        # compared when a stage runs again because an executor was lost: here there is but one
        own["spark.sql.shuffle.orderIndependentChecksum.enabled"] = "false"
        # elsewhere the package arrives after the daemon has begun; and only Linux forks what has loaded libraries
        if sys.platform == "linux" and "spark.pyspark.python" not in spec.conf:
            own[_DAEMON] = workers.MODULE
    merged = {**own, **spec.conf}
    if "spark.driver.extraJavaOptions" in spec.conf:
        merged["spark.driver.extraJavaOptions"] = " ".join([*flags, spec.conf["spark.driver.extraJavaOptions"]])
    if CLASS_PATH in own and CLASS_PATH in spec.conf:
        merged[CLASS_PATH] = os.pathsep.join([own[CLASS_PATH], spec.conf[CLASS_PATH]])
    return merged


def start_session(spec: SparkSpec, name: str, log_dir: Path, store: ObjectStore | None = None) -> SparkSession:
    """The session, its JVM's own messages going to `engine.log` in `log_dir`. With a store it knows `s3a://`."""
    require_java()
    log_dir.mkdir(parents=True, exist_ok=True)
    log_file = (log_dir / "engine.log").absolute()
    scratch = scratch_folder()
    jars = [*engine_jars(), *(require_jars("s3") if store is not None else ())]
    options = settings(spec, log_file, jars, scratch, java_options(), own_settings(spec.master))
    # with an arena per thread, as is usual, the C library keeps what RocksDB and Arrow gave back: the process grew for
    # as long as it ran
    os.environ.setdefault("MALLOC_ARENA_MAX", "2")
    options["spark.app.name"] = f"headrace {name}"
    options["spark.master"] = spec.master
    options["spark.sql.warehouse.dir"] = str(log_dir.absolute() / "warehouse")
    try:
        with _output_to(log_file), _own_ctrl_c():
            # PySpark asks the environment, not its settings, which Python runs the workers
            os.environ["PYSPARK_PYTHON"] = options.get("spark.pyspark.python") or _python(options, scratch)
            spark = _started(options)
    except Exception as error:
        raise ProjectError(
            "spark-not-started",
            f"Spark did not start on {spec.master}: {str(error).splitlines()[0][:300]}",
            hint=f"see {log_file}, and run: headrace doctor",
        ) from error
    _quiet_accumulators(spark)
    _keep_traces_away()
    if scratch is not None:
        remember_jvm(scratch, spark.sparkContext._gateway.proc.pid)  # type: ignore[union-attr]
    if not spec.master.startswith("local"):
        _ship_package(spark, scratch)
    if store is not None:
        reach(spark, store)
    return spark


def _python(options: Mapping[str, str], scratch: Path | None) -> str:
    """Where workers have their libraries loaded before they are forked, so have all other Python processes of Spark."""
    if scratch is not None and len(str(scratch)) <= _SOCKET_FOLDER_LENGTH and options.get(_DAEMON) == workers.MODULE:
        return forking_python(scratch)
    return sys.executable


def _started(options: Mapping[str, str]) -> SparkSession:
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    conf = SparkConf().setAll(list(options.items()))
    SparkContext._ensure_initialized(conf=conf)
    remember_missing_classes(SparkContext._jvm)
    return SparkSession.builder.config(conf=conf).getOrCreate()


def reach(spark: SparkSession, store: ObjectStore) -> None:
    """Tell Hadoop's client how to reach a store. Not as settings of the session: they stand on Java's command line."""
    known = spark.sparkContext._jsc.hadoopConfiguration()
    for key, value in store.hadoop_settings().items():
        known.set(key, value)


def stop_session(spark: SparkSession) -> None:
    """Stop Spark, or what is left of it when its process has died."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]

    with suppress(Py4JError, ConnectionError):
        spark.stop()


def is_lost(error: Exception) -> bool:
    """Whether an error says that Spark's process is gone; who asks it anything then hears it in one of these ways."""
    from py4j.protocol import Py4JError, Py4JNetworkError

    if isinstance(error, Py4JNetworkError | ConnectionError):
        return True
    # an error that came from there has a trace
    return type(error) is Py4JError and "Trace:" not in str(error)


def _quiet_accumulators(spark: SparkSession) -> None:
    """Keep PySpark from printing a trace when Spark closes a connection for its counters: it opens another one."""

    def note(_request: Any, _address: Any) -> None:
        _LOG.debug("the connection for counters has ended", exc_info=True)

    spark.sparkContext._accumulatorServer.handle_error = note  # type: ignore[assignment,method-assign]


def _keep_traces_away() -> None:
    """PySpark writes every query that is refused to stderr, with its whole trace; what is of use is in our errors."""
    from pyspark.logger import PySparkLogger

    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL + 1)


@contextmanager
def _own_ctrl_c() -> Iterator[None]:
    """Keep the handler of Ctrl-C: a new Spark context installs one that cancels all jobs, in the midst of batches."""
    kept = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, kept)


@contextmanager
def _output_to(log_file: Path) -> Iterator[None]:
    """Let the JVM that is started inside inherit the log file: some of its libraries print, and stdout is for data."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = {number: os.dup(number) for number in (1, 2)}
    try:
        with log_file.open("ab") as log:
            for number in kept:
                os.dup2(log.fileno(), number)
        yield
    finally:
        for number, original in kept.items():
            os.dup2(original, number)
            os.close(original)


def _ship_package(spark: SparkSession, place: Path | None) -> None:
    """Send this package to the executors, so that a worker needs only the libraries it builds on."""
    folder = Path(headrace.__file__).parent
    with tempfile.TemporaryDirectory(dir=place) as scratch:
        copy = Path(scratch) / "root" / "headrace"
        shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("__pycache__"))
        archive = shutil.make_archive(str(Path(scratch) / "headrace"), "zip", copy.parent)
        kept = Path(tempfile.mkdtemp(dir=place)) / "headrace.zip"
        shutil.move(archive, kept)
    atexit.register(shutil.rmtree, kept.parent, ignore_errors=True)
    spark.sparkContext.addPyFile(str(kept))
