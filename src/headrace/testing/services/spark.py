"""A Spark standalone cluster from PySpark's own scripts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from headrace.core.errors import ProjectError
from headrace.engine.spark.class_archive import archive_options
from headrace.engine.spark.jars import pyspark_home, require_java
from headrace.engine.spark.java_helpers import helpers_jar
from headrace.testing.services.daemon import Daemon, await_true
from headrace.testing.services.ports import HOST
from headrace.testing.services.probe import http_get
from headrace.testing.services.service import Service

_DAEMON_OPTIONS = ("-Dspark.master.rest.enabled=false", "-Dspark.port.maxRetries=0")


@dataclass(frozen=True)
class Spark(Service):
    """A Spark master and some workers, each a process of its own."""

    kind: ClassVar[str] = "spark"

    workers: int = 2
    cores: int = 1
    memory: str = "1g"

    @classmethod
    def problem(cls) -> ProjectError | None:
        """Only Java may be missing."""
        try:
            require_java()
        except ProjectError as error:
            return ProjectError("service-unavailable", f"spark: {error.message}", hint=error.hint)
        return None

    def port_names(self) -> tuple[str, ...]:
        """Drivers and workers connect to the first, people look at the second."""
        return ("client", "ui")

    def prepare(self, chosen: Mapping[str, int]) -> list[str]:
        where = ["--host", HOST, "--port", str(chosen["client"]), "--webui-port", str(chosen["ui"])]
        return [_spark_class(), "org.apache.spark.deploy.master.Master", *where]

    def process_env(self) -> dict[str, str]:
        """Loopback only, and none of the settings of another Spark installation."""
        inherited = {name: value for name, value in super().process_env().items() if not name.startswith("SPARK_")}
        # Off: the submission server on its fixed port, and moving on to the next port when one is taken.
        options = {
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": " ".join([*_DAEMON_OPTIONS, *archive_options()]),
        }
        # The classes that drivers have in an archive: it fits their class path only.
        return {**inherited, **options, "SPARK_DAEMON_CLASSPATH": str(helpers_jar()), "SPARK_LOCAL_IP": HOST}

    def answers(self) -> bool:
        """Whether the master is the leader."""
        return self.status().get("status") == "ALIVE"

    def status(self) -> dict[str, Any]:
        """What the master says of itself, its workers and applications; empty when it does not answer."""
        answer = http_get(self.ports["ui"], "/json/")
        try:
            return dict(json.loads(answer[1])) if answer is not None and answer[0] == 200 else {}
        except ValueError:  # while it starts, a page that is not finished may be given for the document
            return {}

    @property
    def url(self) -> str:
        """What `spark.master` must be."""
        return f"spark://{self.address}"

    @property
    def env(self) -> dict[str, str]:
        """Where drivers connect."""
        return {"SPARK_MASTER_URL": self.url}

    def daemons(self) -> tuple[Daemon, ...]:
        """Workers are stopped before the master."""
        known = sorted(self.home.glob("worker-*.json"))
        return (*(Daemon(state, state.with_suffix(".log")) for state in known), self.server)

    def worker(self, number: int) -> Daemon:
        return Daemon(self.home / f"worker-{number}.json", self.home / f"worker-{number}.log")

    def start(self) -> Self:
        """The master first: a worker that finds none waits long before it tries again."""
        super().start()
        for number in range(self.workers):
            self.start_worker(number)
        if not await_true(lambda: self.status().get("aliveworkers") == self.workers, self.start_seconds):
            tails = "\n".join(daemon.log_tail(5) for daemon in self.daemons())
            self.stop()
            raise self.failure(f"not all of its {self.workers} workers registered: {tails}")
        return self

    def start_worker(self, number: int) -> None:
        """Start one worker, also again after `kill_worker`."""
        daemon = self.worker(number)
        if daemon.process() is not None:
            return
        room = ["--cores", str(self.cores), "--memory", self.memory, "--work-dir", str(self.data / f"worker-{number}")]
        command = [_spark_class(), "org.apache.spark.deploy.worker.Worker", "--host", HOST, "--webui-port", "0"]
        daemon.spawn([*command, *room, self.url], self.ports, self.process_env())

    def kill_worker(self, number: int) -> None:
        """Lose one worker with its executors, as when its machine dies."""
        self.worker(number).kill()


def _spark_class() -> str:
    return str(pyspark_home() / "bin" / "spark-class")
