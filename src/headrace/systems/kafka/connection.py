"""Connection options of Kafka, translated for both of its clients.

Spark reads and writes through the Java client, everything that runs without Spark (checks, samples, transactions)
through librdkafka. `options` have the names of the Java client; librdkafka's names are looked up here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, SecretStr, field_validator, model_validator
from pydantic_core import PydanticCustomError

from headrace.core.component import Options
from headrace.core.context import Context
from headrace.systems.kafka.tls import Tls

_ADDRESS = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^\s:/,\[\]]+):(\d{1,5})")

# Properties that belong to both clients under different names; the value may need another unit.
_LIBRDKAFKA_NAMES = {
    "buffer.memory": "queue.buffering.max.kbytes",
    "fetch.max.wait.ms": "fetch.wait.max.ms",
    "max.request.size": "message.max.bytes",
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
    "send.buffer.bytes": "socket.send.buffer.bytes",
}
# Properties of the Java client that librdkafka has no counterpart for.
_JAVA_ONLY = frozenset(
    {
        "auto.include.jmx.reporter",
        "default.api.timeout.ms",
        "enable.metrics.push",
        "exclude.internal.topics",
        "max.block.ms",
        "max.poll.records",
        "metadata.max.idle.ms",
        "metadata.recovery.strategy",
        "metric.reporters",
        "metrics.num.samples",
        "metrics.recording.level",
        "metrics.sample.window.ms",
        "partitioner.adaptive.partitioning.enable",
        "partitioner.availability.timeout.ms",
        "partitioner.ignore.keys",
        "security.providers",
        "socket.connection.setup.timeout.max.ms",
        "ssl.enabled.protocols",
        "ssl.protocol",
        "ssl.provider",
        "ssl.secure.random.implementation",
    }
)
_OTHER_OPTION = {
    "bootstrap.servers": "write `brokers`",
    "security.protocol": "it follows from `security`",
    "sasl.mechanism": "write `security.sasl`",
    "sasl.jaas.config": "write `security.username` and `security.password`",
    "ssl.endpoint.identification.algorithm": "write `security.ssl.verify_hostname`",
} | {
    f"ssl.{name}": "write `security.ssl`"
    for name in (
        "key.password",
        *(f"keystore.{part}" for part in ("certificate.chain", "key", "location", "password", "type")),
        *(f"truststore.{part}" for part in ("certificates", "location", "password", "type")),
    )
}


def refused(code: str, message: str) -> PydanticCustomError:
    """An error with its own code, for validators of options."""
    return PydanticCustomError(code, message)


def _split(value: Any) -> Any:
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


def _as_text(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    return {name: str(v).lower() if isinstance(v, bool) else str(v) for name, v in value.items()}


class Security(Options):
    """Who connects and how. `sasl` says who, `ssl` encrypts; one of them or both."""

    sasl: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] | None = Field(
        None, description="How to log in with a username and a password."
    )
    username: str | None = Field(None, description="The name to log in with.")
    password: SecretStr | None = Field(
        None, description="The password to log in with; take it from a variable.", examples=["${KAFKA_PASSWORD}"]
    )
    ssl: Tls | None = Field(
        None, description="Encrypt with TLS; `{}` trusts the authorities known to the machine.", examples=[{}]
    )

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.sasl is not None and (self.username is None or self.password is None):
            raise refused("kafka-security", f"sasl {self.sasl} needs `username` and `password`")
        if self.sasl is None and (self.username is not None or self.password is not None):
            raise refused(
                "kafka-security", "`username` and `password` need `sasl`: PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512"
            )
        if self.sasl is None and self.ssl is None:
            raise refused("kafka-security", "`security` needs `sasl` or `ssl`; leave it out to connect in plain text")
        return self

    @property
    def protocol(self) -> str:
        """Kafka's name of this combination."""
        return f"{'SASL_' if self.sasl else ''}{'SSL' if self.ssl is not None else 'PLAINTEXT'}"

    def java_properties(self, context: Context) -> dict[str, str]:
        properties = {"security.protocol": self.protocol}
        if self.sasl is not None and self.username is not None and self.password is not None:
            properties["sasl.mechanism"] = self.sasl
            properties["sasl.jaas.config"] = jaas(self.sasl, self.username, self.password.get_secret_value())
        return properties | (self.ssl.java_properties(context) if self.ssl is not None else {})

    def librdkafka_properties(self, context: Context) -> dict[str, str]:
        properties = {"security.protocol": self.protocol}
        if self.sasl is not None and self.username is not None and self.password is not None:
            properties["sasl.mechanism"] = self.sasl
            properties["sasl.username"] = self.username
            properties["sasl.password"] = self.password.get_secret_value()
        return properties | (self.ssl.librdkafka_properties(context) if self.ssl is not None else {})


