"""Column types that can be compared by value."""

from __future__ import annotations

import pyarrow as pa


def comparable(left: pa.DataType, right: pa.DataType) -> bool:
    """Whether equality is transitive across the two types: values equal to the same value are equal to each other."""
    return left == right or any(
        is_in_family(left) and is_in_family(right) for is_in_family in (_exact, pa.types.is_floating, _days)
    )


def _exact(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_decimal(kind))


def _days(kind: pa.DataType) -> bool:
    return bool(pa.types.is_date(kind) or pa.types.is_timestamp(kind))
