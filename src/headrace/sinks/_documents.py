"""Rows as JSON documents, encoded by Spark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.core.errors import ProjectError, did_you_mean
from headrace.core.kinds import kinds
from headrace.core.records import nested

if TYPE_CHECKING:
    from pyspark.sql import Column


def document(columns: Sequence[str], *, nulls: bool) -> Column:
    """The columns as one JSON object in UTF-8, as the format `json` writes it; `a.b` becomes the field `b` of `a`."""
    return as_json(nested(columns), nulls=nulls)


def as_json(value: Column, *, nulls: bool) -> Column:
    form = kinds("formats")["json"](nulls="keep" if nulls else "omit")  # type: ignore[call-arg]
    encoded: Column = form.native_encode(value)  # type: ignore[attr-defined]  # the registry knows only Component
    return encoded


def require_columns(label: str, option: str, names: Sequence[str], columns: Sequence[str]) -> None:
    """Refuse an option of a sink that names a column which the flow does not have."""
    for name in names:
        if name not in columns:
            raise ProjectError(
                "unknown-column",
                f"`{option}` of sink {label} names the column '{name}', which the flow does not have",
                hint=did_you_mean(name, columns, "columns of the flow"),
            )