class KafkaConnection(Options):
    """The options by which a Kafka cluster is reached."""

    refused_options: ClassVar[dict[str, str]] = {}
    """Client properties that would break the guarantees of the kind, each with what to do instead."""

    brokers: Annotated[list[str], BeforeValidator(_split)] = Field(
        description="Addresses of one or more brokers, host:port; a list, or text separated by commas.",
        examples=["localhost:9092", ["broker-1:9092", "broker-2:9092"]],
        min_length=1,
    )
    security: Security | None = Field(None, description="Login and encryption; plain text without it.")
    options: Annotated[dict[str, str], BeforeValidator(_as_text)] = Field(
        default={},
        description="Further client properties, named as Kafka's Java client names them.",
        examples=[{"compression.type": "zstd"}, {"fetch.min.bytes": "65536"}],
    )

    @field_validator("brokers")
    @classmethod
    def _addresses(cls, brokers: list[str]) -> list[str]:
        for broker in brokers:
            match = _ADDRESS.fullmatch(broker)
            if match is None or not 0 < int(match[2]) < 65536:
                raise refused(
                    "bad-broker", f"'{broker}' is not the address of a broker; write host:port, e.g. kafka-1:9092"
                )
        return brokers

    @field_validator("options")
    @classmethod
    def _allowed(cls, options: dict[str, str]) -> dict[str, str]:
        instead = _OTHER_OPTION | cls.refused_options
        for name in options:
            if name.startswith("kafka."):
                raise refused("kafka-option-refused", f"write '{name.removeprefix('kafka.')}' without 'kafka.'")
            if name in instead:
                raise refused("kafka-option-refused", f"'{name}' cannot be set here: {instead[name]}")
        return options

    @property
    def cluster(self) -> str:
        """The cluster's addresses as one text."""
        return ",".join(self.brokers)

    def java_properties(self, context: Context) -> dict[str, str]:
        """These options as properties of the Java client."""
        security = self.security.java_properties(context) if self.security is not None else {}
        return {**self.options, **security, "bootstrap.servers": self.cluster}

    def librdkafka_properties(self, context: Context) -> dict[str, str]:
        """These options as properties of librdkafka, which raises errors and does not log them."""
        security = self.security.librdkafka_properties(context) if self.security is not None else {}
        translated = dict(_translated(name, value) for name, value in self.options.items() if name not in _JAVA_ONLY)
        return {**translated, **security, "bootstrap.servers": self.cluster, "log_level": "0"}


def jaas(mechanism: str, username: str, password: str) -> str:
    """The login line of the Java client. It reads quoted text as Java does: escapes begin with a backslash."""
    module = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
    return (
        f"org.apache.kafka.common.security.{module} required username={_quoted(username)} password={_quoted(password)};"
    )


def _quoted(text: str) -> str:
    escapes = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r"}
    return f'"{"".join(escapes.get(character, character) for character in text)}"'


def _translated(name: str, value: str) -> tuple[str, str]:
    if name == "buffer.memory" and value.isdigit():
        value = str(max(1, int(value) // 1024))
    return _LIBRDKAFKA_NAMES.get(name, name), value
