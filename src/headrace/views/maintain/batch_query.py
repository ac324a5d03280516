"""A view as one batch query, and what Spark says about the types of its operators."""

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
"""Stands for columns where none is wanted."""
_CLOCK = re.compile(r"cast\(((?:now|today|tomorrow|yesterday)\b[^()]*) as (?:date|timestamp)", re.IGNORECASE)
"""Texts that Spark takes for a moment of today, in places where it makes a date or a time of them."""
_VARIANT = re.compile(r'^"variant"$|"(type|elementType|valueType)":"variant"')
_MADE_UP = re.compile(r"([`\"]\w+)_\d+([`\"])")
_HINT = "try the same SQL in Spark: what it says of names and types is meant for this query"
_MATCHES = {"left": "LEFT", "right": "RIGHT", "full": "FULL", "semi": "LEFT SEMI", "anti": "LEFT ANTI"}


def batch_sql(operator: Operator, table: Callable[[str], str]) -> str:
    """What Spark is asked when the answer is not kept; `table` gives the relation that holds a table's rows."""
    match operator:
        case Scan(name, fields):
            columns = [f"{quoted(there)} AS {quoted(here)}" for here, there in fields]
            return f"SELECT {', '.join(columns) or _ONE} FROM {table(name)}"
        case Projection(below, expressions):
            return f"SELECT {', '.join(aliased(expressions)) or _ONE} FROM ({batch_sql(below, table)})"
        case Selection(below, condition):
            return f"SELECT * FROM ({batch_sql(below, table)}) WHERE {condition}"
        case UnionAll(inputs):
            return " UNION ALL ".join(f"SELECT * FROM ({batch_sql(one, table)})" for one in inputs)
        case Join(inputs):
            sides = " CROSS JOIN ".join(f"({batch_sql(one, table)})" for one in inputs)
            return f"SELECT {_columns(operator)} FROM {sides} WHERE {match_condition(operator)}"
        case Match(kind, left, right):
            sides = f"({batch_sql(left, table)}) {_MATCHES[kind]} JOIN ({batch_sql(right, table)})"
            return f"SELECT {_columns(operator)} FROM {sides} ON {match_condition(operator)}"
        case Aggregate(below, keys, calls):
            group = f" GROUP BY {', '.join(column_list(keys))}" if keys else ""
            what = [*column_list(keys), *(f"{call.sql} AS {quoted(call.name)}" for call in calls)]
            return f"SELECT {', '.join(what)} FROM ({batch_sql(below, table)}){group}"
        case Ranked(below, _, expressions):
            return f"SELECT {', '.join(['*', *aliased(expressions)])} FROM ({batch_sql(below, table)})"


def match_condition(join: Join | Match) -> str:
    """What has to be true of a combined row. The names of both sides are different, so they stand for themselves."""
    same = [f"{quoted(one.left)} {'<=>' if one.nulls else '='} {quoted(one.right)}" for one in join.equal]
    return " AND ".join([*same, *([f"({join.condition})"] if join.condition else [])]) or "true"


def _columns(operator: Operator) -> str:
    return ", ".join(column_list(operator.columns)) or _ONE


def aliased(expressions: tuple[tuple[str, str], ...]) -> list[str]:
    """The expressions with their names. Nothing but NULL would have no type, and no file could hold it."""
    texts = (("CAST(NULL AS STRING)" if sql.upper() == "NULL" else sql, name) for name, sql in expressions)
    return [f"{sql} AS {quoted(name)}" for sql, name in texts]


class OperatorTypes:
    """The types of the columns of every operator of a view, as Spark gives them over empty tables."""

    def __init__(self, spark: SparkSession, tables: Mapping[str, str]) -> None:
        self._spark = spark
        self._tables = tables
        """By name, the relation that has the table's columns and no rows."""
        self._known: dict[Operator, pa.Schema] = {}

    def schema(self, operator: Operator) -> pa.Schema:
        """The columns of an operator."""
        if operator not in self._known:
            text = batch_sql(operator, self._tables.__getitem__)
            self._known[operator] = arrow_schema(self._spark, text, operator.columns)
        return self._known[operator]

    def of(self, operator: Operator) -> dict[str, str]:
        """The types of an operator's columns as Spark SQL names them."""
        return {field.name: ddl_type(field.type) for field in self.schema(operator)}

    def refuse_clock(self, operator: Operator) -> None:
        """Refuse texts that mean another time each day: only Spark knows where a text becomes a time."""
        self.schema(operator)  # refuses what Spark does not take at all
        analysed: Any = self._spark.sql(batch_sql(operator, self._tables.__getitem__))._jdf.queryExecution().analyzed()
        found = _CLOCK.search(analysed.toString())
        if found is not None:
            raise ProjectError(
                "view-unsupported",
                f"'{found[1]}' as a time in a view: it depends on the clock",
                hint="write the day or the time, or use a column of a table",
            )

    def compared(self, left: Operator, column: str, right: Operator, other: str) -> str:
        """The type as which two columns of unlike types are compared: only Spark knows."""
        sides = " CROSS JOIN ".join(f"({batch_sql(one, self._tables.__getitem__)})" for one in (left, right))
        text = f"SELECT {quoted(column)} = {quoted(other)} AS `x` FROM {sides}"
        arrow_schema(self._spark, text, ("x",))  # refuses what cannot be compared at all
        equality: Any = self._spark.sql(text)._jdf.queryExecution().analyzed().expressions().head().child()
        return str(equality.left().dataType().sql())

    def of_expression(self, operator: Operator, expression: str) -> pa.DataType:
        """The type of an expression over an operator's columns."""
        text = f"SELECT {expression} AS `x` FROM ({batch_sql(operator, self._tables.__getitem__)})"
        return arrow_schema(self._spark, text, ("x",)).field("x").type


def arrow_schema(spark: SparkSession, text: str, names: tuple[str, ...]) -> pa.Schema:
    """The columns of a query; refuses types that nothing here can keep."""
    from pyspark.errors import AnalysisException, PySparkException
    from pyspark.sql.pandas.types import to_arrow_schema

    try:
        found = spark.sql(text).schema
        fields = [field for field in to_arrow_schema(found, timezone="UTC") if field.name in names]
        for field in fields:
            ddl_type(field.type)
        if any(_VARIANT.search(field.dataType.json()) for field in found):
            raise KeyError("variant")
        return pa.schema(
            [pa.field(one.name, pa.string() if pa.types.is_null(one.type) else one.type) for one in fields]
        )
    except AnalysisException as error:
        raise ProjectError(
            "view-unsupported", f"Spark refuses the query: {_spark_message(error)}", hint=_HINT
        ) from error
    except (PySparkException, KeyError) as error:
        raise ProjectError(
            "view-unsupported",
            f"a column of the view has a type that cannot be kept: {_spark_message(error)}",
            hint="cast it to a number, a text, a date or a timestamp",
        ) from error


def _spark_message(error: Exception) -> str:
    """The first line, with the columns under the names that they have in the text."""
    line = next((one for one in str(error).splitlines() if one.strip()), "")
    return _MADE_UP.sub(r"\1\2", line)[:300]
