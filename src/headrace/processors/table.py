"""Adds columns of a table of the project."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, PrivateAttr, field_validator

from headrace.core.context import Context
from headrace.core.errors import ProjectError, did_you_mean
from headrace.core.processor import ArrowProcessor, Batches, PlanContext, StepClock, StepContext, StepLetters, Work
from headrace.core.schema import from_ddl
from headrace.processors._lookup.lookup import LookupSpec, check_alike
from headrace.processors._lookup.tables import LookupTable, PinnedVersions, TableAt
from headrace.processors._steps.columns import column_of, heads, type_of, typed_columns, with_type


class TableStep(ArrowProcessor):
    """Adds columns of a lake table or of files by a key: reference data that changes now and then.

    Every batch reads the newest version, so a change takes effect with the next batch. The version of a lake table is
    recorded for each batch: a batch that runs again after a crash reads the same one, as long as the table keeps it.
    Files have no versions: a replay reads their current content. A flow with a lake sink that has a `key` makes such a
    table of a stream. While the table does not exist, no key matches; then its columns must be declared with types.

    Order and number of rows stay, unless `missing` says otherwise. A null key does not match. Scale: every Python
    worker keeps the used columns in memory; up to some million rows.
    """

    type: Literal["table"] = "table"
    table: TableAt = Field(
        description="The table: a flow of the project, a lake table or files.", examples=[{"flow": "customers"}]
    )
    key: dict[str, str] = Field(
        min_length=1,
        description="Columns of the rows, or fields of structs, and the columns of the table that they must equal. "
        "A list of names when both are the same.",
        examples=[{"customer_id": "id"}],
    )
    columns: list[str] | str | None = Field(
        None,
        description="The columns of the table to add; with their types (`name string, tier int`) the table need not "
        "exist yet. Default: all but the key.",
        examples=[["name", "tier"], "name string, tier int"],
    )
    prefix: str = Field("", description="What to put before the names of the added columns.", examples=["customer_"])
    missing: Literal["null", "drop", "dead_letter"] = Field(
        "null",
        description="What happens to a row without a match in the table: it gets nulls, is dropped, or becomes a dead "
        "letter (`not-in-table`).",
    )
    latest: str | None = Field(
        None,
        description="If a key occurs more than once, the row with the greatest value in this column counts. Without "
        "it, the flow fails.",
        examples=["updated_at"],
    )

    _place: LookupTable | None = PrivateAttr(None)

    @field_validator("key", mode="before")
    @classmethod
    def _names(cls, value: object) -> object:
        value = [value] if isinstance(value, str) else value
        return {name: name for name in value} if isinstance(value, list) else value

    @field_validator("columns")
    @classmethod
    def _typed(cls, value: list[str] | str | None) -> list[str] | str | None:
        if isinstance(value, str):
            typed_columns(value)
        return value

    @property
    def label(self) -> str:
        return f"table {self.table.label} by {', '.join(self.key)}"

    def bound(self, project: PlanContext) -> TableStep:
        bound = self.model_copy()
        bound._place = self.table.locate(project)
        return bound

    def check(self, context: Context) -> None:
        """Refuse a table that does not exist, unless its columns are declared."""
        place = self._bound_table()
        if not isinstance(self.columns, str) and place.schema() is None:
            raise place.missing()

    def uses(self, wanted: frozenset[str] | None) -> frozenset[str] | None:
        if wanted is None:
            return None
        added = {self.prefix + name for name in self._values().names} if self._place is not None else set()
        return wanted - added | heads(self.key)

    def output(self, schema: pa.Schema) -> pa.Schema:
        theirs = self._bound_table().schema()
        for mine, other in self.key.items():
            self._check_key(type_of(schema, mine, "table"), mine, theirs, other)
        for field in self._values(theirs):
            schema = with_type(schema, self.prefix + field.name, field.type)
        return schema

    def work(self, schema: pa.Schema, at: StepContext) -> Work:
        place = self._bound_table()
        theirs = place.schema()
        if theirs is None and not isinstance(self.columns, str):
            raise place.missing()
        spec = LookupSpec(place, tuple(self.key.values()), self._values(theirs), self.latest)
        return _Join(spec, tuple(self.key), self.prefix, self.missing, at.letters, at.clock, PinnedVersions.of(at))

    def _bound_table(self) -> LookupTable:
        assert self._place is not None, "a step is bound before it is used"
        return self._place

    def _values(self, theirs: pa.Schema | None = None) -> pa.Schema:
        """The columns to add; of type null if the type is not known yet."""
        if isinstance(self.columns, str):
            return from_ddl(self.columns)
        place = self._bound_table()
        theirs = place.schema() if theirs is None else theirs
        known = theirs if theirs is not None else pa.schema([(name, pa.null()) for name in place.columns or ()])
        if self.columns is None:
            return pa.schema([field for field in known if field.name not in self.key.values()])
        for name in self.columns if len(known) else ():
            self._check_column(name, known)
        return pa.schema([known.field(name) if len(known) else pa.field(name, pa.null()) for name in self.columns])

    def _check_key(self, mine: pa.DataType, name: str, theirs: pa.Schema | None, other: str) -> None:
        if theirs is None:
            return
        self._check_column(other, theirs)
        check_alike(mine, theirs.field(other).type, name, self.table.label)

    def _check_column(self, name: str, theirs: pa.Schema) -> None:
        if name not in theirs.names:
            raise ProjectError(
                "unknown-column",
                f"table '{self.table.label}' has no column '{name}'",
                hint=did_you_mean(name, theirs.names, "its columns"),
            )


@dataclass
class _Join:
    """Looks up the keys of each Arrow batch, in the table version of its micro-batch."""

    wanted: LookupSpec
    keys: tuple[str, ...]
    prefix: str
    missing: str
    letters: StepLetters
    clock: StepClock
    pins: PinnedVersions

    def __call__(self, batches: Batches) -> Batches:
        lookup = None
        for batch in batches:
            if lookup is None:
                version = self.pins.version(self.clock.number(), self.wanted.place.version)
                lookup = self.wanted.lookup(version)
            places = lookup.find([column_of(batch, key) for key in self.keys])
            if self.missing != "null" and places.null_count:
                batch, places = self._without(batch, places)
            values = lookup.values.take(places)
            for field in self.wanted.values:
                column = values[field.name]
                batch = _with(batch, self.prefix + field.name, column.combine_chunks())
            yield batch

    def _without(self, batch: pa.RecordBatch, places: pa.Array) -> tuple[pa.RecordBatch, pa.Array]:
        if self.missing == "dead_letter":
            for index in pc.indices_nonzero(pc.is_null(places)).to_pylist():
                detail = f"{', '.join(self.keys)} is not in table {self.wanted.place.label}"
                self.letters.keep(batch, index, "not-in-table", detail)
        there = pc.is_valid(places)
        return batch.filter(there), places.filter(there)


def _with(batch: pa.RecordBatch, name: str, column: pa.Array) -> pa.RecordBatch:
    index = batch.schema.get_field_index(name)
    if index < 0:
        return batch.append_column(name, column)
    return batch.set_column(index, name, column)
