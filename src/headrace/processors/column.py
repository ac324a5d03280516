"""Copies, renames or selects columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

import pyarrow as pa
from pydantic import Field, model_validator

from headrace.core.processor import Processor, StepContext
from headrace.processors._steps.columns import column, heads, type_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_ALL = "*"


class ColumnStep(Processor):
    """Copies columns under other names, renames them, or selects some.

    An existing column keeps its place and gets the new value. Costs nothing per row. Order and number of rows stay.
    """

    type: Literal["column"] = "column"
    columns: dict[str, str] = Field(
        min_length=1,
        description="The new name and the column, or field of a struct such as `driver.name`, it is made of. "
        '`"*": "*"` means all input columns.',
        examples=[{"booking": "order_number", "driver_name": "driver.name"}],
    )
    keep: Literal["all", "others", "none"] = Field(
        "all",
        description="Which other columns the step keeps: `all` (copy), the `others`, which are not named here "
        "(rename), or `none` (select).",
    )

    realtime: ClassVar[bool] = True

    @model_validator(mode="after")
    def _star_means_star(self) -> ColumnStep:
        if any((new == _ALL) != (old == _ALL) for new, old in self.columns.items()):
            raise ValueError('write "*": "*" for all columns')
        return self

    @property
    def label(self) -> str:
        return f"column {', '.join(old if old == new else f'{old} as {new}' for new, old in self.columns.items())}"

    def uses(self, wanted: frozenset[str] | None) -> frozenset[str] | None:
        if wanted is None and (self.keep != "none" or _ALL in self.columns):
            return None
        sources = heads(old for new, old in self.columns.items() if wanted is None or new in wanted)
        if self.keep == "none" and _ALL not in self.columns:
            return sources
        return sources | (wanted or frozenset()) - self.columns.keys()

    def output(self, schema: pa.Schema) -> pa.Schema:
        return pa.schema([(new, type_of(schema, old, "column")) for new, old in self._plan(schema.names).items()])

    def apply(self, rows: DataFrame, at: StepContext) -> DataFrame:
        return rows.select(*(column(rows, old).alias(new) for new, old in self._plan(rows.columns).items()))

    def _plan(self, names: list[str]) -> dict[str, str]:
        """Each output column and its input column."""
        named = {new: old for new, old in self.columns.items() if new != _ALL}
        if self.keep == "none":
            plan: dict[str, str] = {}
            for new, old in self.columns.items():
                plan |= {name: name for name in names if name not in named} if new == _ALL else {new: old}
            return plan
        gone = set() if self.keep == "all" or _ALL in self.columns else set(named.values()) - named.keys()
        return {name: name for name in names if name not in gone} | named
