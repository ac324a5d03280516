"""The SQL dialect of views: Spark's grammar, with functions and literals kept word for word.

sqlglot interprets most functions and may write them as others. A view must mean to Spark exactly what its author wrote,
so here functions are names with arguments, and literals keep their text.
"""

from __future__ import annotations

from typing import Any, ClassVar

from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.generators.spark import SparkGenerator
from sqlglot.parsers.spark import SparkParser

# the functions whose arguments are not separated by commas
_SYNTAX = ("CAST", "TRY_CAST", "EXTRACT", "SUBSTRING", "SUBSTR", "OVERLAY", "POSITION", "TRIM")


class Ref(exp.Column):
    """A column of the algebra: its name is unique in the whole view."""


class VerbatimParser(SparkParser):
    """Spark's grammar without sqlglot's own notions of functions."""

    FUNCTIONS: ClassVar[dict[str, Any]] = {}
    FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {name: SparkParser.FUNCTION_PARSERS[name] for name in _SYNTAX}
    NO_PAREN_FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {"CASE": SparkParser.NO_PAREN_FUNCTION_PARSERS["CASE"]}
    ARRAY_CONSTRUCTORS: ClassVar[dict[str, Any]] = {}
    """None: array(1, 2)[0] takes an element."""


class VerbatimGenerator(SparkGenerator):
    """Writes functions and literals as they were."""

    TRANSFORMS: ClassVar[dict[Any, Any]] = {
        **SparkGenerator.TRANSFORMS,
        Ref: lambda _, node: f"`{node.name}`",
        exp.BitwiseLeftShift: lambda self, node: self.binary(node, "<<"),
        exp.BitwiseRightShift: lambda self, node: self.binary(node, ">>"),
    }

    def not_sql(self, expression: exp.Not) -> str:
        """IS NOT NULL, which Spark knows more about than of NOT … IS NULL."""
        inside = expression.this
        if isinstance(inside, exp.Is) and isinstance(inside.expression, exp.Null):
            return f"{self.sql(inside, 'this')} IS NOT NULL"
        return super().not_sql(expression)

    def literal_sql(self, expression: exp.Literal) -> str:
        """The word of the text itself, quotes and all."""
        return str(expression.this)


class Verbatim(Spark):
    """The dialect of views."""

    Parser = VerbatimParser
    Generator = VerbatimGenerator
