"""Spark's errors about a text in our words: code, line, nearest name."""

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


def in_question(
    error: AnalysisException, asked: Expanded, functions: Callable[[], Iterable[str]] = tuple
) -> ProjectError:
    """What the user should read; a wrong type inside of what became of a function is said of that function.

    `functions` gives the names of Spark's own, and is asked only when they are of use.
    """
    condition, function = error.getCondition() or "", asked.function_at(_start(error))
    if function is not None and condition.startswith("DATATYPE_MISMATCH"):
        reason = _MISMATCH.sub("", _first_sentence(str(error)))
        message = f"{function.name}: an argument is of a wrong type: {reason}"
        return SqlError("function-argument", message, line=_line(error), hint=function.usage)
    return from_analysis(error, functions() if condition.startswith("UNRESOLVED_ROUTINE") else ())


def from_failure(text: str) -> ProjectError:
    """Why Spark could not compute an answer: its own reason, without names of its classes."""
    pattern = _PATTERN.search(text)
    if pattern is not None:
        return ProjectError("function-argument", f"not a pattern: {pattern[1].strip()}")
    named = _CONDITION.match(text.strip())
    hint = "cast the column to another type, e.g. string" if "conversion to Arrow" in text else _called(named)
    return SqlError("sql-failed", _first_sentence(text), line=_line_in(text), hint=hint)


def from_analysis(error: AnalysisException, functions: Iterable[str] = ()) -> SqlError:
    """What the user should read instead of Spark's text. `functions` are names beside those of the library."""
    condition = error.getCondition() or ""
    parameters = error.getMessageParameters() or {}
    line = _line(error)
    if condition.startswith("UNRESOLVED_COLUMN"):
        name = parameters.get("objectName", "?").strip("`")
        proposal = parameters.get("proposal", "").replace("`", "")
        hint = (
            f"columns: {proposal}" if proposal else "nothing that is read here has columns; texts are in single quotes"
        )
        return SqlError("unknown-column", f"there is no column '{name}'", line=line, hint=hint)
    if condition.startswith("PARSE_SYNTAX_ERROR"):
        message = f"SQL cannot be parsed near {parameters.get('error', '?')}"
        hint = "check commas, brackets, quotes and keywords near this place"
        return SqlError("sql-syntax", message, line=line, hint=hint)
    if condition.startswith("UNRESOLVED_ROUTINE"):
        name = parameters.get("routineName", "?").replace("`", "")
        guess = nearest(name, [*(one.name for one in library().values()), *functions])
        hint = f"did you mean {guess}? " if guess else ""
        hint += "Spark's own functions are all there: headrace sql 'SHOW FUNCTIONS'"
        return SqlError("unknown-function", f"there is no function {name}", line=line, hint=hint)
    if condition.startswith("TABLE_OR_VIEW_NOT_FOUND"):
        name = parameters.get("relationName", "?").replace("`", "")
        return SqlError("unknown-input", f"there is no stream, flow or table '{name}'", line=line)
    named = _CONDITION.match(f"[{condition}]")
    return SqlError("sql-invalid", _first_sentence(str(error)), line=line, hint=_called(named))


def _called(condition: re.Match[str] | None) -> str | None:
    """A word to look up where the reason alone does not help."""
    return None if condition is None else f"Spark calls it {condition[1]}: see its list of error conditions"


def _line(error: AnalysisException) -> int:
    for context in error.getQueryContext() or ():
        found = re.search(r"line (\d+)", context.summary())
        if found:
            return int(found[1])
    return _line_in(str(error))


def _line_in(text: str) -> int:
    found = _PLACE.search(text)
    return int(found[1]) if found else 1


def _start(error: PySparkException) -> int:
    """Where in the text it is, counted from 0; -1 when that is not known."""
    contexts = error.getQueryContext() or ()
    return contexts[0].startIndex() if contexts else -1


def _first_sentence(text: str) -> str:
    plain = re.sub(r"^\[[A-Z_.0-9]+\]\s*", "", text.strip())
    return (plain.split(" SQLSTATE:")[0].splitlines() or ["no reason given"])[0][:400]
