"""Runs a class of the project on the rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow as pa
from pydantic import Field, PrivateAttr, field_validator

from headrace.core.context import Context
from headrace.core.errors import ProjectError
from headrace.core.processor import ArrowProcessor, Batches, PlanContext, StepContext, Work, require
from headrace.core.schema import from_ddl
from headrace.processors._steps.columns import heads, typed_columns, with_type
from headrace.processors._steps.project_class import ProjectClass, find_class


class PythonStep(ArrowProcessor):
    """Passes the rows, one Arrow batch at a time, to a class of the project or of an installed module.

    The class has one method: `def process(self, batch: pa.RecordBatch) -> pa.RecordBatch`, or with pd.DataFrame for
    both; it may return fewer or more rows. There is one instance per task. `columns`, here or in the class, declares
    the columns that it adds. A class in a file of the project is sent to workers as text, so it can use installed
    modules but no other file of the project.

    A batch may run again after a crash: the result must not depend on the clock, on chance or on earlier batches, and
    the class must not have effects elsewhere. Batches have up to some ten thousand rows, and their boundaries have no
    meaning. An exception fails the flow with file and line. Order is as the class returns it.
    """

    type: Literal["python"] = "python"
    class_: str = Field(
        alias="class",
        pattern=r"^[^:]+:[A-Za-z_]\w*$",
        description="The file and the class, or an installed module and the class.",
        examples=["processors/scores.py:Scores"],
    )
    options: dict[str, Any] = Field(
        default={}, description="Keyword arguments of the class.", examples=[{"threshold": 0.5}]
    )
    columns: str | None = Field(
        None,
        description="The columns it adds or changes, with their types. Default: the attribute `columns` of the class, "
        "else none.",
        examples=["score double, reasons array<string>"],
    )
    keep: bool | None = Field(
        None,
        description="Whether the other columns stay. Default: the attribute `keep` of the class, else true.",
    )
    uses_columns: list[str] | None = Field(
        None, alias="uses", description="The columns it reads. Default: all.", examples=[["amount", "customer"]]
    )

    _class: ProjectClass | None = PrivateAttr(None)

    @field_validator("columns")
    @classmethod
    def _typed(cls, value: str | None) -> str | None:
        if value is not None:
            typed_columns(value)
        return value

    @property
    def label(self) -> str:
        return f"python {self.class_}"

    def bound(self, project: PlanContext) -> PythonStep:
        """Finds and parses the class; its file is not run."""
        bound = self.model_copy()
        bound._class = find_class(self.class_, project.context)
        return bound

    def check(self, context: Context) -> None:
        """Instantiate the class once."""
        self._found().make(self.options)

    def uses(self, wanted: frozenset[str] | None) -> frozenset[str] | None:
        if self.uses_columns is None or (wanted is None and self._keeps()):
            return None
        own = heads(self.uses_columns)
        return own | (wanted or frozenset()) - set(self._declared().names) if self._keeps() else own

    def output(self, schema: pa.Schema) -> pa.Schema:
        require(schema, self.uses_columns or (), "python")
        declared = self._declared()
        if not self._keeps():
            return declared
        for column in declared:
            schema = with_type(schema, column.name, column.type)
        return schema

    def work(self, schema: pa.Schema, at: StepContext) -> Work:
        return _Run(self._found(), self.options, self.output(schema))

    def _found(self) -> ProjectClass:
        assert self._class is not None, "a step is bound before it is used"
        return self._class

    def _declared(self) -> pa.Schema:
        ddl = self.columns if self.columns is not None else self._found().columns
        return from_ddl(ddl) if ddl else pa.schema([])

    def _keeps(self) -> bool:
        keep = self.keep if self.keep is not None else self._found().keep
        return True if keep is None else keep


@dataclass
class _Run:
    """Runs the class in a task."""

    known: ProjectClass
    options: dict[str, Any]
    output: pa.Schema
    _instance: Any = field(default=None, repr=False)

    def __call__(self, batches: Batches) -> Batches:
        for batch in batches:
            if self._instance is None:
                self._instance = self.known.make(self.options)
            yield from self._process(batch)

    def _process(self, batch: pa.RecordBatch) -> Batches:
        rows = batch.to_pandas() if self.known.pandas else batch
        try:
            result = self._instance.process(rows)
        except ProjectError:
            raise
        except Exception as error:
            raise self.known.failed(error) from error
        yield from self._checked(result).to_batches()

    def _checked(self, result: Any) -> pa.Table:
        import pandas as pd

        try:
            if isinstance(result, pd.DataFrame):
                self._check_names(list(result.columns))
                return pa.Table.from_pandas(result, self.output, preserve_index=False)
            if isinstance(result, pa.RecordBatch):
                result = pa.Table.from_batches([result])
            if isinstance(result, pa.Table):
                self._check_names(result.column_names)
                return result.select(self.output.names).cast(self.output)
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
            raise self.known.error("python-step-columns", f"returned a value of another type: {error}") from error
        what = type(result).__name__
        raise self.known.error("python-step-columns", f"returned {what} instead of a batch of rows")

    def _check_names(self, names: list[str]) -> None:
        for name in self.output.names:
            if name not in names:
                raise self.known.error("python-step-columns", f"returned no column '{name}'")
