"""Types of columns, and when they can be compared value by value."""

from __future__ import annotations

import pyarrow as pa


def comparable(one: pa.DataType, other: pa.DataType) -> bool:
    """Whether values of two types that are equal to the same value are equal to one another."""
    return one == other or any(group(one) and group(other) for group in (_exact, pa.types.is_floating, _days))


def _exact(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_decimal(kind))


def _days(kind: pa.DataType) -> bool:
    return bool(pa.types.is_date(kind) or pa.types.is_timestamp(kind))
