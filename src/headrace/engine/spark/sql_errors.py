"""Translates Spark's errors about SQL: error code, line, nearest name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from headrace.core.errors import ProjectError, nearest
from headrace.functions.expansion import Expanded
from headrace.functions.library import library
from headrace.sql.query import SqlError

if TYPE_CHECKING:
    from pyspark.errors import AnalysisException, PySparkException

_PATTERN = re.compile(r"(?:PatternSyntaxException: )?([^\n:]+ near index \d+)")
_CONDITION = re.compile(r"\[([A-Z_.0-9]+)\]")
_PLACE = re.compile(r"\(line (\d+), pos")
_MISMATCH = re.compile(r".* due to data type mismatch: ")


def from_query_analysis(
    error: AnalysisException, query: Expanded, functions: Callable[[], Iterable[str]] = tuple
) -> ProjectError:
    """The error of an ad-hoc query. A type error inside an expanded function is reported for that function.

    `functions` returns the names of Spark's functions; it is only called if they are needed.
    """
    condition, function = error.getCondition() or "", query.function_at(_start(error))
    if function is not None and condition.startswith("DATATYPE_MISMATCH"):
        reason = _MISMATCH.sub("", _first_sentence(str(error)))
        message = f"{function.name}: an argument is of a wrong type: {reason}"
        return SqlError("function-argument", message, line=_line(error), hint=function.usage)
    return from_analysis(error, functions() if condition.startswith("UNRESOLVED_ROUTINE") else ())


def from_failure(text: str) -> ProjectError:
    """The error of a query that failed while it ran: Spark's reason without its class names."""
    pattern = _PATTERN.search(text)
    if pattern is not None:
        return ProjectError("function-argument", f"not a pattern: {pattern[1].strip()}")
    condition = _CONDITION.match(text.strip())
    hint = (
        "cast the column to another type, e.g. string" if "conversion to Arrow" in text else _condition_hint(condition)
    )
    return SqlError("sql-failed", _first_sentence(text), line=_line_in(text), hint=hint)


def from_analysis(error: AnalysisException, functions: Iterable[str] = ()) -> SqlError:
    """The error of a query that Spark refuses. `functions` are names in addition to those of the library."""
    condition = error.getCondition() or ""
    parameters = error.getMessageParameters() or {}
    line = _line(error)
    if condition.startswith("UNRESOLVED_COLUMN"):
        name = parameters.get("objectName", "?").strip("`")
        proposal = parameters.get("proposal", "").replace("`", "")
        hint = f"columns: {proposal}" if proposal else "the query reads no columns here; texts need single quotes"
        return SqlError("unknown-column", f"column '{name}' does not exist", line=line, hint=hint)
    if condition.startswith("PARSE_SYNTAX_ERROR"):
        message = f"SQL cannot be parsed near {parameters.get('error', '?')}"
        hint = "check commas, brackets, quotes and keywords near this position"
        return SqlError("sql-syntax", message, line=line, hint=hint)
    if condition.startswith("UNRESOLVED_ROUTINE"):
        name = parameters.get("routineName", "?").replace("`", "")
        guess = nearest(name, [*(function.name for function in library().values()), *functions])
        hint = f"did you mean {guess}? " if guess else ""
        hint += "list Spark's functions with: headrace sql 'SHOW FUNCTIONS'"
        return SqlError("unknown-function", f"function {name} does not exist", line=line, hint=hint)
    if condition.startswith("TABLE_OR_VIEW_NOT_FOUND"):
        name = parameters.get("relationName", "?").replace("`", "")
        return SqlError("unknown-input", f"stream, flow or table '{name}' does not exist", line=line)
    named = _CONDITION.match(f"[{condition}]")
    return SqlError("sql-invalid", _first_sentence(str(error)), line=line, hint=_condition_hint(named))


def _condition_hint(condition: re.Match[str] | None) -> str | None:
    return (
        None if condition is None else f"Spark's error condition is {condition[1]}: see the list in its documentation"
    )


def _line(error: AnalysisException) -> int:
    for context in error.getQueryContext() or ():
        line = re.search(r"line (\d+)", context.summary())
        if line:
            return int(line[1])
    return _line_in(str(error))


def _line_in(text: str) -> int:
    line = _PLACE.search(text)
    return int(line[1]) if line else 1


def _start(error: PySparkException) -> int:
    """The index of the error in the text; -1 if unknown."""
    contexts = error.getQueryContext() or ()
    return contexts[0].startIndex() if contexts else -1


def _first_sentence(text: str) -> str:
    plain = re.sub(r"^\[[A-Z_.0-9]+\]\s*", "", text.strip())
    return (plain.split(" SQLSTATE:")[0].splitlines() or ["no reason given"])[0][:400]
