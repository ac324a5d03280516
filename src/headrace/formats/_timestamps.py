"""ISO-8601 texts to timestamps, many at once."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from headrace.core.schema import TIMESTAMP

_ZONE = r"(?:Z|[+-]\d\d(?::?\d\d)?)$"
_TIME = r"^\d{4}-\d\d-\d\d[T ]\d\d:\d\d"


def parse_timestamps(texts: pa.Array, target: pa.DataType = TIMESTAMP) -> pa.Array:
    """Timestamps in UTC; a text without a zone is UTC. Raises ArrowInvalid when one of them is not a timestamp."""
    if target.tz is None:
        return texts.cast(target)
    try:
        return texts.cast(TIMESTAMP)
    except pa.ArrowInvalid:
        return _parse_any(texts)


def _parse_any(texts: pa.Array) -> pa.Array:
    """The slow way: zones may be missing or in lower case, and digits after the microseconds are cut off."""
    clean = pc.replace_substring_regex(pc.utf8_upper(texts), r"(\.\d{6})\d+", r"\1")
    zoned = pc.and_(pc.match_substring_regex(clean, _TIME), pc.match_substring_regex(clean, _ZONE))
    nothing = pa.scalar(None, pa.string())
    with_zone = pc.if_else(zoned, clean, nothing).cast(TIMESTAMP)
    without = pc.if_else(zoned, nothing, clean).cast(pa.timestamp("us"))
    return pc.coalesce(with_zone, pc.assume_timezone(without, "UTC"))


def is_timestamp(text: str) -> bool:
    """Whether a text is a date and a time of day in ISO-8601."""
    try:
        parsed = parse_timestamps(pa.array([text], pa.string()))
    except pa.ArrowInvalid:
        return False
    return bool(parsed[0].is_valid and pc.match_substring_regex(pa.scalar(text.upper()), _TIME).as_py())
