"""Changes that hold what cannot be served: found before they are applied, so that one of them never stops the rest."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

# the years 1 to 9999, which is what times in JSON can say
_DAYS = (-719_162, 2_932_896)
_MICROSECONDS = (-62_135_596_800_000_000, 253_402_300_799_999_999)


def fitted(batch: pa.RecordBatch, columns: pa.Schema) -> tuple[pa.RecordBatch, dict[int, str]]:
    """The batch with nothing in it that cannot be read, and which changes must be refused for what was in them."""
    batch = _readable(batch)
    unfit: dict[int, str] = {}
    for field in columns:
        kind = field.type
        if not (pa.types.is_date32(kind) or pa.types.is_timestamp(kind)):
            continue
        at = batch.schema.get_field_index(field.name)
        outside = _outside(batch.column(at))
        if outside is not None:
            reason = f"'{field.name}' is outside the years 1 to 9999"
            unfit.update((index, reason) for index in pc.indices_nonzero(outside).to_pylist())
            batch = batch.set_column(at, field, pc.if_else(outside, pa.scalar(None, kind), batch.column(at)))
    return batch, unfit


def _outside(times: pa.Array) -> pa.Array | None:
    """Which of them cannot be said; None: they all can."""
    days = pa.types.is_date32(times.type)
    least, most = _DAYS if days else _MICROSECONDS
    numbers = times.cast(pa.int32() if days else pa.int64())
    span = pc.min_max(numbers).as_py()
    if span["min"] is None or (span["min"] >= least and span["max"] <= most):
        return None
    return pc.fill_null(pc.or_(pc.less(numbers, least), pc.greater(numbers, most)), False)


def _readable(batch: pa.RecordBatch) -> pa.RecordBatch:
    """With the replacement character for bytes of texts that are no UTF-8, as Spark itself shows them."""
    try:
        batch.validate(full=True)
    except pa.ArrowInvalid:
        for at, field in enumerate(batch.schema):
            if pa.types.is_string(field.type):
                texts = batch.column(at).cast(pa.binary()).to_pylist()
                mended = [None if text is None else text.decode(errors="replace") for text in texts]
                batch = batch.set_column(at, field, pa.array(mended, field.type))
    return batch
