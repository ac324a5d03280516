"""The location of logs that are kept in Kafka."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class LogTopics:
    """The names of the topics of logs, and the connection to their cluster."""

    prefix: str
    replication: int | None
    properties: Mapping[str, str] = field(repr=False)
    """Properties for librdkafka; may hold secrets."""
