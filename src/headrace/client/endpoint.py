"""The client of one endpoint."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from headrace.client.errors import ApiError, ClientError, NotFoundError
from headrace.client.events import Events
from headrace.client.frames import rows_table
from headrace.client.transport import Transport

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

Filter = Mapping[str, Any]
_PAGE = 500
OrderBy = str | Sequence[str] | Mapping[str, str]


class EndpointClient:
    """Rows of one endpoint: by key, by filter, and live."""

    def __init__(self, transport: Transport, name: str) -> None:
        self.name = name
        self._transport = transport
        self._path = "/" + quote(name, safe="@")
        self._columns: dict[str, str] | None = None

    def __repr__(self) -> str:
        return f"EndpointClient({self.name!r})"

    def get(self, key: Any) -> dict[str, Any] | None:
        """The row of a key; None if it does not exist. For several key columns pass a tuple."""
        parts = key if isinstance(key, (tuple, list)) else (key,)
        text = ",".join(quote(_key_text(part), safe="") for part in parts)
        try:
            row, _ = self._transport.ask("GET", f"{self._path}/{text}")
        except NotFoundError as error:
            if error.code != "no-row":
                raise
            return None
        return dict(row)

    def query(
        self,
        filter: Filter | None = None,
        *,
        order_by: OrderBy | None = None,
        limit: int | None = None,
        page: int | None = None,
    ) -> Iterator[dict[str, Any]]:
        """All rows that match the filter, fetched page by page; a row that does not change is returned once, whatever
        is written meanwhile. `page` is the number of rows per request: 500 by default, or fewer if the server allows
        fewer."""
        left, size = limit, page or _PAGE
        document = _query(filter, order_by)
        while left is None or left > 0:
            document["$limit"] = size if left is None else min(size, left)
            try:
                rows, headers = self._transport.ask("POST", f"{self._path}/query", document)
            except ApiError as error:
                if error.code != "page-too-large" or page is not None or size == 1:
                    raise
                size //= 2
                continue
            yield from rows
            left = None if left is None else left - len(rows)
            if "x-next-cursor" not in headers:
                return
            document["$after"] = headers["x-next-cursor"]

    def count(self, filter: Filter | None = None) -> int:
        """The number of rows that match the filter."""
        number, _ = self._transport.ask("POST", f"{self._path}/count", _query(filter, None))
        return int(number)

    def events(
        self,
        filter: Filter | None = None,
        *,
        types: Iterable[str] | None = None,
        snapshot: bool = False,
        after: str | None = None,
    ) -> Events:
        """Changes as they happen. `snapshot`: the current rows first; `after`: the changes after an event's id."""
        query = {}
        if filter is not None:
            query["$filter"] = json.dumps(filter, default=jsonable)
        if types is not None:
            query["types"] = ",".join(types)
        if snapshot:
            query["snapshot"] = "true"
        return Events(self._transport, f"{self._path}/events", query, after)

    def columns(self) -> dict[str, str]:
        """Names and types of the columns."""
        if self._columns is None:
            document, _ = self._transport.ask("GET", f"{self._path}/oapi")
            self._columns = _columns(document, self.name)
        return self._columns

    def to_arrow(
        self, filter: Filter | None = None, *, order_by: OrderBy | None = None, limit: int | None = None
    ) -> pa.Table:
        """Rows as a table with the endpoint's types."""
        return rows_table(self.columns(), list(self.query(filter, order_by=order_by, limit=limit)))

    def to_pandas(
        self, filter: Filter | None = None, *, order_by: OrderBy | None = None, limit: int | None = None
    ) -> pd.DataFrame:
        return self.to_arrow(filter, order_by=order_by, limit=limit).to_pandas()


def _query(filter: Filter | None, order_by: OrderBy | None) -> dict[str, Any]:
    document: dict[str, Any] = {}
    if filter is not None:
        document["$filter"] = json.loads(json.dumps(filter, default=jsonable))
    if order_by is not None:
        names = [order_by] if isinstance(order_by, str) else order_by
        document["$order_by"] = dict(names) if isinstance(names, Mapping) else dict.fromkeys(names, "asc")
    return document


def jsonable(value: Any) -> Any:
    """Converts values without a JSON form to the form that the server accepts."""
    match value:
        case datetime():
            return value.isoformat() if value.tzinfo is None else value.astimezone(UTC).isoformat()
        case date():
            return value.isoformat()
        case Decimal():
            return str(value)
        case bytes():
            return base64.b64encode(value).decode()
    raise TypeError(f"a value of type {type(value).__name__} is not supported in a filter or a key")


def _key_text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, str | int | float) else str(jsonable(value))


def _columns(document: dict[str, Any], name: str) -> dict[str, str]:
    """The column types in the OpenAPI document of an endpoint."""
    for schema in document["components"]["schemas"].values():
        columns = {key: column.get("x-headrace-type") for key, column in schema.get("properties", {}).items()}
        if columns and all(columns.values()):
            return columns
    raise ClientError(f"the server does not report the column types of '{name}'")
