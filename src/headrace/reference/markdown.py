"""Markdown helpers of all generated pages."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence


def page(origin: str, *lines: str) -> str:
    """Return the text of a page; `origin` names the source that it is generated from."""
    return "\n".join([f"<!-- Generated from {origin} by `make docs`; do not edit. -->", "", *lines]) + "\n"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    return lines + [f"| {' | '.join(map(cell, row))} |" for row in rows]


def cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def docstring(described: object) -> list[str]:
    """Return the lines of a docstring, without the indentation of the code."""
    return inspect.cleandoc(described.__doc__ or "").splitlines()


def first_line(described: object) -> str:
    return docstring(described)[0]
