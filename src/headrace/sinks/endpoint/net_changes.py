"""Several changes of one key within a batch, put together where the outcome is the same whatever row is there before.

What is not the same stays apart: an insert of a row that is there, an update or delete of one that is not, may have to
be refused, and refusals have to be reported.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from headrace.core.endpoints import OP, Conflicts, Op

Change = tuple[Op, int]
"""What is done, and the number of the row it is done with."""


def net(changes: Sequence[Change], conflicts: Conflicts) -> list[Change]:
    """As few changes as possible to the same effect."""
    kept: list[Change] = []
    for change in changes:
        made = change
        while kept and (joined := _joined(kept[-1], made, conflicts)) is not None:
            kept.pop()
            made = joined
        kept.append(made)
    return kept


def _joined(first: Change, second: Change, conflicts: Conflicts) -> Change | None:
    """One change instead of two in this order; None when there is none for all cases."""
    (before, _), (after, row) = first, second
    quiet_delete = conflicts.on_delete == "nothing"
    quiet_insert = conflicts.on_insert != "error"
    match before, after:
        case _, Op.UPSERT:
            return second if _is_quiet(before, conflicts) else None
        case (Op.UPSERT, Op.UPDATE):
            return Op.UPSERT, row
        case (Op.INSERT, Op.UPDATE):
            return (Op.UPSERT, row) if quiet_insert else None
        case (Op.UPDATE, Op.UPDATE):
            return second if conflicts.on_update != "error" else None
        case (Op.UPSERT | Op.INSERT, Op.INSERT) if conflicts.on_insert == "nothing":
            return first
        case (Op.UPSERT | Op.INSERT, Op.INSERT) if conflicts.on_insert == "update":
            return Op.UPSERT, row
        case (Op.DELETE, Op.INSERT):
            return (Op.UPSERT, row) if quiet_delete else None
        case (Op.UPSERT, Op.DELETE):
            return second if quiet_delete else None
        case (Op.INSERT, Op.DELETE):
            return second if quiet_delete and quiet_insert else None
        case (Op.UPDATE, Op.DELETE):
            return second if quiet_delete and conflicts.on_update != "error" else None
        case (Op.DELETE, Op.DELETE):
            return first if quiet_delete else None
        case (Op.DELETE, Op.UPDATE) if conflicts.on_update == "upsert" and quiet_delete:
            return Op.UPSERT, row
        case (Op.DELETE, Op.UPDATE) if conflicts.on_update == "nothing":
            return first
    return None


def _is_quiet(op: Op, conflicts: Conflicts) -> bool:
    """Whether a change is never refused."""
    policies = {Op.INSERT: conflicts.on_insert, Op.UPDATE: conflicts.on_update, Op.DELETE: conflicts.on_delete}
    return policies.get(op) != "error"


def net_batches(
    batches: Iterator[pa.RecordBatch], key: Sequence[str], conflicts: Conflicts
) -> Iterator[pa.RecordBatch]:
    """Changes sorted by key and then by time, with those of each key put together. No key is null."""
    held: pa.RecordBatch | None = None
    for batch in batches:
        if not batch.num_rows:
            continue
        given = batch if held is None else pa.concat_batches([held, batch])
        starts = _starts(given, key)
        # the changes of the last key may continue in the next batch
        yield _net_of(given.slice(0, starts[-1]), starts[:-1], conflicts)
        held = given.slice(starts[-1])
    if held is not None:
        yield _net_of(held, [0], conflicts)


def _starts(batch: pa.RecordBatch, key: Sequence[str]) -> list[int]:
    """Where the changes of each key begin."""
    changed = pa.array([False] * (batch.num_rows - 1), pa.bool_())
    for name in key:
        column = batch.column(name)
        changed = pc.or_(changed, pc.not_equal(column[1:], column[:-1]))
    return [0, *(number + 1 for number in pc.indices_nonzero(changed).to_pylist())]


def _net_of(batch: pa.RecordBatch, starts: Sequence[int], conflicts: Conflicts) -> pa.RecordBatch:
    if len(starts) == batch.num_rows:
        return batch
    ops = [Op(number) for number in batch.column(OP).to_pylist()]
    kept: list[Change] = []
    for begin, end in zip(starts, [*starts[1:], batch.num_rows], strict=True):
        kept += net([(ops[row], row) for row in range(begin, end)], conflicts)
    made = batch.take(pa.array([row for _, row in kept], pa.int64()))
    numbers = pa.array([int(op) for op, _ in kept], pa.int8())
    return made.set_column(batch.schema.get_field_index(OP), pa.field(OP, pa.int8()), numbers)
