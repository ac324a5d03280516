"""The section `tables:` of headrace.yaml."""

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
        """The columns and the key, from the source and the options. May connect."""
        source_shape = self.source.shape(context)
        if self.key and source_shape.key and tuple(self.key) != source_shape.key:
            raise ProjectError(
                "table-key",
                f"table '{name}' has the key {', '.join(self.key)}, but its source has {', '.join(source_shape.key)}",
                hint=f"remove 'key' of tables.{name}: the source reports changes by its own key",
            )
        shape = replace(source_shape, key=source_shape.key or tuple(self.key))
        _require_key(name, shape)
        return shape


def groups(tables: Mapping[str, TableSpec]) -> dict[str, dict[str, TableSpec]]:
    """The tables by table group; tables of one group are of one kind."""
    by_group: dict[str, dict[str, TableSpec]] = {}
    for name, spec in tables.items():
        by_group.setdefault(spec.source.group, {})[name] = spec
    return by_group


def _require_key(name: str, shape: TableShape) -> None:
    if not shape.key:
        raise ProjectError(
            "table-key",
            f"table '{name}' has no key",
            hint=f"declare the columns that identify a row: tables.{name}.key: [id]",
        )
    for column in shape.key:
        if column not in shape.columns.names:
            raise ProjectError(
                "table-key",
                f"the key of table '{name}' contains the unknown column '{column}'",
                hint=did_you_mean(column, shape.columns.names, "columns"),
            )
        if pa.types.is_nested(shape.columns.field(column).type):
            raise ProjectError(
                "table-key",
                f"the key of table '{name}' contains '{column}' of type {shape.columns.field(column).type}",
                hint="key columns must have simple types: strings, numbers, times",
            )
