"""`type: generate`: typed rows out of nothing."""

from __future__ import annotations

import itertools
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field, StringConstraints, field_validator

from headrace.core.context import Context, ReadContext
from headrace.core.durations import Duration
from headrace.core.errors import ProjectError
from headrace.core.schema import to_ddl
from headrace.core.source import RowSource
from headrace.sources.generate.fields import AnyField, Share
from headrace.sources.generate.rows import RowMaker, row_schema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.datasource import DataSource

_DEFAULT_COUNT = 1000
_REGISTRATIONS = itertools.count()
_SPOILT = "cast(concat(X'07FFFF', substring(value, 1, cast(length(value) / 2 as int))) as binary)"
"""No JSON, protobuf or CSV record starts so; the rest is cut short for formats that do not mind."""

FieldName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z]\w*(\.[A-Za-z]\w*)*$")]


def _register(spark: SparkSession, source: type[DataSource]) -> str:
    """Make a data source known to a session under a name of its own, and return the name.

    A session neither finds what its main session has registered nor may it register the same name again.
    """
    name = f"{source.name()}_{next(_REGISTRATIONS)}"
    spark.dataSource.register(type(source.__name__, (source,), {"name": classmethod(lambda _source: name)}))
    return name


class GenerateSource(RowSource):
    """Typed rows for demonstrations, tests and measurements, at a steady rate.

    Delivery: exactly once into replay-safe sinks; every row is a pure function of the seed and its number. Order: by
    number; event times are out of order by `disorder`. Row times advance by 1/rate from row 0 on, also over a stop of
    the flow. Scale: two tasks per batch, about half a million rows of ten fields per CPU second.
    """

    metadata: ClassVar[dict[str, str]] = {"_offset": "bigint", "_timestamp": "timestamp"}
    position: ClassVar[tuple[str, ...]] = ("_offset",)
    simulated: ClassVar[bool] = True

    type: Literal["generate"] = "generate"
    fields: dict[FieldName, AnyField] = Field(
        description="The columns: each has one key that says what it holds. A dotted name makes a struct.",
        min_length=1,
        examples=[{"order_id": {"sequence": "order-{}"}, "driver.name": {"name": "person"}, "at": {"time": "event"}}],
    )
    rate: int = Field(10, ge=1, description="Rows per second.")
    count: int | None = Field(
        None, ge=0, description=f"End after this many rows. A batch read of an endless stream takes {_DEFAULT_COUNT}."
    )
    seed: int = Field(0, description="Another seed gives other rows.")
    disorder: Duration | None = Field(
        None, description="How late a row may come: event times are up to this much early."
    )
    skew: float = Field(
        0.0, ge=0, description="0 chooses evenly, more makes the first values and keys hot (Zipf's law)."
    )
    bad_records: Share = Field(0.0, description="Share of records that are spoilt. Needs a format on the stream.")
    start: datetime | None = Field(None, description="Time of row 0. Default: the clock when the flow first starts.")

    @field_validator("fields")
    @classmethod
    def _no_field_is_also_a_struct(cls, fields: dict[str, AnyField]) -> dict[str, AnyField]:
        for name in fields:
            for other in fields:
                if other.startswith(f"{name}."):
                    raise ValueError(f"'{name}' cannot be both a value and the struct of '{other}'")
        return fields

    @property
    def label(self) -> str:
        """What and how much."""
        return f"generate {self.rate} rows/s" + ("" if self.count is None else f", {self.count} rows")

    @property
    def reads(self) -> str:
        """Row numbers, whatever the rows hold."""
        return "generated rows"

    @property
    def needs_format(self) -> bool:
        """Only bytes can be spoilt."""
        return self.bad_records > 0

    def row_schema(self, context: Context) -> pa.Schema:
        """The generated columns."""
        return row_schema(self.fields)

    def read(self, spark: SparkSession, reading: ReadContext) -> DataFrame:
        """The rows: by the clock, all at once up to `count` when catching up, or as a batch."""
        from headrace.sources.generate.generator import GeneratedRows

        if reading.streaming and reading.until_caught_up:
            self.require_count()
        name = _register(spark, GeneratedRows)
        reader = spark.readStream if reading.streaming else spark.read
        ddl = to_ddl(self.row_schema(reading.context)) + "".join(
            f", {name} {kind}" for name, kind in self.metadata.items()
        )
        return reader.format(name).schema(ddl).options(**self.reader_options(reading)).load()

    def reader_options(self, reading: ReadContext) -> dict[str, str]:
        """What the data source is told."""
        options = {"source": self.model_dump_json(exclude_defaults=True), "hurry": str(reading.until_caught_up).lower()}
        return options if reading.max_records is None else options | {"max_records": str(reading.max_records)}

    def encoded(self, records: DataFrame) -> DataFrame:
        """The records with `bad_records` of them spoilt, always the same ones."""
        from pyspark.sql import functions as sf

        if not self.bad_records:
            return records
        million = 1_000_000
        drawn = sf.pmod(sf.xxhash64("_offset", sf.lit(self.seed)), sf.lit(million))
        spoilt = sf.when(drawn < round(self.bad_records * million), sf.expr(_SPOILT)).otherwise(sf.col("value"))
        return records.withColumn("value", spoilt)

    def require_count(self) -> int:
        """How many rows there are in all; refused when there is no end."""
        if self.count is None:
            raise ProjectError(
                "generate-unbounded",
                f"a generated stream without an end can never be caught up with ({self.rate} rows/s, no count)",
                hint="set count to the number of rows to generate, or run without --until-caught-up",
            )
        return self.count

    def rows_of_a_batch_read(self) -> int:
        """How many rows a batch read has."""
        return _DEFAULT_COUNT if self.count is None else self.count

    def epoch_ms(self) -> int:
        """The time of row 0 in milliseconds, now when no start is given."""
        if self.start is None:
            return time.time_ns() // 1_000_000
        start = self.start if self.start.tzinfo else self.start.replace(tzinfo=UTC)
        return round(start.timestamp() * 1000)

    def maker(self, epoch_ms: int) -> RowMaker:
        """Makes the rows, once the time of row 0 is known."""
        disorder_us = (self.disorder or timedelta()) // timedelta(microseconds=1)
        return RowMaker(self.fields, self.rate, self.seed, self.skew, disorder_us, epoch_ms)
