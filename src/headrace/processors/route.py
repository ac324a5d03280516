"""Routes rows by conditions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, PrivateAttr, field_validator

from headrace.core.component import Options
from headrace.core.processor import Batches, PlanContext, Processor, StepContext, StepLetters
from headrace.core.records import spark_schema
from headrace.core.schema import quoted, to_ddl
from headrace.processors._steps.columns import with_type
from headrace.processors._steps.queries import ROWS, check_columns, column_names, condition, rows_table
from headrace.sql.query import parse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_ROUTES = "_routes"


class Route(Options):
    """A value of the route column, and the condition of its rows."""

    to: str = Field(min_length=1, description="The value of the column, a topic for instance.")
    when: str | None = Field(
        None, description="The condition, in Spark SQL. Default: every row.", examples=["eid <> 'LOG'"]
    )

    @field_validator("when")
    @classmethod
    def _is_a_condition(cls, value: str | None) -> str | None:
        if value is not None:
            condition(value)
        return value


class RouteStep(Processor):
    """Adds a column with the route of a row: one output row for each route whose condition is true.

    If several are true, the row is repeated in the order of the routes, or has a list of all of them (`together`),
    which is cheaper for a sink that writes it to each. A row for which none is true gets the route `otherwise`; without
    that it becomes a dead letter with reason `no-route`. A condition that is null is not true; one that cannot be
    computed for a row fails the flow: use try_cast. The sinks kafka (`topic_column`) and files (`folder_column`) write
    a row to the place in the column.

    The output depends on the row alone, so a batch that runs again gives the same rows. Order stays. Native with
    `otherwise`; without it a Python stage writes the dead letters.
    """

    type: Literal["route"] = "route"
    column: str = Field("topic", min_length=1, description="The column of the route; added or replaced.")
    routes: list[Route] = Field(
        min_length=1,
        description="The routes.",
        examples=[[{"to": "orders.large", "when": "amount > 100"}, {"to": "orders.all"}]],
    )
    otherwise: str | None = Field(
        None,
        min_length=1,
        description="The route of a row without a true condition. Default: it is a dead letter.",
    )

    together: bool = Field(False, description="Emit each row once, with a list of all its routes in the column.")

    _sql: str = PrivateAttr("")

    @property
    def label(self) -> str:
        return f"route by {self.column} to {', '.join(self.known_values[self.column])}"

    @property
    def known_values(self) -> Mapping[str, tuple[str, ...]]:
        places = [route.to for route in self.routes] + ([] if self.otherwise is None else [self.otherwise])
        return {self.column: tuple(dict.fromkeys(places))}

    def bound(self, project: PlanContext) -> RouteStep:
        bound = self.model_copy()
        bound._sql = project.written_out(self._query())
        return bound

    @property
    def statements(self) -> tuple[str, ...]:
        return (self._sql,) if self._sql else ()

    def uses(self, wanted: frozenset[str] | None) -> frozenset[str] | None:
        if wanted is None:
            return None
        conditions = [column_names(condition(route.when)) for route in self.routes if route.when is not None]
        return (wanted - {self.column}).union(*conditions)

    def output(self, schema: pa.Schema) -> pa.Schema:
        check_columns(parse(self._query()), schema)
        return with_type(schema, self.column, pa.list_(pa.string()) if self.together else pa.string())

    def apply(self, rows: DataFrame, at: StepContext) -> DataFrame:
        from pyspark.sql import functions as F

        with rows_table(rows):
            routed_rows = rows.sparkSession.sql(self._sql or self._query())
        places = F.col(_ROUTES)
        if self.otherwise is not None:
            places = F.when(F.size(places) == 0, F.array(F.lit(self.otherwise))).otherwise(places)
        if self.together:
            routed = routed_rows.withColumn(_ROUTES, F.when(F.size(places) > 0, places))
        else:
            routed = routed_rows.withColumn(_ROUTES, F.explode_outer(places))
        names = [F.col(quoted(name)) for name in rows.columns if name != self.column]
        if self.column in rows.columns:
            names.insert(rows.columns.index(self.column), F.col(_ROUTES).alias(self.column))
        else:
            names.append(F.col(_ROUTES).alias(self.column))
        routed = routed.select(*names)
        if self.otherwise is not None:
            return routed
        return routed.mapInArrow(_RouteSort(self.column, at.letters), to_ddl(spark_schema(routed)))

    def _query(self) -> str:
        from sqlglot import exp

        places = (
            f"CASE WHEN (\n{'true' if route.when is None else route.when}\n) THEN "
            f"{exp.Literal.string(route.to).sql('spark')} END"
            for route in self.routes
        )
        return f"SELECT *, array_compact(array({', '.join(places)})) AS {_ROUTES} FROM {ROWS}"


@dataclass
class _RouteSort:
    """Keeps rows without a route as dead letters."""

    column: str
    letters: StepLetters

    def __call__(self, batches: Batches) -> Batches:
        try:
            for batch in batches:
                lost = pc.is_null(batch.column(self.column))
                for index in pc.indices_nonzero(lost).to_pylist():
                    self.letters.keep(batch, index, "no-route", "no condition is true")
                yield batch.filter(pc.invert(lost))
        finally:
            self.letters.flush()
