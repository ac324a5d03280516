"""The client of a PostgreSQL server: many queries in one round trip."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg

from headrace.core.encoding.json_values import UnfitValueError
from headrace.core.errors import ProjectError, did_you_mean
from headrace.processors._enrich.async_requests import FailedRequest, NoMatch, ServiceClient, timed_out, unreachable
from headrace.systems.postgres.server import (
    CANCELLED,
    connection_refused,
    is_denied,
    is_transient,
    lacks_database,
    one_line,
    tls_options,
)
from headrace.systems.services import access_denied, request_refused, service_unavailable
from headrace.systems.tls import TlsTexts

_MOST_ROWS = 2
_UNKNOWN_TYPE = "42P18"


@dataclass
class PostgresService(ServiceClient):
    """Runs one query with many parameters. Pickled to the workers; connects on first use."""

    label: str
    url: str = field(repr=False)
    options: dict[str, Any] = field(repr=False)
    tls: TlsTexts | None = field(repr=False)
    query: str
    """With `%s` for each parameter."""
    parameters: tuple[int, ...]
    """The place of each parameter among the values of a key."""
    wanted: tuple[str, ...]
    """The columns that are read from the result."""
    timeout: float
    together: int
    _idle: list[psycopg.AsyncConnection[Any]] = field(default_factory=list, repr=False)

    def request_for(self, values: Sequence[Any]) -> tuple[Any, ...]:
        if any(isinstance(value, str) and "\0" in value for value in values):
            raise UnfitValueError("PostgreSQL has no texts with a U+0000")
        # a JSON text is a text to psycopg
        return tuple([str(values[n]) if isinstance(values[n], str) else values[n] for n in self.parameters])

    async def call(self, requests: Sequence[Any]) -> list[Any]:
        """All in one round trip; one by one if the server refuses one of them."""
        try:
            connection = self._idle.pop() if self._idle else await self._connect()
        except psycopg.OperationalError as error:
            return [self._connection_failure(error)] * len(requests)
        try:
            answers = await self._executed(connection, requests)
        except BaseException:
            # cancelled in the middle of a query: the connection cannot be used again
            await connection.close()
            raise
        if connection.closed or connection.broken:
            await connection.close()
        else:
            self._idle.append(connection)
        return answers

    async def _executed(self, connection: psycopg.AsyncConnection[Any], requests: Sequence[Any]) -> list[Any]:
        try:
            async with connection.cursor() as cursor:
                await cursor.executemany(self.query, requests, returning=True)
                answers = []
                for number in range(len(requests)):
                    if number:
                        cursor.nextset()
                    answers.append(self._answer(cursor.description, await cursor.fetchall()))
                return answers
        except psycopg.Error as error:
            refusal = self._refusal(error)
            if refusal.transient and refusal.failure != "timeout":
                return [refusal] * len(requests)
            if len(requests) == 1:
                return [refusal]
        return [(await self._executed(connection, [request]))[0] for request in requests]

    def _answer(self, description: Any, rows: list[tuple[Any, ...]]) -> Any:
        if not rows:
            return NoMatch()
        if len(rows) > 1:
            return FailedRequest("several-rows", "the query gives more than one row")
        return dict(zip([column.name for column in description], rows[0], strict=True))

    async def probe(self) -> None:
        """Check that the query runs, and has the columns that are read."""
        try:
            connection = await self._connect()
        except psycopg.OperationalError as error:
            raise service_unavailable(self.label, self._connection_failure(error).detail) from error
        try:
            cursor = await connection.execute(self.query, [None] * len(self.parameters))
            names = [column.name for column in cursor.description or ()]
        except psycopg.Error as error:
            if error.sqlstate == _UNKNOWN_TYPE:
                return  # types are known only with values
            refusal = self._refusal(error)
            if refusal.transient:
                raise service_unavailable(self.label, refusal.detail) from error
            return
        finally:
            await connection.close()
        for name in self.wanted:
            if name not in names:
                hint = did_you_mean(name, names, "columns of the query")
                raise request_refused(self.label, f"the query gives no column '{name}'", hint)

    async def close(self) -> None:
        while self._idle:
            await self._idle.pop().close()

    async def _connect(self) -> psycopg.AsyncConnection[Any]:
        # a query can neither change data nor run for longer than its timeout
        settings = f"-c default_transaction_read_only=on -c statement_timeout={round(self.timeout * 1000)}"
        options: dict[str, Any] = {**self.options, "options": settings, "autocommit": True}
        if self.tls is None:
            return await psycopg.AsyncConnection.connect(self.url, **options)
        with self.tls.files() as paths:
            options |= tls_options(self.tls, paths)
            return await psycopg.AsyncConnection.connect(self.url, **options)

    def _connection_failure(self, error: psycopg.OperationalError) -> FailedRequest:
        message = one_line(error)
        if lacks_database(error):
            raise request_refused(self.label, message, "create the database, or fix its name") from error
        refused = connection_refused(self.label, error)
        if refused is not None:
            raise refused from error
        return unreachable(message)

    def _refusal(self, error: psycopg.Error) -> FailedRequest:
        """The failure that an error of the server means; a ProjectError if the query is at fault."""
        state, message = error.sqlstate, one_line(error)
        if state is None or is_transient(error):
            return unreachable(message)
        if state == CANCELLED:
            return timed_out(self.timeout)
        if is_denied(error):
            raise access_denied(self.label, message) from error
        if state.startswith("42"):
            raise _wrong_query(self.label, message) from error
        return FailedRequest(f"sql-{state.lower()}", message, "4xx" if state.startswith(("22", "23")) else "other")


def _wrong_query(label: str, message: str) -> ProjectError:
    return request_refused(label, message, "fix the query, e.g. with a cast of a parameter: :id::text")


def bounded(query: str) -> str:
    """The query, limited to two rows: enough to detect that there are too many."""
    return f"SELECT * FROM (\n{query.strip().rstrip(';')}\n) AS found LIMIT {_MOST_ROWS}"
