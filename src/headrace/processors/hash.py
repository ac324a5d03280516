"""Replaces values by their hashes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, Literal

import pyarrow as pa
from pydantic import Field

from headrace.core.errors import ProjectError
from headrace.core.processor import Processor, StepContext
from headrace.core.records import spark_schema
from headrace.core.schema import ddl_type
from headrace.processors._steps.columns import heads, replaced, type_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


class Hash(Processor):
    """Masks values by SHA-256: equal values stay equal, but cannot be read.

    A string becomes the 64 hexadecimal digits of the hash of its UTF-8 bytes. An int stays an int: its four bytes, the
    lowest first, are hashed, and the first four bytes of the hash, the lowest first, are the result; a bigint likewise
    with eight. null stays null. Other types are refused. There is no salt: a guessed value can be verified.

    Native: no Python. Order and number of rows stay.
    """

    type: Literal["hash"] = "hash"
    columns: list[str] = Field(
        min_length=1,
        description="The columns, or fields of structs such as `customer.email`.",
        examples=[["customer_id", "customer.email"]],
    )

    realtime: ClassVar[bool] = True

    @property
    def label(self) -> str:
        return f"hash {', '.join(self.columns)}"

    def uses(self, wanted: frozenset[str] | None) -> frozenset[str] | None:
        """With its columns, which are checked again when the flow starts."""
        return None if wanted is None else wanted | heads(self.columns)

    def output(self, schema: pa.Schema) -> pa.Schema:
        for name in self.columns:
            kind = type_of(schema, name, "hash")
            if not pa.types.is_null(kind):
                _hashed(kind, name)
        return schema

    def apply(self, rows: DataFrame, at: StepContext) -> DataFrame:
        schema = spark_schema(rows)
        for name in self.columns:
            rows = replaced(rows, name, _hashed(type_of(schema, name, "hash"), name))
        return rows


def _hashed(kind: pa.DataType, name: str) -> Callable[[Column], Column]:
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _text
    if pa.types.is_int32(kind):
        return _int
    if pa.types.is_int64(kind):
        return _bigint
    raise ProjectError(
        "step-type",
        f"'hash' cannot mask '{name}', which is of type {ddl_type(kind)}",
        hint="it masks string, int and bigint; cast the column in the SQL, or use a 'clear' step",
    )


def _text(value: Column) -> Column:
    from pyspark.sql import functions as F

    return F.sha2(value, 256)


def _int(value: Column) -> Column:
    from pyspark.sql import functions as F

    unsigned = F.conv(_first_bytes(value, 4), 16, 10).cast("bigint")
    return F.when(unsigned >= 2**31, unsigned - 2**32).otherwise(unsigned).cast("int")


def _bigint(value: Column) -> Column:
    from pyspark.sql import functions as F

    # a negative base makes it a signed number
    return F.conv(_first_bytes(value, 8), 16, -10).cast("bigint")


def _first_bytes(value: Column, width: int) -> Column:
    """The first bytes of the hash, as a hexadecimal number whose lowest byte came first."""
    from pyspark.sql import functions as F

    digits = [F.lpad(F.hex(F.shiftright(value.cast("bigint"), 8 * i).bitwiseAND(255)), 2, "0") for i in range(width)]
    digest = F.sha2(F.unhex(F.concat(*digits)), 256)
    return F.concat(*(F.substring(digest, 2 * i + 1, 2) for i in reversed(range(width))))
