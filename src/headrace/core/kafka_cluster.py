"""Questions to a Kafka cluster before anything runs: is it there, does it let us in, does it have the topics?

Every question ends within its deadline, and every way it can fail has its own code.
"""

from __future__ import annotations

import difflib
import logging
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # documented, not marked exported

from headrace.core.errors import Exit, ProjectError

if TYPE_CHECKING:
    from concurrent.futures import Future

DEADLINE = 10.0
# The least log level still prints fatal errors, which are raised as well.
_SILENT = logging.getLogger("headrace.kafka.client")
_SILENT.addHandler(logging.NullHandler())
_SILENT.propagate = False
# A refused connection may be a broker that is just starting; a login that was refused will not get better.
_PATIENCE_WITH_REFUSED = 3.0
_QUESTION = 0.5
_HOPELESS = (KafkaError._AUTHENTICATION, KafkaError._SSL)
NOT_ALLOWED = (
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
)


class Cluster:
    """One cluster, reached with librdkafka properties. Connecting is part of making it."""

    def __init__(self, properties: Mapping[str, str], deadline: float = DEADLINE) -> None:
        self._address = properties["bootstrap.servers"]
        self._deadline = deadline
        self._errors: list[KafkaError] = []
        self._admin = client(AdminClient, {**properties, "error_cb": self._errors.append})
        self._names = self._connect()

    def topics(self) -> list[str]:
        """The names of all topics that we may see, Kafka's own left out."""
        return self._names

    def partitions(self, topics: Iterable[str]) -> dict[str, int]:
        """How many partitions each topic has; `topic-missing` and `kafka-authorization` name the first one at fault."""
        wanted = list(topics)
        futures = self._admin.describe_topics(TopicCollection(wanted), request_timeout=self._deadline)
        return {name: self._partitions(name, futures[name]) for name in wanted}

    def has(self, topic: str) -> bool:
        """Whether a topic is there."""
        try:
            self.partitions([topic])
        except ProjectError as error:
            if error.code == "topic-missing":
                return False
            raise
        return True

    def create(self, topic: str, partitions: int, replication: int | None, settings: Mapping[str, str]) -> None:
        """Make a topic and wait until it is known; fine when somebody else made it meanwhile."""
        new = NewTopic(topic, partitions, replication or -1, config=dict(settings))
        try:
            self._admin.create_topics([new], operation_timeout=self._deadline)[topic].result(2 * self._deadline)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise cluster_error(error.args[0], self._address, topic) from error
        until = time.monotonic() + self._deadline
        while not self.has(topic) and time.monotonic() < until:
            time.sleep(0.05)  # metadata spreads through the cluster by itself; there is nothing to wait on

    def _partitions(self, name: str, answer: Future[Any]) -> int:
        try:
            return len(answer.result(2 * self._deadline).partitions)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise missing_topic(name, self._names, self._address) from error
            raise cluster_error(error.args[0], self._address, name) from error

    def _connect(self) -> list[str]:
        began = time.monotonic()
        while True:
            try:
                known = self._admin.list_topics(timeout=_QUESTION).topics
                return sorted(name for name in known if not name.startswith("__"))
            except KafkaException as error:
                self._give_up(error.args[0], time.monotonic() - began)
            time.sleep(0.05)  # some failures come back at once

    def _give_up(self, last: KafkaError, waited: float) -> None:
        self._admin.poll(0)
        for error in self._errors:
            if error.code() in _HOPELESS:
                raise cluster_error(error, self._address)
        down = any(error.code() == KafkaError._ALL_BROKERS_DOWN for error in self._errors)
        if waited > (min(_PATIENCE_WITH_REFUSED, self._deadline) if down else self._deadline):
            telling = [e for e in self._errors if e.code() not in (KafkaError._ALL_BROKERS_DOWN,)]
            raise cluster_error(telling[-1] if telling else last, self._address)


def client(kind: Any, properties: Mapping[str, Any]) -> Any:
    """A librdkafka client that raises but does not log; a property that it does not know is the user's to mend."""
    try:
        return kind({**properties, "logger": _SILENT})
    except KafkaException as error:
        raise ProjectError(
            "kafka-option-unknown",
            f"Kafka's client refuses its properties: {error.args[0].str()}",
            hint="look at `options` and `security`",
        ) from error


def cluster_error(error: KafkaError, address: str, topic: str | None = None) -> ProjectError:
    """What a client's error means to the user. librdkafka's texts never contain the password."""
    about = f" (topic '{topic}')" if topic else ""
    detail = f"{address}{about}: {error.str()}"
    if error.code() in (KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED):
        hint = "check `security`: sasl, username and password, and that this port wants a login"
        return ProjectError("kafka-authentication", f"Kafka refused the login at {detail}", hint=hint)
    if error.code() == KafkaError._SSL:
        hint = "check `security.ssl`: ca or truststore must hold the authority that signed the broker's certificate"
        return ProjectError("kafka-tls", f"no trusted connection to Kafka at {detail}", hint=hint)
    if error.code() in NOT_ALLOWED:
        hint = "ask for the right (ACL) on the topic, the consumer group or the transactional id"
        return ProjectError("kafka-authorization", f"Kafka does not allow this at {detail}", hint=hint)
    if error.code() in (
        KafkaError._TRANSPORT,
        KafkaError._RESOLVE,
        KafkaError._TIMED_OUT,
        KafkaError._ALL_BROKERS_DOWN,
    ):
        hint = "check `brokers` and that the broker runs; a broker that wants `security` looks the same from outside"
        return ProjectError(
            "broker-unreachable", f"no Kafka broker answers at {detail}", hint=hint, exit_code=Exit.TRANSIENT
        )
    return ProjectError("kafka-refused", f"Kafka refused at {detail}", hint="see the broker's log")


def missing_topic(name: str, known: Iterable[str], address: str) -> ProjectError:
    """The error for a topic that is not there, with the topics that are like it."""
    names = list(known)
    close = difflib.get_close_matches(name, names, n=5, cutoff=0.5)
    listed = (
        f"did you mean '{close[0]}'? similar topics: {', '.join(close)}"
        if close
        else f"{len(names)} topics, none similar"
    )
    create = f"kafka-topics --bootstrap-server {address.split(',')[0]} --create --topic {name} --partitions 4"
    return ProjectError(
        "topic-missing",
        f"no topic '{name}' at {address}",
        hint=f"{listed}; to create it: {create}",
        exit_code=Exit.NOT_FOUND,
    )
