"""Where the changes of endpoints are kept when that is Kafka."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class LogTopics:
    """How the topics of logs are called, and how they are reached."""

    prefix: str
    replication: int | None
    properties: Mapping[str, str] = field(repr=False)
    """For librdkafka; may hold secrets."""
