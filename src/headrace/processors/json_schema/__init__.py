"""Validates documents against JSON Schemas."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import pyarrow as pa
from pydantic import Field, PrivateAttr, field_validator

from headrace.core.processor import Batches, PlanContext, Processor, StepContext
from headrace.core.python_stage import PythonStage
from headrace.processors._steps.columns import check_document, with_type
from headrace.processors._steps.json_text import utf8_texts
from headrace.processors._steps.queries import ROWS, check_columns, column_names, rows_table
from headrace.processors.json_schema.validators import Texts, Validators, errors_of, read_folder, validators
from headrace.sql.query import SqlError, parse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SCHEMA_FILE = "_json_schema"
_ERRORS = pa.list_(pa.struct([("keyword", pa.string()), ("path", pa.string()), ("message", pa.string())]))
_DECODER = msgspec.json.Decoder()


class JsonSchema(Processor):
    """Adds a column with the errors of a JSON document against a JSON Schema; null for a valid document.

    The column is an array of structs of `keyword`, `path` (a JSON pointer) and `message`, with every error up to
    `max_errors`. A text that is not JSON, or nested too deeply, has one error with keyword `json`; one larger than
    `max_bytes` has one with keyword `size`; one without a schema has one with keyword `schema`. Schemas may refer to
    others in the folder: a `$ref` means the file that its path ends with, and an `id` is ignored. Nothing is fetched.
    Formats (`date-time`) are checked.

    Every row passes; later steps decide what to do with it. The schemas are read when the flow is planned: a batch that
    runs again gives the same rows. Order stays. Scale: schemas are compiled once per worker process, and one document
    per task is parsed at a time.
    """

    type: Literal["json_schema"] = "json_schema"
    column: str = Field("value", description="The column with the document.")
    schemas: str = Field(
        min_length=1, description="The folder of the schemas: its .json files, and those of folders in it.",
        examples=["schemas/orders"],
    )  # fmt: skip
    schema_: str = Field(
        min_length=1,
        alias="schema",
        description="The file of the folder, as an expression in Spark SQL.",
        examples=["'order.json'", "lower(kind) || '.json'"],
    )
    draft: Literal[4, 6, 7, 2019, 2020] = Field(2020, description="The draft of JSON Schema they are written in.")
    into: str = Field("errors", min_length=1, description="The column of errors.")
    missing: str = Field("there is no schema for it", description="The message for a document without schema.")
    max_errors: int = Field(20, ge=1, description="The number of errors that are reported per document, at most.")
    max_bytes: int = Field(16 << 20, ge=1, description="A larger document is not parsed.")

    _sql: str = PrivateAttr("")
    _texts: Any = PrivateAttr(None)

    @field_validator("schema_")
    @classmethod
    def _is_an_expression(cls, value: str) -> str:
        try:
            query = parse(_query(value))
        except SqlError as error:
            raise ValueError(f"not an expression: {error.message}") from None
        if len(query.inputs) > 1:
            raise ValueError("an expression cannot have a query inside it")
        return value

    @property
    def label(self) -> str:
        return f"json_schema {self.column} by {self.schemas}"

    def bound(self, project: PlanContext) -> JsonSchema:
        bound = self.model_copy()
        bound._texts = read_folder(Path(project.context.path(self.schemas)), self.schemas)
        validators(self.draft, bound._texts).check(self.schemas)
        bound._sql = project.written_out(_query(self.schema_))
        return bound

    @property
    def statements(self) -> tuple[str, ...]:
        return (self._sql,) if self._sql else ()

    def uses(self, wanted: frozenset[str] | None) -> frozenset[str] | None:
        return None if wanted is None else wanted - {self.into} | {self.column} | column_names(_query(self.schema_))

    def output(self, schema: pa.Schema) -> pa.Schema:
        check_document(schema, self.column, "json_schema")
        check_columns(parse(_query(self.schema_)), schema)
        return with_type(schema, self.into, _ERRORS)

    def apply(self, rows: DataFrame, at: StepContext) -> DataFrame:
        return self.extend(PythonStage.of(rows), at).finish()

    def extend(self, stage: PythonStage, at: StepContext) -> PythonStage:
        """The name of the schema is a native expression; documents are checked in a new Python stage."""
        assert self._texts is not None, "a step is bound before it is used"
        output = self.output(stage.schema)
        rows = stage.finish()
        with rows_table(rows):
            named = PythonStage.of(rows.sparkSession.sql(self._sql))
        return named.then(_Check(self, self._texts, output), output, at.letters)


def _query(expression: str) -> str:
    # on its own line: it may end with a comment
    return f"SELECT *, CAST((\n{expression}\n) AS STRING) AS {_SCHEMA_FILE} FROM {ROWS}"


@dataclass
class _Check:
    """Validates the documents of a task."""

    step: JsonSchema
    texts: Texts
    output: pa.Schema
    _known: Validators | None = field(default=None, repr=False)

    def __call__(self, batches: Batches) -> Batches:
        self._known = validators(self.step.draft, self.texts)
        for batch in batches:
            texts = utf8_texts(batch.column(self.step.column))
            names = batch.column(_SCHEMA_FILE).to_pylist()
            errors = pa.array([self._errors(*pair) for pair in zip(texts, names, strict=True)], _ERRORS)
            columns = [errors if name == self.step.into else batch.column(name) for name in self.output.names]
            yield pa.RecordBatch.from_arrays(columns, schema=self.output)

    def _errors(self, text: bytes | None, name: str | None) -> list[dict[str, str]] | None:
        assert self._known is not None
        if text is None:
            return _one("json", "there is no text")
        if len(text) > self.step.max_bytes:
            return _one("size", f"it has {len(text):,} bytes")
        validator = self._known.get(name)
        try:
            document = _DECODER.decode(text)
            if validator is None:
                return _one("schema", self.step.missing)
            return None if validator.is_valid(document) else errors_of(validator, document, self.step.max_errors)
        except (ValueError, RecursionError) as error:
            return _one("json", str(error))


def _one(keyword: str, message: str) -> list[dict[str, str]]:
    return [{"keyword": keyword, "path": "", "message": message}]
