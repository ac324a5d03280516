"""Requests to a Kafka cluster, such as the check before a flow starts: is it reachable, is the login accepted, do the
topics exist?

Every request ends within its deadline, and every kind of failure has its own code.
"""

from __future__ import annotations

import difflib
import logging
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # documented, not all marked exported
    AdminClient,
    NewTopic,
    OffsetSpec,
)

from headrace.core.errors import Exit, ProjectError
from headrace.core.positions import Offsets

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
    """One cluster, reached with librdkafka properties. The constructor connects."""

    def __init__(self, properties: Mapping[str, str], deadline: float = DEADLINE) -> None:
        self._address = properties["bootstrap.servers"]
        self._deadline = deadline
        self._errors: list[KafkaError] = []
        self._admin = client(AdminClient, {**properties, "error_cb": self._errors.append})
        self._names = self._connect()

    def topics(self) -> list[str]:
        """The names of all topics that this user may see, without Kafka's internal ones."""
        return self._names

    def refresh(self) -> None:
        """Load the metadata again, for topics that were created since."""
        self._names = self._connect()

    def partitions(self, topics: Iterable[str]) -> dict[str, int]:
        """The number of partitions of each topic; an error names the first topic that is missing or denied."""
        return {name: len(description.partitions) for name, description in self._describe(topics).items()}

    def identities(self, topics: Iterable[str]) -> dict[str, str]:
        """The id of each topic: a topic that was deleted and created again has another."""
        return {name: str(description.topic_id) for name, description in self._describe(topics).items()}

    def starts(self, partitions: Mapping[str, int]) -> Offsets:
        return self._offsets(partitions, OffsetSpec.earliest())  # type: ignore[no-untyped-call]

    def ends(self, partitions: Mapping[str, int]) -> Offsets:
        """The end of the committed records of each partition."""
        return self._offsets(partitions, OffsetSpec.latest())  # type: ignore[no-untyped-call]

    def at(self, partitions: Mapping[str, int], milliseconds: int) -> Offsets:
        """The offset of the first record of this time or later in each partition, -1 where there is none."""
        return self._offsets(partitions, OffsetSpec.for_timestamp(milliseconds))

    def commit(self, group: str, offsets: Mapping[str, Mapping[int, int]]) -> None:
        """Write offsets to a consumer group that has no members."""
        parts = [TopicPartition(topic, p, offset) for topic, of in offsets.items() for p, offset in of.items()]
        request = [ConsumerGroupTopicPartitions(group, parts)]
        answer = self._admin.alter_consumer_group_offsets(request, request_timeout=self._deadline)[group]
        refusals = [part.error for part in self._answer(answer).topic_partitions if part.error is not None]
        if refusals:
            raise cluster_error(refusals[0], self._address, f"of group {group}")

    def _offsets(self, partitions: Mapping[str, int], spec: OffsetSpec) -> Offsets:
        specs = {TopicPartition(topic, p): spec for topic, count in partitions.items() for p in range(count)}
        offsets: Offsets = {topic: {} for topic in partitions}
        if specs:
            answers = self._admin.list_offsets(
                specs, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=self._deadline
            )
            for part, answer in answers.items():
                offsets[part.topic][part.partition] = self._answer(answer, part.topic).offset
        return offsets

    def _answer(self, future: Future[Any], topic: str | None = None) -> Any:
        try:
            return future.result(2 * self._deadline)
        except KafkaException as error:
            raise cluster_error(error.args[0], self._address, topic) from error

    def _describe(self, topics: Iterable[str]) -> dict[str, Any]:
        names = list(topics)
        futures = self._admin.describe_topics(TopicCollection(names), request_timeout=self._deadline)
        return {name: self._topic(name, futures[name]) for name in names}

    def has(self, topic: str) -> bool:
        """Whether a topic exists."""
        try:
            self.partitions([topic])
        except ProjectError as error:
            if error.code == "topic-missing":
                return False
            raise
        return True

    def create(self, topic: str, partitions: int, replication: int | None, settings: Mapping[str, str]) -> None:
        """Create a topic and wait until the cluster lists it. A topic that exists is no error."""
        new = NewTopic(topic, partitions, replication or -1, config=dict(settings))
        try:
            self._admin.create_topics([new], operation_timeout=self._deadline)[topic].result(2 * self._deadline)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise cluster_error(error.args[0], self._address, topic) from error
        until = time.monotonic() + self._deadline
        while not self.has(topic) and time.monotonic() < until:
            time.sleep(0.05)  # metadata spreads through the cluster by itself; there is nothing to wait on

    def _topic(self, name: str, answer: Future[Any]) -> Any:
        try:
            return answer.result(2 * self._deadline)
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
    """A librdkafka client that raises but does not log; an unknown property is an error of the project."""
    try:
        return kind({**properties, "logger": _SILENT})
    except KafkaException as error:
        raise ProjectError(
            "kafka-option-unknown",
            f"Kafka's client refuses its properties: {error.args[0].str()}",
            hint="check `options` and `security`",
        ) from error


def cluster_error(error: KafkaError, address: str, topic: str | None = None) -> ProjectError:
    """An error of the client as one with a code. librdkafka's texts never contain the password."""
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
    """The error for a topic that does not exist, with topics of similar names."""
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
