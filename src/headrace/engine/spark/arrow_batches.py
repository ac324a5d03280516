"""The size of the Arrow batches that Spark sends to Python.

With a limit in bytes Spark measures a batch after every record, which takes a quarter of the JVM's time on small
records. So the limit is a number of records, chosen so that a batch fits the caches of the processor: a batch of 50 MB
takes 10 % more CPU time, and a gigabyte more memory, than one of 8 MB.
"""

from __future__ import annotations

from headrace.core.context import Context
from headrace.core.errors import ProjectError
from headrace.core.source import HasSample
from headrace.plan.model import StreamInput

_RECORDS = "spark.sql.execution.arrow.maxRecordsPerBatch"
_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
_NO_LIMIT = str(2**31 - 1)
_SAMPLE = 64
_BATCH_BYTES, _MOST_RECORDS, _FEWEST_RECORDS = 8 * 2**20, 50_000, 64


def batch_limits(largest: int) -> dict[str, str]:
    """Spark's settings for records of up to `largest` bytes; empty where Spark's default limit is better."""
    records = min(_MOST_RECORDS, _BATCH_BYTES // largest)
    return {_RECORDS: str(records), _BYTES: _NO_LIMIT} if records >= _FEWEST_RECORDS else {}


def largest_record(stream: StreamInput, context: Context) -> int | None:
    """The size of the largest record in a sample of a stream; None if it cannot be sampled.

    Later records can be larger: a batch that does not fit into memory then fails, and the supervisor restarts the flow
    with Spark's default limit.
    """
    source = stream.spec.source
    if not isinstance(source, HasSample):
        return None
    try:
        return max((len(record) for record in source.sample(context, _SAMPLE)), default=None)
    except ProjectError:
        return None  # the flow itself will report it
