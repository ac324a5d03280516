"""Inferred columns of streams: sampled once, then stored, so that a restart has the same columns."""

from __future__ import annotations

import pyarrow as pa

from headrace.core.errors import ProjectError
from headrace.core.files.state_files import write_atomically
from headrace.core.format import InfersSchema
from headrace.core.schema import from_ddl, to_ddl
from headrace.core.source import HasSample, RecordSource
from headrace.engine.state.state import StateDir
from headrace.project.loader import Project
from headrace.project.model import StreamSpec

SAMPLE = 1000


def infer_schema(project: Project, state: StateDir, name: str, spec: StreamSpec) -> pa.Schema | None:
    """The stored or sampled columns of a stream whose format does not declare them."""
    stored = stored_schema(state, name)
    if stored is not None:
        return stored
    if spec.format is None or not isinstance(spec.source, RecordSource):
        return None
    sample = spec.source.sample(project.context, SAMPLE) if isinstance(spec.source, HasSample) else []
    if not sample:
        raise ProjectError(
            "schema-unknown",
            f"the columns of stream '{name}' cannot be inferred: the source has no record yet",
            where=project.origin("streams", name, "format"),
            hint="declare them, e.g. format: {type: json, columns: 'id bigint, at timestamp'}",
        )
    assert isinstance(spec.format, InfersSchema), "every other format knows its schema"
    schema = spec.format.infer(sample)
    write_atomically(state.schema_file(name), to_ddl(schema).encode())
    return schema


def stored_schema(state: StateDir, name: str) -> pa.Schema | None:
    """The columns of a stream that were inferred earlier."""
    file = state.schema_file(name)
    return from_ddl(file.read_text(encoding="utf-8")) if file.is_file() else None
