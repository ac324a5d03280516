"""`type: generate`: generated, typed rows."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, ClassVar, Literal

from headrace.core.context import Context, ReadContext
from headrace.core.runtime.lazy import lazy_modules
from headrace.core.schema import to_ddl
from headrace.core.source import RowSource
from headrace.sources.generate.options import GenerateOptions
from headrace.sources.generate.rows import row_schema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.datasource import DataSource

    from headrace.sources.generate import generator
else:
    generator = lazy_modules("headrace.sources.generate.generator")

_REGISTRATIONS = itertools.count()
_CORRUPTED = "cast(concat(X'07FFFF', substring(value, 1, cast(length(value) / 2 as int))) as binary)"
"""No JSON, protobuf or CSV record starts like this; the rest is cut for formats that accept any start."""


def _register(spark: SparkSession, source: type[DataSource]) -> str:
    """Register a data source with a session under a unique name, and return the name.

    A session does not see the data sources of its parent session, and cannot register the same name again.
    """
    name = f"{source.name()}_{next(_REGISTRATIONS)}"
    spark.dataSource.register(type(source.__name__, (source,), {"name": classmethod(lambda _source: name)}))
    return name


class GenerateSource(GenerateOptions, RowSource):
    """Typed rows for demonstrations, tests and measurements, at a steady rate.

    Delivery: exactly once into replay-safe sinks; every row is a pure function of the seed and its number. Order: by
    number; event times are out of order by `disorder`. Row times advance by 1/rate from row 0 on, also over a stop of
    the flow. Scale: two tasks per batch, about half a million rows of ten fields per CPU second.
    """

    metadata: ClassVar[dict[str, str]] = {"_offset": "bigint", "_timestamp": "timestamp"}
    position: ClassVar[tuple[str, ...]] = ("_offset",)
    simulated: ClassVar[bool] = True

    type: Literal["generate"] = "generate"

    @property
    def label(self) -> str:
        return f"generate {self.rate} rows/s" + ("" if self.count is None else f", {self.count} rows")

    @property
    def reads(self) -> str:
        """Row numbers, independent of the fields."""
        return "generated rows"

    @property
    def needs_format(self) -> bool:
        """Only bytes can be corrupted."""
        return self.bad_records > 0

    def row_schema(self, context: Context) -> pa.Schema:
        return row_schema(self.fields)

    def read(self, spark: SparkSession, reading: ReadContext) -> DataFrame:
        """The rows: as a stream by the clock, as a stream of all rows at once when catching up, or as a batch."""
        if reading.streaming and reading.until_caught_up:
            self.require_count()
        name = _register(spark, generator.GeneratedRows)
        reader = spark.readStream if reading.streaming else spark.read
        metadata = "".join(f", {column} {kind}" for column, kind in self.metadata.items())
        ddl = to_ddl(self.row_schema(reading.context)) + metadata
        return reader.format(name).schema(ddl).options(**self.reader_options(reading)).load()

    def reader_options(self, reading: ReadContext) -> dict[str, str]:
        options = {"source": self.model_dump_json(exclude_defaults=True), "hurry": str(reading.until_caught_up).lower()}
        return options if reading.max_records is None else options | {"max_records": str(reading.max_records)}

    def encoded(self, records: DataFrame) -> DataFrame:
        """The records, of which the share `bad_records` is corrupted; always the same ones."""
        from pyspark.sql import functions as sf

        if not self.bad_records:
            return records
        million = 1_000_000
        drawn = sf.pmod(sf.xxhash64("_offset", sf.lit(self.seed)), sf.lit(million))
        corrupted = sf.when(drawn < round(self.bad_records * million), sf.expr(_CORRUPTED)).otherwise(sf.col("value"))
        return records.withColumn("value", corrupted)
