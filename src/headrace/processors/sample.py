"""A share of the rows, chosen by a hash of their keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

import pyarrow as pa
from pydantic import Field

from headrace.core.errors import ProjectError
from headrace.core.processor import Processor, StepContext
from headrace.core.schema import ddl_type
from headrace.processors._steps.columns import column, heads, type_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Sample(Processor):
    """Keeps a share of the rows and drops the others.

    A hash of the key columns decides, so all rows of a key are kept or dropped together, in every flow and stream whose
    key has the same values and types. Without `by` the hash of the whole row decides: equal rows are kept or dropped
    together, and a new column changes the choice. A larger share keeps all rows of a smaller one. Another `seed` makes
    an independent choice. Rows whose keys are all null count as one key.

    A batch that runs again keeps the same rows. Order stays. Native: no Python. Scale: no state. The share holds for
    keys, not for rows: with few keys, or keys with very many rows, the share of rows may differ.
    """

    type: Literal["sample"] = "sample"
    share: float = Field(gt=0, le=1, description="The share of keys to keep.", examples=[0.01])
    by: list[str] | None = Field(
        None,
        min_length=1,
        description="The key: columns, or fields of structs such as `order.id`. Default: the whole row.",
        examples=[["user_id"]],
    )
    seed: int = Field(0, ge=0, lt=2**63, description="Selects one of many independent choices.")

    realtime: ClassVar[bool] = True

    @property
    def label(self) -> str:
        key = "" if self.by is None else f" by {', '.join(self.by)}"
        return f"sample {self.share * 100:g}%{key}"

    def uses(self, wanted: frozenset[str] | None) -> frozenset[str] | None:
        return None if wanted is None or self.by is None else wanted | heads(self.by)

    def output(self, schema: pa.Schema) -> pa.Schema:
        for name in schema.names if self.by is None else self.by:
            kind = type_of(schema, name, "sample")
            if _has_map(kind):
                raise ProjectError(
                    "step-type",
                    f"'sample' cannot hash '{name}', which is of type {ddl_type(kind)}",
                    hint="name key columns without maps in `by`",
                )
        return schema

    def apply(self, rows: DataFrame, at: StepContext) -> DataFrame:
        from pyspark.sql import functions as F

        names = rows.columns if self.by is None else self.by
        # the seed comes first: it must change the hash of every key in its own way
        chosen = F.xxhash64(F.lit(self.seed).cast("bigint"), *(column(rows, name) for name in names))
        return rows.where(chosen <= F.lit(last_hash(self.share)).cast("bigint"))


def last_hash(share: float) -> int:
    """The largest signed 64-bit hash that is kept, so that this share of all hashes is."""
    return max(1, int(share * 2**64)) - 2**63 - 1


def _has_map(kind: pa.DataType) -> bool:
    """Spark has no hash of maps: equal ones may list their entries in different orders."""
    if pa.types.is_map(kind):
        return True
    return any(_has_map(kind.field(number).type) for number in range(kind.num_fields))
