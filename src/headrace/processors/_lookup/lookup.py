"""Finds rows of a table by key, whole columns at a time."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from headrace.core.errors import ProjectError
from headrace.core.schema import ddl_type
from headrace.processors._lookup.tables import LookupTable

_CACHED_TABLES = 8


def comparable(kind: pa.DataType) -> pa.DataType:
    """The type in which keys are compared: integers of all sizes are equal."""
    if pa.types.is_integer(kind):
        return pa.int64()
    return pa.string() if pa.types.is_large_string(kind) else kind


def check_alike(mine: pa.DataType, theirs: pa.DataType, name: str, table: str) -> None:
    """Refuse a key that cannot be compared with that of the table."""
    if pa.types.is_null(mine) or comparable(mine) == comparable(theirs):
        return
    raise ProjectError(
        "step-type",
        f"'{name}' is of type {ddl_type(mine)}, and its counterpart in table '{table}' of {ddl_type(theirs)}",
        hint="cast one of them, e.g. in a 'sql' step before this one",
    )


def index_of(columns: Sequence[pa.Array | pa.ChunkedArray]) -> pd.Index:
    """An index of keys without nulls."""
    arrays = [column.cast(comparable(column.type)).to_pandas().to_numpy() for column in columns]
    return pd.Index(arrays[0]) if len(arrays) == 1 else pd.MultiIndex.from_arrays(arrays)


@dataclass(frozen=True)
class Lookup:
    """A table with an index of its unique keys."""

    values: pa.Table
    index: pd.Index

    def find(self, keys: Sequence[pa.Array]) -> pa.Array:
        """The place of each key's row; null if there is none, or if a part of the key is null."""
        places = np.full(len(keys[0]), -1, np.int64)
        whole = pc.indices_nonzero(_all_valid(keys)).to_numpy()
        if len(whole) and len(self.index):
            places[whole] = self.index.get_indexer(index_of([key.take(pa.array(whole)) for key in keys]))
        return pa.array(places, mask=places < 0)


def _all_valid(keys: Sequence[Any]) -> Any:
    valid = pc.is_valid(keys[0])
    for key in keys[1:]:
        valid = pc.and_(valid, pc.is_valid(key))
    return valid


@dataclass(frozen=True)
class LookupSpec:
    """A lookup in a table: its key columns, its value columns, and which of several rows of a key counts."""

    place: LookupTable
    keys: tuple[str, ...]
    values: pa.Schema
    """The value columns, by their names in the table."""
    latest: str | None = None

    def lookup(self, version: str) -> Lookup:
        """The table in this version; cached in the process."""
        with _lock:
            known = _loaded.get(self)
            if known is None or known[0] != version:
                known = (version, self._load(version))
                _loaded[self] = known
                while len(_loaded) > _CACHED_TABLES:
                    _loaded.popitem(last=False)
            _loaded.move_to_end(self)
            return known[1]

    def __hash__(self) -> int:
        return hash((self.place, self.keys, tuple(self.values.names), self.latest))

    def _load(self, version: str) -> Lookup:
        if not version:
            return Lookup(self.values.empty_table(), pd.Index([]))
        latest = [self.latest] if self.latest is not None else []
        columns = list(dict.fromkeys([*self.keys, *self.values.names, *latest]))
        rows = self._ordered(self.place.read(version, columns))
        rows = rows.filter(_all_valid([rows[key] for key in self.keys]))
        index = index_of([rows[key] for key in self.keys])
        repeated = index.duplicated(keep="last")
        if repeated.any():
            if self.latest is None:
                raise self._ambiguous(int(repeated.sum()))
            rows, index = rows.filter(pa.array(~repeated)), index[~repeated]
        return Lookup(self._cast(rows), index)

    def _ordered(self, rows: pa.Table) -> pa.Table:
        if self.latest is None:
            return rows
        order = rows[self.latest].to_pandas().argsort(kind="stable")
        return rows.take(pa.array(order))

    def _cast(self, rows: pa.Table) -> pa.Table:
        try:
            return rows.select(self.values.names).cast(self.values).combine_chunks()
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as error:
            message = f"the columns of table '{self.place.label}' are not of the types that were expected: {error}"
            raise ProjectError("table-columns", message, hint="restart the flow to read the new types") from error

    def _ambiguous(self, repeated: int) -> ProjectError:
        return ProjectError(
            "table-duplicate-keys",
            f"in table '{self.place.label}' {repeated} rows have the same key ({', '.join(self.keys)}) as another",
            hint="name the column whose greatest value counts: latest: updated_at; or a unique key",
        )


_lock = threading.Lock()
_loaded: OrderedDict[LookupSpec, tuple[str, Lookup]] = OrderedDict()
