"""A view as one batch query, and the types of its operators as Spark reports them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.core.errors import ProjectError
from headrace.core.schema import ddl_type, quoted
from headrace.views.algebra.operators import (
    Aggregate,
    Join,
    Match,
    Operator,
    Projection,
    Ranked,
    Scan,
    Selection,
    UnionAll,
)
from headrace.views.algebra.sql_text import column_list

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ONE = "1 AS `__one`"
"""A placeholder where no column is selected."""
_CLOCK = re.compile(r"cast\(((?:now|today|tomorrow|yesterday)\b[^()]*) as (?:date|timestamp)", re.IGNORECASE)
"""Strings that Spark casts to a time relative to now."""
_VARIANT = re.compile(r'^"variant"$|"(type|elementType|valueType)":"variant"')
_GENERATED_NAME = re.compile(r"([`\"]\w+)_\d+([`\"])")
_TRY_IN_SPARK = "run the same SQL in Spark: its message about names and types applies to this query"
_MATCHES = {"left": "LEFT", "right": "RIGHT", "full": "FULL", "semi": "LEFT SEMI", "anti": "LEFT ANTI"}


def batch_sql(operator: Operator, table: Callable[[str], str]) -> str:
    """The query that computes the whole result; `table` maps a table to the relation with its rows."""
    match operator:
        case Scan(table_name, fields):
            columns = [f"{quoted(source)} AS {quoted(name)}" for name, source in fields]
            return f"SELECT {', '.join(columns) or _ONE} FROM {table(table_name)}"
        case Projection(below, expressions):
            return f"SELECT {', '.join(aliased(expressions)) or _ONE} FROM ({batch_sql(below, table)})"
        case Selection(below, condition):
            return f"SELECT * FROM ({batch_sql(below, table)}) WHERE {condition}"
        case UnionAll(inputs):
            return " UNION ALL ".join(f"SELECT * FROM ({batch_sql(input_, table)})" for input_ in inputs)
        case Join(inputs):
            sides = " CROSS JOIN ".join(f"({batch_sql(input_, table)})" for input_ in inputs)
            return f"SELECT {_columns(operator)} FROM {sides} WHERE {match_condition(operator)}"
        case Match(kind, left, right):
            sides = f"({batch_sql(left, table)}) {_MATCHES[kind]} JOIN ({batch_sql(right, table)})"
            return f"SELECT {_columns(operator)} FROM {sides} ON {match_condition(operator)}"
        case Aggregate(below, keys, calls):
            group = f" GROUP BY {', '.join(column_list(keys))}" if keys else ""
            selected = [*column_list(keys), *(f"{call.sql} AS {quoted(call.name)}" for call in calls)]
            return f"SELECT {', '.join(selected)} FROM ({batch_sql(below, table)}){group}"
        case Ranked(below, _, expressions):
            return f"SELECT {', '.join(['*', *aliased(expressions)])} FROM ({batch_sql(below, table)})"


def match_condition(join: Join | Match) -> str:
    """The condition on a combined row. The column names of the sides are distinct, so no qualifier is needed."""
    equal = [f"{quoted(pair.left)} {'<=>' if pair.nulls else '='} {quoted(pair.right)}" for pair in join.equal]
    return " AND ".join([*equal, *([f"({join.condition})"] if join.condition else [])]) or "true"


def _columns(operator: Operator) -> str:
    return ", ".join(column_list(operator.columns)) or _ONE


def aliased(expressions: tuple[tuple[str, str], ...]) -> list[str]:
    """The expressions AS their names. A bare NULL has no type and could not be stored, so it is cast."""
    typed = (("CAST(NULL AS STRING)" if sql.upper() == "NULL" else sql, name) for name, sql in expressions)
    return [f"{sql} AS {quoted(name)}" for sql, name in typed]


class OperatorTypes:
    """The column types of each operator of a view, from Spark's analysis over empty tables."""

    def __init__(self, spark: SparkSession, tables: Mapping[str, str]) -> None:
        self._spark = spark
        self._tables = tables
        """The empty relation of each table."""
        self._schemas: dict[Operator, pa.Schema] = {}

    def schema(self, operator: Operator) -> pa.Schema:
        if operator not in self._schemas:
            query = batch_sql(operator, self._tables.__getitem__)
            self._schemas[operator] = arrow_schema(self._spark, query, operator.columns)
        return self._schemas[operator]

    def of(self, operator: Operator) -> dict[str, str]:
        """The column types as Spark SQL."""
        return {field.name: ddl_type(field.type) for field in self.schema(operator)}

    def refuse_clock(self, operator: Operator) -> None:
        """Refuse strings such as 'now' that Spark casts to a time: only its analysed plan shows where."""
        self.schema(operator)  # refuses queries that Spark refuses
        analysed: Any = self._spark.sql(batch_sql(operator, self._tables.__getitem__))._jdf.queryExecution().analyzed()
        clock_cast = _CLOCK.search(analysed.toString())
        if clock_cast is not None:
            raise ProjectError(
                "view-unsupported",
                f"'{clock_cast[1]}' as a time in a view: it depends on the clock",
                hint="write the day or the time, or use a column of a table",
            )

    def compared(self, left: Operator, column: str, right: Operator, other: str) -> str:
        """The type in which Spark compares two columns of different types."""
        sides = " CROSS JOIN ".join(f"({batch_sql(side, self._tables.__getitem__)})" for side in (left, right))
        query = f"SELECT {quoted(column)} = {quoted(other)} AS `x` FROM {sides}"
        arrow_schema(self._spark, query, ("x",))  # refuses types that cannot be compared
        equality: Any = self._spark.sql(query)._jdf.queryExecution().analyzed().expressions().head().child()
        return str(equality.left().dataType().sql())

    def of_expression(self, operator: Operator, expression: str) -> pa.DataType:
        """The type of an expression over the operator's columns."""
        query = f"SELECT {expression} AS `x` FROM ({batch_sql(operator, self._tables.__getitem__)})"
        return arrow_schema(self._spark, query, ("x",)).field("x").type


def arrow_schema(spark: SparkSession, query: str, names: tuple[str, ...]) -> pa.Schema:
    """The columns of a query; refuses types that the state cannot store."""
    from pyspark.errors import AnalysisException, PySparkException
    from pyspark.sql.pandas.types import to_arrow_schema

    try:
        schema = spark.sql(query).schema
        fields = [field for field in to_arrow_schema(schema, timezone="UTC") if field.name in names]
        for field in fields:
            ddl_type(field.type)
        if any(_VARIANT.search(field.dataType.json()) for field in schema):
            raise KeyError("variant")
        return pa.schema(
            [pa.field(field.name, pa.string() if pa.types.is_null(field.type) else field.type) for field in fields]
        )
    except AnalysisException as error:
        raise ProjectError(
            "view-unsupported", f"Spark refuses the query: {_spark_message(error)}", hint=_TRY_IN_SPARK
        ) from error
    except (PySparkException, KeyError) as error:
        raise ProjectError(
            "view-unsupported",
            f"a column of the view has a type that cannot be stored: {_spark_message(error)}",
            hint="cast it to a number, a string, a date or a timestamp",
        ) from error


def _spark_message(error: Exception) -> str:
    """The first line, with the column names of the view's SQL instead of generated ones."""
    line = next((text for text in str(error).splitlines() if text.strip()), "")
    return _GENERATED_NAME.sub(r"\1\2", line)[:300]
