"""Rows on their way into an archive: which folder each belongs to, by Spark's own expressions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.core.lazy import lazy_modules
from headrace.sinks.archive.files import UNKNOWN

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql import functions as F
else:
    F = lazy_modules("pyspark.sql.functions")

_TIMES = ("timestamp", "timestamp_ntz", "date")
# outside of the years 1 to 9999, in any zone, the name of a day has not four digits
_FIRST, _LAST = "0001-01-02", "9999-12-31"
_FIRST_MILLISECOND, _LAST_MILLISECOND = -62_135_510_400_000, 253_402_214_400_000
# a time alone would be one of the day on which it is read
_DATED = r"^\s*[0-9]{4}-"


def placed(
    rows: DataFrame, topic: str, value: str, times: Sequence[str], zone: str, hours: bool, position: Sequence[str]
) -> DataFrame:
    """`folder` and `value`, and `partition` and `offset` where they are known."""
    kinds = dict(rows.dtypes)
    moment = F.coalesce(*(_moment(name, kinds[name]) for name in times))
    local = F.from_utc_timestamp(moment, zone)
    day = F.date_format(local, "'/dt='yyyy-MM-dd'/hr='HH" if hours else "'/dt='yyyy-MM-dd")
    folder = F.concat(_column(topic), F.coalesce(day, F.lit(f"/dt={UNKNOWN}")))
    columns = [folder.alias("folder"), _column(value).cast("binary").alias("value")]
    if position:
        partition, offset = position
        columns += [
            F.coalesce(_column(partition).cast("int"), F.lit(-1)).alias("partition"),
            F.coalesce(_column(offset).cast("bigint"), F.lit(-1)).alias("offset"),
        ]
    return rows.select(*columns)


def _moment(name: str, kind: str) -> Column:
    """The time in a column of times, milliseconds since 1970, or texts of either; null where it cannot be read."""
    value = _column(name)
    if kind == "string":
        number = value.try_cast("double")
        return F.coalesce(_of_milliseconds(number), _in_range(F.when(value.rlike(_DATED), value).try_cast("timestamp")))
    return _in_range(value.cast("timestamp")) if kind in _TIMES else _of_milliseconds(value.cast("double"))


def _of_milliseconds(number: Column) -> Column:
    fits = (number >= _FIRST_MILLISECOND) & (number <= _LAST_MILLISECOND)
    return F.when(fits, F.timestamp_millis(number.cast("bigint")))


def _in_range(moment: Column) -> Column:
    return F.when(moment.between(F.lit(_FIRST).cast("timestamp"), F.lit(_LAST).cast("timestamp")), moment)


def _column(name: str) -> Column:
    return F.col("`" + name.replace("`", "``") + "`")
