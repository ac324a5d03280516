"""`type: redis`: looks up values in a Redis database for each row."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import Field, model_validator

from headrace.core.context import Context
from headrace.core.options.durations import Duration
from headrace.core.runtime.lazy import lazy_modules
from headrace.processors._enrich import templates
from headrace.processors._enrich.async_requests import ServiceClient
from headrace.processors._enrich.enricher import Enricher
from headrace.processors._enrich.outputs import Outputs
from headrace.systems.redis.connection import RedisConnection

if TYPE_CHECKING:
    from headrace.processors.redis import client
else:
    client = lazy_modules("headrace.processors.redis.client")


class RedisEnricher(RedisConnection, Enricher):
    """Adds columns with the value of a Redis key for each row.

    GET (HGETALL, SMEMBERS) of `batch_size` distinct keys goes to the server in one round trip. A missing key gives
    nulls. So does a NULL in a column of the key, without a request. A key of another type is an error. A broken
    connection, and a server that is unavailable or still loading, is retried `retries` times, and while the server does
    not respond until `give_up`; the flow is degraded meanwhile.
    Delivery: no row is lost or doubled; a batch that runs again after a crash sends its requests again, and answers may
    differ. Order: that of the rows. Scale: `capacity` connections per task to a single server, not a Redis cluster; the
    answers of one Arrow batch are in memory at once.
    """

    nested_keys: ClassVar[bool] = False

    type: Literal["redis"] = "redis"
    key: str = Field(
        description="Key to look for; {column} stands for a column's value, {{ for a brace.",
        examples=["customers:{customer_id}"],
    )
    holds: Literal["json", "hash", "text", "set"] = Field(
        "json",
        description="What a key holds: `json` a JSON text, whose parts are taken by JSON path; `hash` a hash, whose "
        "fields are taken by name; `text` a text, `set` a set of texts in their order, which are taken whole. The path "
        "`$` takes a whole answer: a document, hash or set as one JSON text, a text as it is.",
    )
    batch_size: int = Field(500, gt=0, le=10_000, description="Keys per round trip.")
    capacity: int = Field(4, gt=0, le=100, description="Connections per task, each with one round trip at a time.")
    max_response: int = Field(1_000_000, gt=0, description="The most bytes a value may have.")
    timeout: Duration = Field(timedelta(seconds=10), description="How long one round trip may take.")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        _ = self._key
        whole = self.holds in ("text", "set")
        if whole and any(getattr(path, "text", "$") != "$" for path in self._outputs().paths.values()):
            raise ValueError(f"of a key that `holds: {self.holds}` the path is `$`")
        return self

    @property
    def label(self) -> str:
        return f"redis {self.key} at {self.address}"

    def request_columns(self) -> Sequence[str]:
        return templates.columns_of(self._key)

    def service(self, context: Context) -> ServiceClient:
        return client.RedisService(
            label=self.label,
            server=self.server(self.label, context),
            key=templates.Text.of(self._key, self.request_columns()),
            holds=self.holds,
            capacity=self.capacity,
            timeout=self.timeout.total_seconds(),
            connect_timeout=self.connect_timeout.total_seconds(),
            max_response=self.max_response,
            together=self.batch_size,
        )

    @property
    def _key(self) -> templates.Parts:
        return templates.parts_of(self.key, templates.plain)

    def _outputs(self) -> Outputs:
        return Outputs.of(self.columns, "names" if self.holds == "hash" else "json")
