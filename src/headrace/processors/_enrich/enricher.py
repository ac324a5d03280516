"""What all steps that query a service share: options, one request per distinct key, answers as columns."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, ClassVar, Literal, Self

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, model_validator

from headrace.core.context import Context
from headrace.core.durations import Duration
from headrace.core.encoding.json_values import UnfitValueError
from headrace.core.errors import ProjectError, did_you_mean
from headrace.core.processor import ArrowProcessor, Batches, StepContext, StepLetters, Work
from headrace.core.tallies.step_tally import StepTally
from headrace.processors._enrich.async_requests import (
    FailedRequest,
    NoMatch,
    RequestLimits,
    ServiceCaller,
    ServiceClient,
    check_service,
)
from headrace.processors._enrich.cache import CacheOptions, TtlCache
from headrace.processors._enrich.keys import Values, keys_of, type_of
from headrace.processors._enrich.outputs import Found, Output, Outputs, Paths
from headrace.processors._steps.columns import heads

OnError = Literal["fail", "null", "dead_letter"]


class Enricher(ArrowProcessor):
    """Adds columns with the answers of a service about each row."""

    columns: dict[str, str | Output] = Field(
        min_length=1,
        description="The columns to add and where in the answer they are: a path, which makes a string, or path and "
        "type. What is not in the answer is null; a value that cannot be of the type is an error.",
        examples=[{"name": "$.customer.name", "orders": {"path": "$.stats.orders", "type": "bigint"}}],
    )
    on_error: OnError = Field(
        "dead_letter",
        description="What happens to a row whose request fails while the service is available: `dead_letter` keeps "
        "the row with the reason, `null` leaves the columns empty, `fail` stops the flow.",
    )
    capacity: int = Field(64, gt=0, le=1000, description="Requests in flight at once, per task.")
    timeout: Duration = Field(timedelta(seconds=10), description="How long one request may take.")
    connect_timeout: Duration = Field(timedelta(seconds=3), description="How long making a connection may take.")
    retries: int = Field(2, ge=0, description="How often a request with a transient failure is repeated.")
    backoff: Duration = Field(
        timedelta(milliseconds=100), description="Pause before the first retry; it doubles with each, up to 5 s."
    )
    give_up: Duration = Field(
        timedelta(minutes=5),
        description="How long requests to an unavailable service are repeated before the batch fails; the flow then "
        "restarts by itself when the service is back.",
    )
    cache: CacheOptions | None = Field(
        None,
        description="Keep answers, in each Python worker. Default: one request per key and Arrow batch.",
        examples=[{"ttl": "10min", "size": 10000}],
    )

    paths: ClassVar[Paths] = "json"
    nested_keys: ClassVar[bool] = True
    """Whether a request can hold lists and structs."""

    @model_validator(mode="after")
    def _outputs_are_right(self) -> Self:
        try:
            self._outputs().check()
        except ProjectError as error:
            raise ValueError(f"{error.message}; {error.hint}") from None
        return self

    @abstractmethod
    def request_columns(self) -> Sequence[str]:
        """The columns that a request contains."""

    @abstractmethod
    def service(self, context: Context) -> ServiceClient:
        """The client, which is pickled to the workers."""

    def check(self, context: Context) -> None:
        check_service(self.service(context))

    def uses(self, wanted: frozenset[str] | None) -> frozenset[str] | None:
        if wanted is None:
            return None
        return wanted - self.columns.keys() | heads(self.request_columns())

    def output(self, schema: pa.Schema) -> pa.Schema:
        for name in self.request_columns():
            self._check_column(schema, name)
        return self._outputs().added(schema)

    def work(self, schema: pa.Schema, at: StepContext) -> Work:
        return Enrichment(
            identity=f"{at.flow}|{at.step}|{self.model_dump_json()}",
            service=self.service(at.context),
            limits=self._limits(),
            cache=(self.cache.ttl.total_seconds(), self.cache.size) if self.cache else (0.0, 0),
            request_columns=tuple(self.request_columns()),
            outputs=self._outputs(),
            on_error=self.on_error,
            letters=at.letters,
            tally=StepTally.of(at.flow, at.step),
        )

    def _limits(self) -> RequestLimits:
        return RequestLimits(
            capacity=self.capacity,
            timeout=self.timeout.total_seconds(),
            retries=self.retries,
            backoff=self.backoff.total_seconds(),
            give_up=self.give_up.total_seconds(),
        )

    def _outputs(self) -> Outputs:
        return Outputs.of(self.columns, self.paths)

    def _check_column(self, schema: pa.Schema, name: str) -> None:
        kind = type_of(schema, name)
        if kind is None:
            raise ProjectError(
                "unknown-column",
                f"'{self.kind()}' uses column '{name}' in a request, and its input does not have it",
                hint=did_you_mean(name, schema.names, "columns"),
            )
        if pa.types.is_binary(kind) or (pa.types.is_nested(kind) and not self.nested_keys):
            raise ProjectError(
                "step-column-type",
                f"'{self.kind()}' cannot put column '{name}' into a request: it is {kind}",
                hint="turn it into a text or a number first",
            )


@dataclass
class Enrichment:
    """Enriches the batches of a task. Pickled to the workers; connections and caches are in `_live` and outlive it."""

    identity: str = field(repr=False)
    """Steps with the same identity share answers and connections."""
    service: ServiceClient
    limits: RequestLimits
    cache: tuple[float, int]
    request_columns: tuple[str, ...]
    outputs: Outputs
    on_error: OnError
    letters: StepLetters
    tally: StepTally

    def __call__(self, batches: Batches) -> Batches:
        live = _live.get(self.identity)
        if live is None:
            live = _live[self.identity] = _Live(ServiceCaller(self.service, self.limits), TtlCache(*self.cache))
        try:
            for batch in batches:
                yield self._enriched(batch, live)
        finally:
            self.tally.flush()

    def _enriched(self, batch: pa.RecordBatch, live: _Live) -> pa.RecordBatch:
        keys = keys_of(batch, self.request_columns)
        answers, refused = self._answers(keys.values, live)
        enriched = batch
        for name, values in self.outputs.arrays(answers).items():
            index = enriched.schema.get_field_index(name)
            column = values.take(keys.places)
            field = pa.field(name, column.type)
            enriched = enriched.append_column(field, column) if index < 0 else enriched.set_column(index, field, column)
        return self._without(refused, batch, enriched, keys.places) if refused else enriched

    def _answers(self, keys: list[Values], live: _Live) -> tuple[list[Found | None], dict[int, FailedRequest]]:
        """The values for each key, and the failures by key."""
        values_of: list[Found | None] = [live.cache.get(values) for values in keys]
        refused: dict[int, FailedRequest] = {}
        numbers, requests = [], []
        for number, values in enumerate(keys):
            if values_of[number] is None:
                try:
                    requests.append(self.service.request_for(values))
                    numbers.append(number)
                except UnfitValueError as error:
                    refused[number] = FailedRequest("bad-value", str(error))
        self.tally.add("cache_hits", len(keys) - len(numbers) - len(refused))
        for number, answer in zip(numbers, live.caller.call_all(requests, self.tally), strict=True):
            taken = self._taken(answer)
            if isinstance(taken, FailedRequest):
                refused[number] = taken
            else:
                values_of[number] = taken
                live.cache.put(keys[number], taken)
        return values_of, refused

    def _taken(self, answer: Any) -> Found | FailedRequest:
        if isinstance(answer, FailedRequest):
            return answer
        if isinstance(answer, NoMatch):
            return (None,) * len(self.outputs.types)
        try:
            return self.outputs.taken(answer)
        except UnfitValueError as error:
            return FailedRequest("bad-answer", str(error))

    def _without(
        self, refused: dict[int, FailedRequest], batch: pa.RecordBatch, enriched: pa.RecordBatch, places: pa.Array
    ) -> pa.RecordBatch:
        """The rows without those whose key failed, as `on_error` says."""
        if self.on_error == "fail":
            why = next(iter(refused.values()))
            raise ProjectError(
                "enrichment-failed",
                f"{self.service.label} does not answer for a row ({why.reason}): {why.detail}",
                hint="fix it; `on_error: dead_letter` keeps such rows and continues",
            )
        hit = pc.is_in(places, value_set=pa.array(list(refused), places.type))
        rows = pc.indices_nonzero(hit).to_pylist()
        self.tally.add("rows_refused", len(rows))
        if self.on_error == "null":
            return enriched
        for row in rows:
            why = refused[places[row].as_py()]
            self.letters.keep(batch, row, why.reason, why.detail)
        return enriched.filter(pc.invert(hit))


@dataclass(frozen=True)
class _Live:
    caller: ServiceCaller
    cache: TtlCache[Found]


_live: dict[str, _Live] = {}
"""Connections and answers of this Python worker. They outlive its tasks, as Spark reuses workers."""
