"""A processor that the project itself brings along."""

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
    """Gives the rows, one Arrow batch at a time, to a class of the project or of an installed module.

    The class has one method: `def process(self, batch: pa.RecordBatch) -> pa.RecordBatch`, or with pd.DataFrame for
    both; it may give fewer or more rows. One instance is made per task. What columns it makes is said under `columns`
    here or in the class. A class in a file of the project is sent to workers as text, so it can use installed modules
    but no other file of the project.

    A batch may run again after a crash: what a class gives must not depend on the clock, on chance or on what it has
    seen before, nor must it have effects elsewhere. Batches have up to some ten thousand rows, and where one ends says
    nothing. An exception fails the flow with file and line. Order is as the class gives it.
    """

    type: Literal["python"] = "python"
    class_: str = Field(
        alias="class",
        pattern=r"^[^:]+:[A-Za-z_]\w*$",
        description="The file and the class, or an installed module and the class.",
        examples=["processors/scores.py:Scores"],
    )
    options: dict[str, Any] = Field(
        default={}, description="Arguments by name for making the class.", examples=[{"threshold": 0.5}]
    )
    columns: str | None = Field(
        None,
        description="The columns it makes or changes, with their types. Default: what the class says in its attribute "
        "`columns`, else none.",
        examples=["score double, reasons array<string>"],
    )
    keep: bool | None = Field(
        None,
        description="Whether the other columns come out too. Default: what the class says in `keep`, else true.",
    )
    uses_columns: list[str] | None = Field(
        None, alias="uses", description="The columns it looks at. Default: all.", examples=[["amount", "customer"]]
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
        """With the class found and looked at; its file is not run."""
        bound = self.model_copy()
        bound._class = find_class(self.class_, project.context)
        return bound

    def check(self, context: Context) -> None:
        """Make the class once."""
        self._found().make(self.options)

    def uses(self, wanted: frozenset[str] | None) -> frozenset[str] | None:
        """What it looks at, and what it lets through."""
        if self.uses_columns is None or (wanted is None and self._keeps()):
            return None
        own = heads(self.uses_columns)
        return own | (wanted or frozenset()) - set(self._made().names) if self._keeps() else own

    def output(self, schema: pa.Schema) -> pa.Schema:
        """The columns it makes, with the others or alone."""
        require(schema, self.uses_columns or (), "python")
        made = self._made()
        if not self._keeps():
            return made
        for one in made:
            schema = with_type(schema, one.name, one.type)
        return schema

    def work(self, schema: pa.Schema, at: StepContext) -> Work:
        return _Run(self._found(), self.options, self.output(schema))

    def _found(self) -> ProjectClass:
        assert self._class is not None, "a step is bound before it is used"
        return self._class

    def _made(self) -> pa.Schema:
        said = self.columns if self.columns is not None else self._found().columns
        return from_ddl(said) if said else pa.schema([])

    def _keeps(self) -> bool:
        said = self.keep if self.keep is not None else self._found().keep
        return True if said is None else said


@dataclass
class _Run:
    """What a task does."""

    known: ProjectClass
    options: dict[str, Any]
    output: pa.Schema
    _instance: Any = field(default=None, repr=False)

    def __call__(self, batches: Batches) -> Batches:
        for batch in batches:
            if self._instance is None:
                self._instance = self.known.make(self.options)
            yield from self._one(batch)

    def _one(self, batch: pa.RecordBatch) -> Batches:
        given = batch.to_pandas() if self.known.pandas else batch
        try:
            made = self._instance.process(given)
        except ProjectError:
            raise
        except Exception as error:
            raise self.known.failed(error) from error
        yield from self._checked(made).to_batches()

    def _checked(self, made: Any) -> pa.Table:
        import pandas as pd

        try:
            if isinstance(made, pd.DataFrame):
                self._check_names(list(made.columns))
                return pa.Table.from_pandas(made, self.output, preserve_index=False)
            if isinstance(made, pa.RecordBatch):
                made = pa.Table.from_batches([made])
            if isinstance(made, pa.Table):
                self._check_names(made.column_names)
                return made.select(self.output.names).cast(self.output)
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
            raise self.known.error("python-step-columns", f"gave a value of another type: {error}") from error
        what = type(made).__name__
        raise self.known.error("python-step-columns", f"gave {what} instead of a batch of rows")

    def _check_names(self, names: list[str]) -> None:
        for name in self.output.names:
            if name not in names:
                raise self.known.error("python-step-columns", f"gave no column '{name}'")
