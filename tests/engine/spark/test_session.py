"""Spark's settings, without Spark."""

from __future__ import annotations

from pathlib import Path

from headrace.engine.spark.acceleration import Acceleration, acceleration_of
from headrace.engine.spark.session import settings
from headrace.project.model import SparkSpec

JARS = [Path("/jars/a.jar"), Path("/jars/b.jar")]


def test_defaults_protect_exactly_once_and_the_laptop() -> None:
    made = settings(SparkSpec(), Path("/log/engine.log"), JARS)
    assert made["spark.jars"] == "/jars/a.jar,/jars/b.jar"
    assert made["spark.driver.memory"] == "1g"
    assert made["spark.driver.bindAddress"] == "127.0.0.1"
    assert made["spark.databricks.delta.v2.enableMode"] == "NONE"
    assert "RocksDB" in made["spark.sql.streaming.stateStore.providerClass"]
    assert made["spark.sql.session.timeZone"] == "UTC"


def test_the_project_has_the_last_word_but_keeps_our_java_options() -> None:
    conf = {"spark.sql.session.timeZone": "Asia/Tokyo", "spark.driver.extraJavaOptions": "-Dx=y"}
    made = settings(SparkSpec(memory="3g", conf=conf), Path("/log/engine.log"), JARS)
    assert made["spark.driver.memory"] == "3g"
    assert made["spark.sql.session.timeZone"] == "Asia/Tokyo"
    assert made["spark.driver.extraJavaOptions"].endswith("-Dx=y")
    assert "headrace.log" in made["spark.driver.extraJavaOptions"]


def test_a_cluster_is_not_bound_to_loopback() -> None:
    assert "spark.driver.bindAddress" not in settings(SparkSpec(master="spark://h:7077"), Path("/log/engine.log"), JARS)


def test_workers_elsewhere_and_of_another_python_begin_as_spark_has_them() -> None:
    log = Path("/log/engine.log")
    another = SparkSpec(conf={"spark.pyspark.python": "/opt/python"})
    used = settings(SparkSpec(), log, JARS, acceleration=acceleration_of(SparkSpec()))
    assert used["spark.python.daemon.module"] == "headrace.engine.spark.workers"
    for spec in (another, SparkSpec(master="spark://h:7077"), SparkSpec(accelerate=False)):
        assert not acceleration_of(spec).fork_python
        assert "spark.python.daemon.module" not in settings(spec, log, JARS, acceleration=acceleration_of(spec))


def test_without_acceleration_nothing_is_added_to_spark() -> None:
    assert acceleration_of(SparkSpec(accelerate=False)) == Acceleration()
    assert Acceleration().settings() == {}


def test_a_class_path_of_the_project_comes_after_ours() -> None:
    spec = SparkSpec(conf={"spark.driver.extraClassPath": "/opt/own.jar"})
    helpers = Acceleration(helpers=Path("/jars/local.jar"))
    made = settings(spec, Path("/log/engine.log"), JARS, acceleration=helpers)
    assert made["spark.driver.extraClassPath"] == "/jars/local.jar:/opt/own.jar"


def test_workers_are_reached_by_sockets_that_drop_nothing() -> None:
    log, enabled = Path("/log/engine.log"), "spark.python.unix.domain.socket.enabled"
    assert settings(SparkSpec(), log, JARS, Path("/tmp/headrace-1000/4194304-0123abcd"))[enabled] == "true"
    assert enabled not in settings(SparkSpec(), log, JARS, Path("/tmp") / ("x" * 60)), "no address is that long"
    own = SparkSpec(conf={enabled: "false"})
    assert settings(own, log, JARS, Path("/tmp/headrace-1000/1-0123abcd"))[enabled] == "false"
