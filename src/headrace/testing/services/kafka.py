"""Apache Kafka: one broker that is its own controller (KRaft)."""

from __future__ import annotations

import re
import shutil
import subprocess
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from headrace.core.errors import ProjectError
from headrace.engine.spark.jars import SetName, java_command, require_jars, require_java
from headrace.testing.services import kafka_config
from headrace.testing.services.daemon import await_true
from headrace.testing.services.ports import HOST
from headrace.testing.services.probe import accepts
from headrace.testing.services.service import Service

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

_PLAIN_WORD = re.compile(r"[A-Za-z0-9_.-]+")


@dataclass(frozen=True)
class Kafka(Service):
    """A Kafka broker with transactions; topics are never made by themselves.

    `users` (name to password) adds a listener that wants SASL (PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512); they are
    written at the first start. `ssl` adds one with a certificate made for the occasion. The plain one is always there.
    """

    kind: ClassVar[str] = "kafka"
    jar_set: ClassVar[SetName | None] = "broker"

    users: Mapping[str, str] = field(default_factory=dict, repr=False)
    ssl: bool = False
    heap: str = "512m"

    def __post_init__(self) -> None:
        if not all(_PLAIN_WORD.fullmatch(word) for pair in self.users.items() for word in pair):
            raise ValueError("names and passwords of Kafka users may have letters, digits, '_', '.' and '-' only")

    @classmethod
    def problem(cls) -> ProjectError | None:
        """Java or the broker's jars may be missing."""
        try:
            require_java()
            require_jars("broker")
        except ProjectError as error:
            return ProjectError(
                "service-unavailable", f"kafka: {error.message}", hint=error.hint, exit_code=error.exit_code
            )
        return None

    def port_names(self) -> tuple[str, ...]:
        """One port per listener."""
        return ("client", "controller", *(["sasl"] if self.users else []), *(["ssl"] if self.ssl else []))

    @property
    def _properties(self) -> Path:
        return self.home / "server.properties"

    @property
    def certificate(self) -> Path:
        """What a client of the SSL listener must trust (PEM)."""
        return self.home / "certificate.pem"

    def prepare(self, chosen: Mapping[str, int]) -> list[str]:
        """Properties files; the first time also certificate and formatted storage."""
        if self.ssl and not self.certificate.exists():
            kafka_config.make_certificate(java_command(), self.home, self.certificate)
        kafka_config.write_private(self._properties, kafka_config.broker(chosen, self.data, self.home, self.users))
        (self.home / "log4j2.properties").write_text(kafka_config.LOGGING)
        if not (self.data / "meta.properties").exists():
            shutil.rmtree(self.data, ignore_errors=True)
            self._format()
        return [*self._java(f"-Xmx{self.heap}", "-Djava.awt.headless=true"), "kafka.Kafka", str(self._properties)]

    def answers(self) -> bool:
        """Whether it names itself as a broker of its cluster."""
        from confluent_kafka import KafkaException

        if not accepts(self.port):  # asked first: a Kafka client would fill the terminal with refused connections
            return False
        try:
            return bool(self.admin().list_topics(timeout=5).brokers)
        except KafkaException:
            return False

    @property
    def env(self) -> dict[str, str]:
        """The addresses of its listeners."""
        addresses = {"KAFKA_BROKERS": self.address}
        if self.users:
            addresses["KAFKA_SASL_BROKERS"] = self.sasl_address
        if self.ssl:
            addresses |= {"KAFKA_SSL_BROKERS": self.ssl_address, "KAFKA_SSL_CA": str(self.certificate)}
        return addresses

    @property
    def sasl_address(self) -> str:
        """host:port of the listener for `users`."""
        return f"{HOST}:{self.ports['sasl']}"

    @property
    def ssl_address(self) -> str:
        """host:port of the listener with TLS."""
        return f"{HOST}:{self.ports['ssl']}"

    def admin(self) -> AdminClient:
        """A client that may do everything."""
        from confluent_kafka.admin import AdminClient

        return AdminClient({"bootstrap.servers": self.address, "log_level": 2})

    def create_topic(self, name: str, partitions: int = 1, **config: str) -> None:
        """Make a topic and wait until every partition can be written; `_` in a setting's name stands for `.`."""
        from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]  # documented, not marked as exported

        admin = self.admin()
        settings = {key.replace("_", "."): value for key, value in config.items()}
        topic = NewTopic(name, num_partitions=partitions, replication_factor=1, config=settings)
        admin.create_topics([topic])[name].result(30)

        def has_leaders() -> bool:
            found = admin.list_topics(name, timeout=10).topics[name].partitions
            return len(found) == partitions and all(partition.leader >= 0 for partition in found.values())

        if not await_true(has_leaders, 30):
            raise TimeoutError(f"topic {name} has no leader for each of its {partitions} partitions")

    def _java(self, *options: str) -> list[str]:
        jars = require_jars("broker")[0].parent
        logging = f"-Dlog4j2.configurationFile={self.home / 'log4j2.properties'}"
        return [java_command(), *options, logging, "-cp", f"{jars}/*"]

    def _format(self) -> None:
        cluster = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        users = [
            word
            for name, password in self.users.items()
            for mechanism in kafka_config.SCRAM
            for word in ("--add-scram", f"{mechanism}=[name={name},password={password}]")
        ]
        # A short-lived JVM starts sooner without its second compiler.
        java = self._java("-Xmx128m", "-XX:TieredStopAtLevel=1")
        # An id may begin with "-": as a word of its own it would be taken for an option.
        command = [*java, "kafka.tools.StorageTool", "format", "--standalone", f"--cluster-id={cluster}", "-c"]
        with self.log_file.open("ab") as log:
            done = subprocess.run(
                [*command, str(self._properties), *users], stdout=log, stderr=subprocess.STDOUT, check=False
            )
        if done.returncode != 0:
            raise self.failure("formatting its storage failed")
