"""The SQL dialect of views: Spark's grammar; functions and literals stay as written.

sqlglot interprets most functions and may rewrite them. A view must mean to Spark exactly what its author wrote, so
this dialect parses a function as a name with arguments and keeps the text of literals.
"""

from __future__ import annotations

from typing import Any, ClassVar

from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.generators.spark import SparkGenerator
from sqlglot.parsers.spark import SparkParser

# functions whose arguments are not separated by commas
_SYNTAX = ("CAST", "TRY_CAST", "EXTRACT", "SUBSTRING", "SUBSTR", "OVERLAY", "POSITION", "TRIM")


class Ref(exp.Column):
    """A column of the algebra: its name is unique in the whole view."""


class VerbatimParser(SparkParser):
    """Spark's grammar without sqlglot's functions."""

    FUNCTIONS: ClassVar[dict[str, Any]] = {}
    FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {name: SparkParser.FUNCTION_PARSERS[name] for name in _SYNTAX}
    NO_PAREN_FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {"CASE": SparkParser.NO_PAREN_FUNCTION_PARSERS["CASE"]}
    ARRAY_CONSTRUCTORS: ClassVar[dict[str, Any]] = {}
    """Empty: array(1, 2)[0] is an element access."""


class VerbatimGenerator(SparkGenerator):
    """Writes functions and literals unchanged."""

    TRANSFORMS: ClassVar[dict[Any, Any]] = {
        **SparkGenerator.TRANSFORMS,
        Ref: lambda _, node: f"`{node.name}`",
        exp.BitwiseLeftShift: lambda self, node: self.binary(node, "<<"),
        exp.BitwiseRightShift: lambda self, node: self.binary(node, ">>"),
    }

    def not_sql(self, expression: exp.Not) -> str:
        """IS NOT NULL instead of NOT … IS NULL: Spark infers more from it."""
        operand = expression.this
        if isinstance(operand, exp.Is) and isinstance(operand.expression, exp.Null):
            return f"{self.sql(operand, 'this')} IS NOT NULL"
        return super().not_sql(expression)

    def literal_sql(self, expression: exp.Literal) -> str:
        return str(expression.this)


class Verbatim(Spark):
    """The dialect of views."""

    Parser = VerbatimParser
    Generator = VerbatimGenerator
