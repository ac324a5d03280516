"""The columns of streams, as far as the project's files declare them."""

from __future__ import annotations

import pyarrow as pa

from headrace.core.errors import ProjectError, did_you_mean
from headrace.core.schema import from_ddl
from headrace.core.source import RowSource, SpoilsRecords
from headrace.project.loader import Project
from headrace.project.model import StreamSpec


def declared_schema(project: Project, name: str, spec: StreamSpec) -> pa.Schema | None:
    """The declared columns of a stream; None if they must be sampled."""
    try:
        if spec.format is not None:
            return spec.format.record_schema(project.context)
        spoils = isinstance(spec.source, SpoilsRecords) and spec.source.needs_format
        if isinstance(spec.source, RowSource) and not spoils:
            return spec.source.row_schema(project.context)
    except ProjectError as error:
        part = "format" if spec.format is not None else "source"
        raise error.at(project.origin("streams", name, part)) from None
    raise ProjectError(
        "missing-format",
        f"stream '{name}' has no format, which its source '{spec.source.kind()}' needs",
        where=project.origin("streams", name),
        hint="add e.g. 'format: json'",
    )


def with_metadata(schema: pa.Schema, spec: StreamSpec) -> pa.Schema:
    """All columns a query may use: those of the record and metadata columns, which win if names clash."""
    if not spec.source.metadata:
        return schema
    metadata = from_ddl(", ".join(f"{column} {kind}" for column, kind in spec.source.metadata.items()))
    return pa.schema([*without_metadata(schema, spec), *metadata])


def without_metadata(schema: pa.Schema, spec: StreamSpec) -> pa.Schema:
    """The columns of the record itself."""
    return pa.schema([field for field in schema if field.name not in spec.source.metadata])


def check_event_time(project: Project, name: str, spec: StreamSpec, schema: pa.Schema) -> None:
    """Refuse an event-time column that does not exist or cannot be a time."""
    if spec.event_time is None:
        return
    column, where = spec.event_time.column, project.origin("streams", name, "event_time")
    if column not in schema.names:
        raise ProjectError(
            "unknown-column",
            f"event_time of stream '{name}' uses the unknown column '{column}'",
            where=where,
            hint=did_you_mean(column, schema.names, f"columns of '{name}'"),
        )
    kind = schema.field(column).type
    if pa.types.is_nested(kind) or pa.types.is_boolean(kind) or pa.types.is_binary(kind):
        raise ProjectError(
            "bad-event-time",
            f"event_time of stream '{name}' uses the column '{column}' of type {kind}",
            where=where,
            hint="it must be a timestamp, a date, a number since 1970 or a string such as 2026-01-31T12:00:00Z",
        )
