"""Spark's analysis errors in our words: code, line, nearest name."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from headrace.sql.query import SqlError

if TYPE_CHECKING:
    from pyspark.errors import AnalysisException


def from_analysis(error: AnalysisException) -> SqlError:
    """What the user should read instead of Spark's text."""
    condition = error.getCondition() or ""
    parameters = error.getMessageParameters() or {}
    line = _line(error)
    if condition.startswith("UNRESOLVED_COLUMN"):
        name = parameters.get("objectName", "?").strip("`")
        proposal = parameters.get("proposal", "").replace("`", "")
        hint = f"columns: {proposal}" if proposal else None
        return SqlError("unknown-column", f"there is no column '{name}'", line=line, hint=hint)
    if condition.startswith("PARSE_SYNTAX_ERROR"):
        return SqlError("sql-syntax", f"SQL cannot be parsed near {parameters.get('error', '?')}", line=line)
    if condition.startswith("UNRESOLVED_ROUTINE"):
        name = parameters.get("routineName", "?").replace("`", "")
        hint = "Spark's own functions are all there: headrace sql 'SHOW FUNCTIONS'"
        return SqlError("unknown-function", f"there is no function {name}", line=line, hint=hint)
    if condition.startswith("TABLE_OR_VIEW_NOT_FOUND"):
        name = parameters.get("relationName", "?").replace("`", "")
        return SqlError("unknown-input", f"there is no stream, flow or table '{name}'", line=line)
    return SqlError("sql-invalid", _first_sentence(str(error)), line=line, hint=condition or None)


def _line(error: AnalysisException) -> int:
    for context in error.getQueryContext() or ():
        found = re.search(r"line (\d+)", context.summary())
        if found:
            return int(found[1])
    return 1


def _first_sentence(text: str) -> str:
    plain = re.sub(r"^\[[A-Z_.0-9]+\]\s*", "", text.strip())
    return plain.split(" SQLSTATE:")[0].splitlines()[0][:400]
