"""The net effect of many changes of one table: for each key the row before and the row after."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from headrace.core.errors import ProjectError
from headrace.core.tables import UNCHANGED, RowChange
from headrace.store.tables.copy_rows import CopyRows, epoch_of, same

Lookup = Callable[[list[bytes]], dict[bytes, bytes]]
"""Returns the stored rows of those keys that exist."""


@dataclass
class Net:
    """The writes to the copy, and the changes for the log."""

    puts: list[tuple[bytes, bytes]] = field(default_factory=list)
    gone: list[tuple[bytes, bytes]] = field(default_factory=list)
    """Removed rows, in stored form."""
    new: list[int] = field(default_factory=list)
    """The positions in `rows` of rows that were added or changed."""
    rows: pa.RecordBatch | None = None
    deletes: list[bytes] = field(default_factory=list)
    grown: int = 0
    """By how many rows the table grows."""
    renewed: int = 0
    """How many rows of an older epoch were replaced, deleted or sent again."""


def net(table: CopyRows, epoch: int, bulk: pa.Table | None, changes: Sequence[RowChange], lookup: Lookup) -> Net:
    """The net effect of current rows and of the changes after them."""
    bulk_rows = None if bulk is None else table.batch(bulk)
    places: dict[bytes, int | None] = {}
    """By key, the position of the final row among the bulk rows and those of the changes; None: the row is deleted."""
    if bulk_rows is not None:
        places.update(zip(table.keys(bulk_rows), range(bulk_rows.num_rows), strict=True))
    rows = _changed_rows(table, places, bulk_rows, changes, lookup)
    batches = [batch for batch in (bulk_rows, table.typed(rows) if rows else None) if batch is not None]
    whole = pa.Table.from_batches(batches, table.shape.columns)
    final = {key: place for key, place in places.items() if place is not None}
    order = list(final.values())
    last = table.batch(whole if order == list(range(whole.num_rows)) else whole.take(pa.array(order, pa.int64())))
    packed = dict(zip(final, table.packed(list(final), last, epoch), strict=True))
    return _compared(places, packed, last, lookup(sorted(places)), epoch)


def _changed_rows(
    table: CopyRows,
    places: dict[bytes, int | None],
    bulk_rows: pa.RecordBatch | None,
    changes: Sequence[RowChange],
    lookup: Lookup,
) -> list[Sequence[Any]]:
    """The complete rows of the changes; updates `places`."""
    keys = iter(table.keys_of([change.row for change in changes if change.row is not None]))
    befores = iter(table.keys_from([change.before for change in changes if change.before is not None]))
    offset = 0 if bulk_rows is None else bulk_rows.num_rows
    rows: list[Sequence[Any]] = []
    for change in changes:
        before = None if change.before is None else next(befores)
        row = change.row
        if row is None:
            assert before is not None, "a delete says which row"
            places[before] = None
            continue
        key = next(keys)
        if UNCHANGED in row:
            row = _completed(table, row, before or key, places, bulk_rows, rows, lookup)
        if before is not None:
            places[before] = None
        places[key] = offset + len(rows)
        rows.append(row)
    return rows


def _completed(
    table: CopyRows,
    row: Sequence[Any],
    key: bytes,
    places: dict[bytes, int | None],
    bulk_rows: pa.RecordBatch | None,
    rows: Sequence[Sequence[Any]],
    lookup: Lookup,
) -> list[Any]:
    """A row with its earlier values in place of those that the change marks as unchanged."""
    missing = [at for at, value in enumerate(row) if value is UNCHANGED]
    offset = 0 if bulk_rows is None else bulk_rows.num_rows
    place = places.get(key)
    packed = None if key in places else lookup([key]).get(key)
    filled = list(row)
    for at in missing:
        if place is not None:
            filled[at] = (
                rows[place - offset][at] if bulk_rows is None or place >= offset else bulk_rows[at][place].as_py()
            )
        elif packed is not None:
            filled[at] = table.value(key, packed, at)
        else:
            raise _unknown(table)
    return filled


def _unknown(table: CopyRows) -> ProjectError:
    return ProjectError(
        "table-row-unknown",
        f"the source of table '{table.name}' sent a partial change of a row that it never sent",
        hint="make the source send the table's rows again: headrace tables show prints where it is read",
    )


def _compared(
    places: dict[bytes, int | None],
    packed: dict[bytes, bytes],
    rows: pa.RecordBatch,
    stored: dict[bytes, bytes],
    epoch: int,
) -> Net:
    result = Net(rows=rows)
    number = -1
    for key, place in places.items():
        old = stored.get(key)
        older = old is not None and epoch_of(old) != epoch
        result.renewed += older
        if place is None:
            if old is not None:
                result.gone.append((key, old))
                result.deletes.append(key)
            continue
        number += 1
        new = packed[key]
        if old is None or not same(old, new):
            result.new.append(number)
            result.puts.append((key, new))
            if old is not None:
                result.gone.append((key, old))
        elif older:
            result.puts.append((key, new))
    result.grown = len(result.new) - len(result.gone)
    result.puts.sort()
    return result
