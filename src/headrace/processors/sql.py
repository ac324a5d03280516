"""A second query over the rows of a flow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import pyarrow as pa
from pydantic import Field, PrivateAttr, field_validator
from sqlglot import exp

from headrace.core.errors import ProjectError
from headrace.core.processor import Batches, PlanContext, Processor, StepContext
from headrace.core.python_stage import PythonStage
from headrace.processors._steps.queries import ROWS, check_columns, column_names, rows_table
from headrace.sql.query import Query, SqlError, parse
from headrace.sql.streaming import refusals, state_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class SqlStep(Processor):
    """Runs a query in Spark SQL; its input rows are the table `rows`.

    It processes each row alone: windows, groups, joins and DISTINCT belong in the SQL of the flow, and are refused
    here. Order stays.
    """

    type: Literal["sql"] = "sql"
    sql: str = Field(
        min_length=1,
        description="The query.",
        examples=["SELECT *, round(amount * rate, 2) AS euros FROM rows WHERE rate IS NOT NULL"],
    )

    realtime: ClassVar[bool] = True
    _written_out: str = PrivateAttr("")

    @field_validator("sql")
    @classmethod
    def _is_a_query(cls, value: str) -> str:
        try:
            query = parse(value)
        except SqlError as error:
            raise ValueError(error.message) from None
        if [name.lower() for name in query.tables] != [ROWS]:
            raise ValueError(f"the query of a step reads the table {ROWS}, and no other")
        return value

    @property
    def label(self) -> str:
        text = " ".join(self.sql.split())
        return f"sql {text if len(text) <= 80 else text[:79] + '…'}"

    def bound(self, project: PlanContext) -> SqlStep:
        bound = self.model_copy()
        bound._written_out = project.written_out(self.sql)
        return bound

    @property
    def statements(self) -> tuple[str, ...]:
        return (self._written_out,) if self._written_out else ()

    def uses(self, wanted: frozenset[str] | None) -> frozenset[str] | None:
        """Every column that the query may name."""
        return None if _has_star(parse(self.sql)) else column_names(self.sql)

    def output(self, schema: pa.Schema) -> pa.Schema:
        """The columns of the query; only the types of columns that it passes unchanged are known."""
        query = parse(self.sql)
        for refusal in refusals(query):
            raise refusal
        state = state_of(query)
        if state:
            raise ProjectError(
                "sql-not-streamable",
                f"the query of a step processes each row alone, and this one needs state ({', '.join(state)})",
                hint="put it into the SQL of the flow, or into a flow that reads this one",
            )
        check_columns(query, schema)
        return pa.schema(_columns(query, schema))

    def apply(self, rows: DataFrame, at: StepContext) -> DataFrame:
        with rows_table(rows):
            return rows.sparkSession.sql(self._written_out or self.sql)

    def extend(self, stage: PythonStage, at: StepContext) -> PythonStage:
        """A query that only picks columns does not end the stage."""
        picked = None if stage.is_empty else _picked(parse(self.sql), stage.schema)
        if picked is None:
            return super().extend(stage, at)
        return stage.then(_Pick(tuple(picked)), pa.schema([stage.schema.field(name) for name in picked]), at.letters)


@dataclass(frozen=True)
class _Pick:
    """A query that only picks columns, in a task."""

    names: tuple[str, ...]

    def __call__(self, batches: Batches) -> Batches:
        for batch in batches:
            yield batch.select(self.names)


def _picked(query: Query, schema: pa.Schema) -> list[str] | None:
    """The columns that a query gives as they are, if it does nothing else."""
    tree = query.tree
    if not isinstance(tree, exp.Select) or _parts(tree) != {"expressions", "from_"}:
        return None
    if _parts(tree.args["from_"].this) - {"this", "alias"}:
        return None
    names = [select.name for select in tree.selects if isinstance(select, exp.Column) and len(select.parts) == 1]
    simple = len(names) == len(tree.selects) == len(set(names)) and all(name in schema.names for name in names)
    return names if simple else None


def _parts(part: exp.Expr) -> set[str]:
    return {name for name, value in part.args.items() if value}


def _has_star(query: Query) -> bool:
    return any(select.is_star for select in query.tree.selects)


def _columns(query: Query, schema: pa.Schema) -> list[pa.Field]:
    columns: dict[str, pa.Field] = {}
    for select in query.tree.selects:
        if select.is_star:
            left_out = {part.name.lower() for part in select.find_all(exp.Identifier)}
            columns |= {field.name: field for field in schema if field.name.lower() not in left_out}
            continue
        plain = select.unalias()
        name = select.alias_or_name
        known = schema.get_field_index(plain.name) if isinstance(plain, exp.Column) and len(plain.parts) == 1 else -1
        columns[name] = pa.field(name, schema.field(known).type if known >= 0 else pa.null())
    return list(columns.values())
