"""Operations of several sinks on the rows of a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.core.records import nested

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def drain(rows: DataFrame) -> None:
    """Read every partition and discard the rows.

    A batch that is already written must still be read: Spark stops a stateful flow whose batch ends before all of its
    state is committed.
    """
    rows.write.format("noop").mode("overwrite").save()


def structured(rows: DataFrame) -> DataFrame:
    """The rows with columns named `driver.name` gathered into a struct `driver`."""
    if not any("." in name for name in rows.columns):
        return rows
    return rows.select(nested(rows.columns).alias("row")).select("row.*")
