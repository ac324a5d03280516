"""The rows of a batch as changes of an endpoint."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.core.errors import ProjectError
from headrace.core.lazy import lazy_modules
from headrace.sinks._latest import last_of_each
from headrace.sinks.endpoint.stage import DELETED, OPERATION

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql import functions as F

    from headrace.sinks.endpoint import EndpointSink
else:
    F = lazy_modules("pyspark.sql.functions")

_NUMBER = "__number"


def changes_of(rows: DataFrame, sink: EndpointSink) -> DataFrame:
    """One row per key, or with operations all rows, grouped by key and in order."""
    if sink.delete is not None:
        rows = rows.withColumn(DELETED, F.col(f"`{sink.delete}`")).drop(sink.delete)
    if sink.operation is not None:
        return _in_order(rows, sink)
    return last_of_each(rows, sink.keys, sink.sequence) if sink.keys else rows


def _in_order(rows: DataFrame, sink: EndpointSink) -> DataFrame:
    keys = [F.col(f"`{name}`") for name in sink.keys]
    named = rows.withColumn(OPERATION, F.lower(F.col(f"`{sink.operation}`"))).drop(str(sink.operation))
    numbered = named.withColumn(_NUMBER, F.monotonically_increasing_id())
    order = [*keys, *([F.col(f"`{sink.sequence}`")] if sink.sequence else []), F.col(_NUMBER)]
    return numbered.repartition(*keys).sortWithinPartitions(*order).drop(_NUMBER)


def require_types(sink: EndpointSink, schema: pa.Schema) -> None:
    """Refuse columns whose type does not suit the option that names them."""
    simple = "a simple value: a number, text, time or boolean"
    _require(sink, schema, "key", sink.keys, _is_simple, simple)
    for index in sink.layout["indexes"]:
        _require(sink, schema, "indexes", index, _is_simple, simple)
    _require(sink, schema, "text", sink.text, _is_text, "text")
    _require(sink, schema, "sequence", [sink.sequence] if sink.sequence else [], _is_simple, simple)
    _require(sink, schema, "delete", [sink.delete] if sink.delete else [], pa.types.is_boolean, "a boolean")
    _require(sink, schema, "operation", [sink.operation] if sink.operation else [], _is_text, "text")


def _require(
    sink: EndpointSink,
    schema: pa.Schema,
    option: str,
    names: Sequence[str],
    fits: Callable[[pa.DataType], bool],
    wanted: str,
) -> None:
    for name in names:
        kind = schema.field(name).type
        if not fits(kind):
            raise ProjectError(
                "sink-column-type",
                f"column '{name}' of sink {sink.label} is {kind}",
                hint=f"`{option}` wants {wanted}: cast it in SQL, or name another column",
            )


def _is_simple(kind: pa.DataType) -> bool:
    return not pa.types.is_nested(kind) and not pa.types.is_null(kind)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))
