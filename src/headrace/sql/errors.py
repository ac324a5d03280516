"""Errors in a SQL text."""

from __future__ import annotations

from headrace.core.errors import ProjectError


class SqlError(ProjectError):
    """An error in a SQL text, with its line (from 1) and, where known, its offset (from 0) in the text."""

    def __init__(
        self, code: str, message: str, *, line: int = 1, offset: int | None = None, hint: str | None = None
    ) -> None:
        super().__init__(code, message, hint=hint)
        self.line = line
        self.offset = offset
