"""Simple conditions that a decoder applies before rows go to Spark.

Spark applies the whole WHERE again, so a filter may pass too many rows, but must never drop a row that Spark keeps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

Operator = Literal["=", "<>", "<", "<=", ">", ">=", "in", "is null", "is not null", "is true"]

_COMPARISONS: dict[type[exp.Expr], tuple[Operator, Operator]] = {
    exp.EQ: ("=", "="),
    exp.NEQ: ("<>", "<>"),
    exp.LT: ("<", ">"),
    exp.LTE: ("<=", ">="),
    exp.GT: (">", "<"),
    exp.GTE: (">=", "<="),
}


@dataclass(frozen=True)
class ColumnFilter:
    """The condition `column operator values`; a null result counts as false.

    A decoder must not apply `is null`: below an outer join it also selects rows without a match.
    """

    column: str
    operator: Operator
    values: tuple[str | int | float, ...] = ()

    def __str__(self) -> str:
        values = ", ".join(repr(v) for v in self.values)
        shown = f"({values})" if self.operator == "in" else values
        return f"{self.column} {self.operator} {shown}".rstrip()

    @staticmethod
    def from_sql(condition: exp.Expr, field: pa.Field) -> ColumnFilter | None:
        """Return the filter that is equivalent to a condition on this field; None when there is none."""
        match condition:
            case exp.Not(this=exp.Is(this=exp.Column(), expression=exp.Null())):
                return ColumnFilter(field.name, "is not null")
            case exp.In(this=exp.Column(), expressions=literals) if literals:
                return _membership(literals, field)
            case exp.Binary() if type(condition) in _COMPARISONS:
                return _comparison(condition, field)
        return None

    def mask(self, rows: pa.RecordBatch) -> pa.Array:
        """Return a boolean array: true for each row that passes."""
        column = rows.column(self.column)
        if self.operator == "is not null":
            return pc.is_valid(column)
        if self.operator == "is null":
            return pc.is_null(column)
        if self.operator == "is true":
            return pc.fill_null(column, False)
        if self.operator == "in":
            return pc.is_in(column, value_set=pa.array(self.values, type=column.type))
        passed = _FUNCTIONS[self.operator](column, pa.scalar(self.values[0], type=column.type))
        if pa.types.is_floating(column.type) and self.operator in (">", ">=", "<>"):
            passed = pc.or_(passed, pc.is_nan(column))  # in Spark NaN is larger than any number
        return pc.fill_null(passed, False)


_FUNCTIONS = {
    "=": pc.equal,
    "<>": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}


def _membership(literals: Sequence[exp.Expr], field: pa.Field) -> ColumnFilter | None:
    values = [_value(literal, field.type, "=") for literal in literals]
    if None in values or pa.types.is_floating(field.type):
        return None  # is_in distinguishes 0.0 from -0.0, Spark does not
    return ColumnFilter(field.name, "in", tuple(value for value in values if value is not None))


def _comparison(condition: exp.Binary, field: pa.Field) -> ColumnFilter | None:
    straight, mirrored = _COMPARISONS[type(condition)]
    if isinstance(condition.left, exp.Column):
        operator, literal = straight, condition.right
    elif isinstance(condition.right, exp.Column):
        operator, literal = mirrored, condition.left
    else:
        return None
    value = _value(literal, field.type, operator)
    return None if value is None else ColumnFilter(field.name, operator, (value,))


def _value(literal: exp.Expr, kind: pa.DataType, operator: Operator) -> str | int | float | None:
    """Return the literal in the column's type; None when Spark would convert the literal or the column."""
    if isinstance(literal, exp.Neg):
        value = _value(literal.this, kind, operator)
        return None if value is None or isinstance(value, str) else -value
    if not isinstance(literal, exp.Literal):
        return None
    if literal.is_string:
        # Spark's collation orders strings, and Spark's parser handles quotes within quotes
        plain = pa.types.is_string(kind) and operator in ("=", "<>") and not set(literal.this) & set("'\"\\")
        return str(literal.this) if plain else None
    if pa.types.is_int64(kind) or pa.types.is_int32(kind):
        number = int(literal.this) if literal.is_int else None
        return number if number is not None and abs(number) < 2 ** (kind.bit_width - 1) else None
    return float(literal.this) if pa.types.is_float64(kind) else None


def apply_all(filters: Sequence[ColumnFilter], rows: pa.RecordBatch) -> pa.Array | None:
    """Return a boolean array: true for each row that passes all filters. None when there are no filters."""
    mask = None
    for column_filter in filters:
        passed = column_filter.mask(rows)
        mask = passed if mask is None else pc.and_(mask, passed)
    return mask
