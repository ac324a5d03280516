"""What may stand under `tables:` of headrace.yaml."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated

import pyarrow as pa
from pydantic import Field

from headrace.core.component import Options
from headrace.core.context import Context
from headrace.core.errors import ProjectError, did_you_mean
from headrace.core.kinds import KindOf
from headrace.core.tables import TableShape, TableSource


class TableSpec(Options):
    """Keyed rows that change: a snapshot, then inserts, updates and deletes. Flows that read tables are views."""

    description: str = Field("", description="What the table holds.")
    source: Annotated[TableSource, KindOf("tables")] = Field(description="Where the rows come from.")
    key: list[str] = Field(
        default=[],
        description="The columns that identify a row, where the source does not say it.",
        examples=[["id"], ["country", "number"]],
    )

    def shape(self, name: str, context: Context) -> TableShape:
        """The columns and the key, as the source and the options say. May connect."""
        found = self.source.shape(context)
        if self.key and found.key and tuple(self.key) != found.key:
            raise ProjectError(
                "table-key",
                f"table '{name}' has the key {', '.join(self.key)}, and its source says {', '.join(found.key)}",
                hint=f"leave out 'key' of tables.{name}: the source only tells what changes by its own key",
            )
        shape = replace(found, key=found.key or tuple(self.key))
        _require_key(name, shape)
        return shape


def groups(tables: Mapping[str, TableSpec]) -> dict[str, dict[str, TableSpec]]:
    """The tables by the groups that they are read in; those of one group are of one kind."""
    found: dict[str, dict[str, TableSpec]] = {}
    for name, spec in tables.items():
        found.setdefault(spec.source.group, {})[name] = spec
    return found


def _require_key(name: str, shape: TableShape) -> None:
    if not shape.key:
        raise ProjectError(
            "table-key",
            f"nothing says what identifies a row of table '{name}'",
            hint=f"name columns that do: tables.{name}.key: [id]",
        )
    for column in shape.key:
        if column not in shape.columns.names:
            raise ProjectError(
                "table-key",
                f"the key of table '{name}' names '{column}'",
                hint=did_you_mean(column, shape.columns.names, "columns"),
            )
        if pa.types.is_nested(shape.columns.field(column).type):
            raise ProjectError(
                "table-key",
                f"the key of table '{name}' names '{column}', which is {shape.columns.field(column).type}",
                hint="a row is identified by simple values: texts, numbers, times",
            )
