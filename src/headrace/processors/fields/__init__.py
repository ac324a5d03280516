"""Reads fields of documents into columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pyarrow as pa
from pydantic import Field, field_validator

from headrace.core.processor import ArrowProcessor, Batches, StepContext, Work
from headrace.core.python_stage import PythonStage
from headrace.processors._steps.columns import check_document, with_type
from headrace.processors._steps.json_text import path_of, utf8_texts
from headrace.processors.fields.json import reader
from headrace.processors.fields.native import native_reader

# an input column of this name would be lost
_FOUND = "_headrace_fields"


class Fields(ArrowProcessor):
    r"""Reads fields of a JSON document into columns, as texts.

    A path is names joined by dots, `context.pdata.id`; `\.` is a dot within a name. A string is unescaped, any other
    value keeps its JSON text: `12`, `true`, `{"a":1}`. A missing or null field gives null, and so does every field of a
    row whose document is not a JSON object.

    The output depends on the row alone, so a batch that runs again gives the same rows. Order stays. Scale: only named
    fields are parsed, the rest is skipped, which takes a fraction of the time of `from_json`. Behind a step that runs
    in Python, such as `explode`, fields are read in its Python stage, else by Java; on a cluster always in Python.
    """

    type: Literal["fields"] = "fields"
    column: str = Field("value", description="The column with the document.")
    fields: dict[str, str] = Field(
        min_length=1,
        description="The columns, each with its path.",
        examples=[{"kind": "kind", "customer": "order.customer.id"}],
    )

    @field_validator("fields")
    @classmethod
    def _are_paths(cls, value: dict[str, str]) -> dict[str, str]:
        for path in value.values():
            path_of(path)
        return value

    @property
    def label(self) -> str:
        return f"fields of {self.column}: {', '.join(self.fields)}"

    def uses(self, wanted: frozenset[str] | None) -> frozenset[str] | None:
        return None if wanted is None else wanted - set(self.fields) | {self.column}

    def output(self, schema: pa.Schema) -> pa.Schema:
        check_document(schema, self.column, "fields")
        for name in self.fields:
            schema = with_type(schema, name, pa.string())
        return schema

    def work(self, schema: pa.Schema, at: StepContext) -> Work:
        return _Read(self, self.output(schema))

    def extend(self, stage: PythonStage, at: StepContext) -> PythonStage:
        """Where no stage is open, the Java helper reads the fields natively if it is available."""
        paths = [path_of(path) for path in self.fields.values()]
        read = native_reader(stage.rows.sparkSession, paths) if stage.is_empty else None
        if read is None:
            return super().extend(stage, at)
        from pyspark.sql.functions import call_function, col

        output = self.output(stage.schema)
        document = col(f"`{self.column}`").cast("binary")
        added = {name: col(_FOUND).getItem(place).cast("string") for place, name in enumerate(self.fields)}
        columns = [added.get(name, col(f"`{name}`")).alias(name) for name in output.names]
        return PythonStage.of(stage.rows.withColumn(_FOUND, call_function(read, document)).select(*columns))


@dataclass
class _Read:
    """Reads the fields of the documents of a task."""

    step: Fields
    output: pa.Schema

    def __call__(self, batches: Batches) -> Batches:
        # created here: it cannot be pickled
        read = reader([path_of(path) for path in self.step.fields.values()])
        nothing = [None] * len(self.step.fields)
        for batch in batches:
            texts = utf8_texts(batch.column(self.step.column))
            rows = [nothing if text is None else read(text) or nothing for text in texts]
            columns = zip(*rows, strict=True) if rows else nothing
            added = {
                name: pa.array(values or [], pa.binary()).cast(pa.string())
                for name, values in zip(self.step.fields, columns, strict=True)
            }
            parts = [added[name] if name in added else batch.column(name) for name in self.output.names]
            yield pa.RecordBatch.from_arrays(parts, schema=self.output)
