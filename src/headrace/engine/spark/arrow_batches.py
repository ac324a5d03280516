"""How many records go to Python at once.

Spark measures a batch after every record when it has to keep a limit in bytes, which takes a quarter of the JVM's work
on small records. So the limit is one in records, such that a batch stays where the processor reaches it quickly: one of
50 MB takes a tenth more processor time, and a gigabyte more memory, than one of 8 MB.
"""

from __future__ import annotations

from headrace.core.context import Context
from headrace.core.errors import ProjectError
from headrace.core.source import HasSample
from headrace.plan.model import StreamInput

_RECORDS = "spark.sql.execution.arrow.maxRecordsPerBatch"
_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
_UNMEASURED = str(2**31 - 1)
_SAMPLE = 64
_BATCH_BYTES, _MOST_RECORDS, _FEWEST_RECORDS = 8 * 2**20, 50_000, 64


def batch_limits(largest: int) -> dict[str, str]:
    """Spark's settings for records of which the largest has so many bytes; nothing where its own limit is better."""
    records = min(_MOST_RECORDS, _BATCH_BYTES // largest)
    return {_RECORDS: str(records), _BYTES: _UNMEASURED} if records >= _FEWEST_RECORDS else {}


def largest_record(stream: StreamInput, context: Context) -> int | None:
    """The size of the largest of some records of a stream, where that can be told.

    Larger ones may come: a batch that does not fit into memory then fails, and the supervisor starts the flow again
    with Spark's own limit.
    """
    source = stream.spec.source
    if not isinstance(source, HasSample):
        return None
    try:
        return max((len(record) for record in source.sample(context, _SAMPLE)), default=None)
    except ProjectError:
        return None  # the flow itself will say so
