"""What many changes of one table come to: for each key the row that was there and the row that is there now."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from headrace.core.errors import ProjectError
from headrace.core.tables import UNCHANGED, RowChange
from headrace.store.tables.copy_rows import CopyRows, epoch_of, same

Lookup = Callable[[list[bytes]], dict[bytes, bytes]]
"""Gives those of some keys that are kept, with their rows."""


@dataclass
class Net:
    """What has to be done to the copy, and what the log gets."""

    puts: list[tuple[bytes, bytes]] = field(default_factory=list)
    gone: list[tuple[bytes, bytes]] = field(default_factory=list)
    """Rows that are there no more, as they were kept."""
    new: list[int] = field(default_factory=list)
    """Which rows of `rows` came to be."""
    rows: pa.RecordBatch | None = None
    deletes: list[bytes] = field(default_factory=list)
    grown: int = 0
    """How many rows there are more."""
    renewed: int = 0
    """How many rows of an older epoch were replaced, deleted or seen again."""


def net(table: CopyRows, epoch: int, bulk: pa.Table | None, changes: Sequence[RowChange], lookup: Lookup) -> Net:
    """The net effect of rows that are there now and of changes after them."""
    given = None if bulk is None else table.batch(bulk)
    places: dict[bytes, int | None] = {}
    """By key, which row is there in the end: its number among the given ones and those of changes; None: none."""
    if given is not None:
        places.update(zip(table.keys(given), range(given.num_rows), strict=True))
    rows = _followed(table, places, given, changes, lookup)
    batches = [batch for batch in (given, table.typed(rows) if rows else None) if batch is not None]
    whole = pa.Table.from_batches(batches, table.shape.columns)
    kept = {key: place for key, place in places.items() if place is not None}
    order = list(kept.values())
    last = table.batch(whole if order == list(range(whole.num_rows)) else whole.take(pa.array(order, pa.int64())))
    packed = dict(zip(kept, table.packed(list(kept), last, epoch), strict=True))
    return _compared(places, packed, last, lookup(sorted(places)), epoch)


def _followed(
    table: CopyRows,
    places: dict[bytes, int | None],
    given: pa.RecordBatch | None,
    changes: Sequence[RowChange],
    lookup: Lookup,
) -> list[Sequence[Any]]:
    """The rows of changes, whole; `places` then says which of them stay."""
    keys = iter(table.keys_of([change.row for change in changes if change.row is not None]))
    befores = iter(table.keys_from([change.before for change in changes if change.before is not None]))
    offset = 0 if given is None else given.num_rows
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
            row = _filled(table, row, before or key, places, given, rows, lookup)
        if before is not None:
            places[before] = None
        places[key] = offset + len(rows)
        rows.append(row)
    return rows


def _filled(
    table: CopyRows,
    row: Sequence[Any],
    key: bytes,
    places: dict[bytes, int | None],
    given: pa.RecordBatch | None,
    rows: Sequence[Sequence[Any]],
    lookup: Lookup,
) -> list[Any]:
    """A row with the values that it had where it says that they are what they were."""
    missing = [at for at, value in enumerate(row) if value is UNCHANGED]
    offset = 0 if given is None else given.num_rows
    place = places.get(key)
    packed = None if key in places else lookup([key]).get(key)
    filled = list(row)
    for at in missing:
        if place is not None:
            filled[at] = rows[place - offset][at] if given is None or place >= offset else given[at][place].as_py()
        elif packed is not None:
            filled[at] = table.value(key, packed, at)
        else:
            raise _unknown(table)
    return filled


def _unknown(table: CopyRows) -> ProjectError:
    return ProjectError(
        "table-row-unknown",
        f"the source of table '{table.name}' sent a change that leaves out values of a row that it never sent",
        hint="the source has to send the table's rows again: headrace tables show says where it is read",
    )


def _compared(
    places: dict[bytes, int | None],
    packed: dict[bytes, bytes],
    rows: pa.RecordBatch,
    there: dict[bytes, bytes],
    epoch: int,
) -> Net:
    done = Net(rows=rows)
    number = -1
    for key, place in places.items():
        old = there.get(key)
        older = old is not None and epoch_of(old) != epoch
        done.renewed += older
        if place is None:
            if old is not None:
                done.gone.append((key, old))
                done.deletes.append(key)
            continue
        number += 1
        new = packed[key]
        if old is None or not same(old, new):
            done.new.append(number)
            done.puts.append((key, new))
            if old is not None:
                done.gone.append((key, old))
        elif older:
            done.puts.append((key, new))
    done.grown = len(done.new) - len(done.gone)
    done.puts.sort()
    return done
