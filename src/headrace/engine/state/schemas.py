"""Columns that no file declares: learned from a sample once, then kept, so that a restart sees the same ones."""

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
    """The kept or sampled columns of a stream whose format does not know them."""
    known = kept_schema(state, name)
    if known is not None:
        return known
    if spec.format is None or not isinstance(spec.source, RecordSource):
        return None
    sample = spec.source.sample(project.context, SAMPLE) if isinstance(spec.source, HasSample) else []
    if not sample:
        raise ProjectError(
            "schema-unknown",
            f"the columns of stream '{name}' are to be inferred, but there is no record yet to look at",
            where=project.origin("streams", name, "format"),
            hint="declare them, e.g. format: {type: json, columns: 'id bigint, at timestamp'}",
        )
    assert isinstance(spec.format, InfersSchema), "every other format knows its schema"
    schema = spec.format.infer(sample)
    write_atomically(state.schema_file(name), to_ddl(schema).encode())
    return schema


def kept_schema(state: StateDir, name: str) -> pa.Schema | None:
    """The columns of a stream that were learned before."""
    kept = state.schema_file(name)
    return from_ddl(kept.read_text(encoding="utf-8")) if kept.is_file() else None
