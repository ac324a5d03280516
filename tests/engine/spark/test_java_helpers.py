"""Local files as Spark writes them, without a process for each."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headrace.engine.spark import acceleration, java_helpers
from headrace.engine.spark.acceleration import acceleration_of
from headrace.engine.spark.java_helpers import compile_helpers, helpers_jar
from headrace.project.model import SparkSpec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_JARS", str(tmp_path))
    monkeypatch.setattr(acceleration, "archive_options", list)


def helper_settings(master: str, *, accelerate: bool = True) -> dict[str, str]:
    settings = acceleration_of(SparkSpec(master=master, accelerate=accelerate)).settings()
    settings.pop("spark.python.daemon.module", None)
    return settings


@pytest.mark.usefixtures("elsewhere")
def test_it_is_compiled_once_without_a_jdk_and_used_where_it_is() -> None:
    assert helper_settings("local[*]") == {}
    told: list[str] = []
    compile_helpers(told.append)
    made = helpers_jar().stat().st_mtime_ns
    compile_helpers(told.append)
    assert (told, helpers_jar().stat().st_mtime_ns) == ([], made)
    assert helper_settings("local[2]")["spark.hadoop.fs.file.impl"] == "headrace.LocalFiles"
    assert helper_settings("local[2]", accelerate=False) == {}
    assert helper_settings("spark://h:7077") == {"spark.driver.extraClassPath": str(helpers_jar())}


@pytest.mark.usefixtures("elsewhere")
def test_without_it_hadoop_serves_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_sources: list[str]) -> dict[str, bytes]:
        raise OSError("no space left")

    monkeypatch.setattr(java_helpers, "compile_classes", fails)
    told: list[str] = []
    compile_helpers(told.append)
    assert "no space left" in told[0]
    assert helper_settings("local[*]") == {}


class Hadoop:
    """Both interfaces to local files, as the session has them."""

    def __init__(self, spark: SparkSession) -> None:
        self.jvm: Any = spark.sparkContext._jvm
        self._conf: Any = spark.sparkContext._jsc.hadoopConfiguration()
        self._streaming = self.jvm.org.apache.spark.sql.execution.streaming

    def path(self, file: Path) -> Any:
        return self.jvm.org.apache.hadoop.fs.Path(file.as_uri())

    def files(self) -> Any:
        return self.path(Path("/")).getFileSystem(self._conf)

    def checkpoints(self, folder: Path) -> Any:
        return self._streaming.checkpointing.CheckpointFileManager.create(self.path(folder), self._conf)


@pytest.fixture
def hadoop(spark: SparkSession) -> Hadoop:
    return Hadoop(spark)


@pytest.mark.usefixtures("accelerated")
@pytest.mark.spark
def test_the_session_sets_permissions_by_it(hadoop: Hadoop, tmp_path: Path) -> None:
    files = hadoop.files()
    assert files.getClass().getName() == "headrace.LocalFiles"
    file = tmp_path / "file"
    permission = hadoop.jvm.org.apache.hadoop.fs.permission.FsPermission
    for mode in ("rw-r-----", "rwxr-xr-x", "r--------"):
        file.touch()
        files.setPermission(hadoop.path(file), permission.valueOf(f"-{mode}"))
        assert stat.filemode(file.stat().st_mode) == f"-{mode}"
    files.setPermission(hadoop.path(tmp_path), permission.valueOf("drwxrwxrwt"))
    assert tmp_path.stat().st_mode & 0o7777 == 0o1777


@pytest.mark.spark
def test_a_checkpoint_is_written_whole_and_never_over_another(hadoop: Hadoop, tmp_path: Path) -> None:
    manager = hadoop.checkpoints(tmp_path)
    place = hadoop.path(tmp_path / "7")
    first = manager.createAtomic(place, False)
    first.write(b"one")
    assert not (tmp_path / "7").exists()
    first.close()
    again = manager.createAtomic(place, False)
    again.write(b"two")
    with pytest.raises(Exception, match="FileAlreadyExists"):
        again.close()
    assert (tmp_path / "7").read_bytes() == b"one"
    over = manager.createAtomic(place, True)
    over.write(b"three")
    over.close()
    assert (tmp_path / "7").read_bytes() == b"three"
    assert (tmp_path / "7").stat().st_mode & 0o777 == 0o666 & ~_umask()


@pytest.mark.spark
def test_links_are_what_they_lead_to(hadoop: Hadoop, spark: SparkSession, tmp_path: Path) -> None:
    spark.range(3).write.parquet(str(tmp_path / "rows"))
    (tmp_path / "link").symlink_to(tmp_path / "rows")
    (tmp_path / "lost").symlink_to(tmp_path / "nothing")
    assert spark.read.parquet(str(tmp_path / "link")).count() == 3
    files = hadoop.files()
    assert files.getFileLinkStatus(hadoop.path(tmp_path / "rows")).isDirectory()
    assert not files.exists(hadoop.path(tmp_path / "lost"))


def _umask() -> int:
    kept = os.umask(0)
    os.umask(kept)
    return kept


@pytest.mark.usefixtures("accelerated")
@pytest.mark.spark
def test_a_class_that_is_not_there_is_looked_for_once(spark: SparkSession) -> None:
    jvm: Any = spark.sparkContext._jvm
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    assert loader.getClass().getName() == "headrace.MissingClassCache"
    assert loader.loadClass("org.apache.spark.SparkContext").getName() == "org.apache.spark.SparkContext"
    cached = "headrace.MissingClassCache$Missing"
    for expected in ("java.lang.ClassNotFoundException", cached, cached):
        with pytest.raises(Exception, match=r"no\.such\.Name") as refused:
            loader.loadClass("no.such.Name")
        assert refused.value.java_exception.getClass().getName() == expected  # type: ignore[attr-defined]


@pytest.mark.spark
def test_jars_that_come_later_are_found(spark: SparkSession, tmp_path: Path) -> None:
    """What is not there is remembered below the loaders of such jars."""
    with pytest.raises(Exception, match=r"later\.Plus"):
        spark.sql("CREATE TEMPORARY FUNCTION plus AS 'later.Plus'")
    source = """package later;
    public class Plus extends org.apache.hadoop.hive.ql.exec.UDF {
        public Integer evaluate(Integer number) { return Integer.valueOf(number.intValue() + 1); }
    }"""
    java_helpers.write_jar(tmp_path / "later.jar", java_helpers.compile_classes([source]))
    session = spark.newSession()
    session.sql(f"ADD JAR '{tmp_path / 'later.jar'}'")
    loader: Any = session._jsparkSession.sharedState().jarClassLoader()  # type: ignore[attr-defined]
    assert loader.loadClass("later.Plus").getName() == "later.Plus"
