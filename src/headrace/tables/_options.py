"""Options that several kinds of tables share."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator

from headrace.core.errors import ProjectError
from headrace.core.schema import from_ddl


def _ddl(columns: str) -> str:
    try:
        from_ddl(columns)
    except ProjectError as error:
        raise ValueError(error.message) from None
    return columns


Columns = Annotated[str, AfterValidator(_ddl)]
"""Columns as DDL text, validated."""
