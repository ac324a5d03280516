"""`spark.accelerate`: the one decision on what Headrace adds to plain Spark and Hadoop for speed.

Four additions, none of which changes a result:

* the fork server: Python processes of Spark are forked with their libraries already loaded;
* the class archive: Java maps Spark's loaded classes from a file instead of loading them from jars;
* the Java helpers: a cache of missing classes and a reader of JSON fields;
* the local file class: Hadoop writes local files without starting a process for each.

The last three need files that `headrace jars` builds; an addition whose file is missing is left out.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from headrace.engine.spark import workers
from headrace.engine.spark.class_archive import archive_options
from headrace.engine.spark.java_helpers import helpers_jar
from headrace.project.model import SparkSpec

CLASS_PATH = "spark.driver.extraClassPath"
_DAEMON = "spark.python.daemon.module"
_LOCAL_FILES = "headrace.LocalFiles"


@dataclass(frozen=True, slots=True)
class Acceleration:
    """The additions that a session uses. By default none: plain Spark."""

    fork_python: bool = False
    archive_options: tuple[str, ...] = ()
    helpers: Path | None = None
    helpers_in_tasks: bool = False
    """False on a cluster: its executors do not have the jar."""

    def settings(self) -> dict[str, str]:
        settings: dict[str, str] = {_DAEMON: workers.MODULE} if self.fork_python else {}
        if self.helpers is not None:
            settings[CLASS_PATH] = str(self.helpers)
        if self.helpers is not None and self.helpers_in_tasks:
            settings["spark.hadoop.fs.file.impl"] = _LOCAL_FILES
            settings["spark.hadoop.fs.AbstractFileSystem.file.impl"] = f"{_LOCAL_FILES}$Context"
            # read by the processor `fields`
            settings["spark.headrace.fieldsReader"] = "headrace.JsonFields"
        return settings


def acceleration_of(spec: SparkSpec) -> Acceleration:
    """What the project allows and this machine has."""
    if not spec.accelerate:
        return Acceleration()
    is_local = spec.master.startswith("local")
    # On a cluster the package arrives after the daemon has started. Only Linux can fork with libraries loaded.
    may_fork = is_local and sys.platform == "linux" and not {"spark.pyspark.python", _DAEMON} & spec.conf.keys()
    jar = helpers_jar()
    # On a cluster the jar stays on the driver's class path: the class archive is bound to that path.
    return Acceleration(may_fork, tuple(archive_options()), jar if jar.is_file() else None, is_local)
