"""Values that cannot be served. They are detected before changes are applied, so that one never blocks the others."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

# the years 1 to 9999: the range of times in JSON
_DAYS = (-719_162, 2_932_896)
_MICROSECONDS = (-62_135_596_800_000_000, 253_402_300_799_999_999)


def replace_unservable(batch: pa.RecordBatch, columns: pa.Schema) -> tuple[pa.RecordBatch, dict[int, str]]:
    """The batch with unservable values replaced, and by number the changes to refuse, with the reason."""
    batch = _readable(batch)
    refused: dict[int, str] = {}
    for field in columns:
        kind = field.type
        if not (pa.types.is_date32(kind) or pa.types.is_timestamp(kind)):
            continue
        at = batch.schema.get_field_index(field.name)
        outside = _outside(batch.column(at))
        if outside is not None:
            reason = f"'{field.name}' is outside the years 1 to 9999"
            refused.update((index, reason) for index in pc.indices_nonzero(outside).to_pylist())
            batch = batch.set_column(at, field, pc.if_else(outside, pa.scalar(None, kind), batch.column(at)))
    return batch, refused


def _outside(times: pa.Array) -> pa.Array | None:
    """Which times are outside the servable range; None: no time is."""
    days = pa.types.is_date32(times.type)
    least, most = _DAYS if days else _MICROSECONDS
    numbers = times.cast(pa.int32() if days else pa.int64())
    extremes = pc.min_max(numbers).as_py()
    if extremes["min"] is None or (extremes["min"] >= least and extremes["max"] <= most):
        return None
    return pc.fill_null(pc.or_(pc.less(numbers, least), pc.greater(numbers, most)), False)


def _readable(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Replace bytes that are not UTF-8 with the replacement character, as Spark shows them."""
    try:
        batch.validate(full=True)
    except pa.ArrowInvalid:
        for at, field in enumerate(batch.schema):
            if pa.types.is_string(field.type):
                texts = batch.column(at).cast(pa.binary()).to_pylist()
                repaired = [None if text is None else text.decode(errors="replace") for text in texts]
                batch = batch.set_column(at, field, pa.array(repaired, field.type))
    return batch
