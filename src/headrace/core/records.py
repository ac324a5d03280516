"""Encodes rows to records, for sinks that write bytes and for streams that are generated in a format."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.core.context import Context
from headrace.core.format import Encoder, EncodesNatively, Format
from headrace.core.schema import from_ddl, quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType


def spark_schema(rows: DataFrame) -> pa.Schema:
    """The Arrow schema of a DataFrame."""
    return from_ddl(", ".join(f"{quoted(field.name)} {_ddl(field.dataType)}" for field in rows.schema))


def _ddl(kind: DataType) -> str:
    """A type as DDL. Spark's own text does not quote the names of fields."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    match kind:
        case StructType():
            return f"struct<{', '.join(f'{quoted(part.name)}: {_ddl(part.dataType)}' for part in kind)}>"
        case ArrayType():
            return f"array<{_ddl(kind.elementType)}>"
        case MapType():
            return f"map<{_ddl(kind.keyType)}, {_ddl(kind.valueType)}>"
    return kind.simpleString()


def nested(names: Sequence[str], within: Column | None = None) -> Column:
    """A struct of these columns, or of fields `within` a struct; `driver.name` becomes the field `name` of the struct
    `driver`."""
    from pyspark.sql import functions as F

    tree: dict[str, object] = {}
    for name in names:
        *parents, leaf = name.split(".")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})  # type: ignore[assignment]
        node[leaf] = F.col(f"`{name}`") if within is None else within.getField(name)

    def build(node: dict[str, object]) -> Column:
        parts = [(build(part) if isinstance(part, dict) else part).alias(name) for name, part in node.items()]  # type: ignore[attr-defined]
        return F.struct(*parts)

    return build(tree)


def encode_rows(rows: DataFrame, format: Format, context: Context, keep: Sequence[str] = ()) -> DataFrame:
    """Encode all columns except those in `keep` into a binary column `value`.

    A null struct of dotted columns and a struct of nulls are encoded alike.
    """
    from pyspark.sql import functions as F

    columns = [name for name in rows.columns if name not in keep]
    kept = [F.col(f"`{name}`") for name in keep]
    if format.verbatim and [dict(rows.dtypes)[name] for name in columns] in (["string"], ["binary"]):
        return rows.select(F.col(f"`{columns[0]}`").cast("binary").alias("value"), *kept)
    if isinstance(format, EncodesNatively):
        return rows.select(format.native_encode(nested(columns)).cast("binary").alias("value"), *kept)
    shaped = rows.select(nested(columns).alias("row"), *kept)
    schema = spark_schema(shaped.select("row.*"))
    step = _EncodeStep(format.encoder(context, schema), schema.names, tuple(keep))
    kept_ddl = [f"`{field.name}` {field.dataType.simpleString()}" for field in shaped.schema if field.name != "row"]
    flat = shaped.select("row.*", *kept)
    return flat.mapInArrow(step, ", ".join(["value binary", *kept_ddl]))


class _EncodeStep:
    """Runs an encoder over Arrow batches in a Python worker."""

    def __init__(self, encoder: Encoder, columns: Sequence[str], keep: Sequence[str]) -> None:
        self._encoder = encoder
        self._columns = list(columns)
        self._keep = list(keep)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        width = len(self._columns)
        for batch in batches:
            # by position: a column in `keep` may have the name of an encoded one
            rows = pa.RecordBatch.from_arrays(batch.columns[:width], names=self._columns)
            values = self._encoder.encode(rows).cast(pa.binary())
            yield pa.RecordBatch.from_arrays([values, *batch.columns[width:]], names=["value", *self._keep])
