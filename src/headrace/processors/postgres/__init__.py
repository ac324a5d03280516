"""`type: postgres`: queries a PostgreSQL database for each row."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar, Literal, Self

import sqlglot
from pydantic import Field, model_validator
from sqlglot import TokenType
from sqlglot.errors import SqlglotError

from headrace.core.context import Context
from headrace.core.options.durations import Duration
from headrace.core.runtime.lazy import lazy_modules
from headrace.processors._enrich.async_requests import ServiceClient
from headrace.processors._enrich.enricher import Enricher
from headrace.processors._enrich.outputs import Paths
from headrace.systems.postgres.connection import PostgresConnection

if TYPE_CHECKING:
    from headrace.processors.postgres import client
else:
    client = lazy_modules("headrace.processors.postgres.client")


class PostgresEnricher(PostgresConnection, Enricher):
    """Adds columns with the result of a PostgreSQL query about each row.

    `:column` in the query is a parameter: the value of the column, never a part of the SQL. A nested value is its JSON
    text, a time its ISO text. The parameters of `batch_size` distinct keys go to the server in one round trip. A result
    without a row gives nulls, more than one row is an error. A NULL in a column that the query uses gives nulls without
    a request. The query runs read-only and at most for `timeout`. A broken connection, and a server that is
    unavailable, shuts down or has no free connection, is retried `retries` times, and while the server does not respond
    until `give_up`; the flow is degraded meanwhile.
    Delivery: no row is lost or doubled; a batch that runs again after a crash sends its requests again, and answers may
    differ. Order: that of the rows. Scale: `capacity` connections per task; the answers of one Arrow batch are in
    memory at once.
    """

    paths: ClassVar[Paths] = "names"

    type: Literal["postgres"] = "postgres"
    query: str = Field(
        description='Query that gives one row. :column is the value of a column, :"a.b" that of a field of a struct.',
        examples=["SELECT tier, since FROM customers WHERE id = :customer_id"],
    )
    batch_size: int = Field(100, gt=0, le=10_000, description="Questions per round trip.")
    capacity: int = Field(4, gt=0, le=100, description="Connections per task, each with one round trip at a time.")
    timeout: Duration = Field(timedelta(seconds=10), description="How long one query, or one round trip, may take.")

    @model_validator(mode="after")
    def _is_a_query(self) -> Self:
        bound_query(self.query)
        return self

    @property
    def label(self) -> str:
        return f"postgres {self.address}"

    def request_columns(self) -> Sequence[str]:
        return tuple(dict.fromkeys(bound_query(self.query)[1]))

    def service(self, context: Context) -> ServiceClient:
        query, names = bound_query(self.query)
        request_columns = self.request_columns()
        return client.PostgresService(
            label=self.label,
            **self.server_parameters(context, self.connect_timeout),
            query=client.bounded(query),
            parameters=tuple(request_columns.index(name) for name in names),
            wanted=tuple(path.name for path in self._outputs().paths.values() if path.name != "$"),  # type: ignore[attr-defined]
            timeout=self.timeout.total_seconds(),
            together=self.batch_size,
        )


def bound_query(query: str) -> tuple[str, list[str]]:
    """The query with `%s` in the place of each `:column`, and the columns in that order.

    Strings, comments and casts (`::text`) are unchanged; a ValueError if it is not SQL.
    """
    try:
        tokens = sqlglot.tokenize(query, read="postgres")
    except SqlglotError as error:
        raise ValueError(f"not SQL: {str(error).splitlines()[0]}") from None
    if any(token.token_type is TokenType.SEMICOLON for token in tokens[:-1]):
        raise ValueError("more than one statement: a step runs one query")
    names, pieces, position = [], [], 0
    for colon, name in pairwise(tokens):
        named = name.token_type is TokenType.IDENTIFIER or name.text.isidentifier()
        if colon.token_type is TokenType.COLON and named and name.start == colon.end + 1:
            pieces += [query[position : colon.start].replace("%", "%%"), "%s"]
            names.append(name.text)
            position = name.end + 1
    return "".join([*pieces, query[position:].replace("%", "%%")]), names
