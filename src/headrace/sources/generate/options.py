"""What is generated: the options of the source, which its workers need too."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Annotated

from pydantic import Field, StringConstraints, field_validator

from headrace.core.component import Options
from headrace.core.durations import Duration
from headrace.core.errors import ProjectError
from headrace.sources.generate.fields import AnyField, Share
from headrace.sources.generate.rows import RowMaker

_DEFAULT_COUNT = 1000

FieldName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z]\w*(\.[A-Za-z]\w*)*$")]


class GenerateOptions(Options):
    """The generated rows and their times."""

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
    bad_records: Share = Field(0.0, description="Share of records that are corrupted. Needs a format on the stream.")
    start: datetime | None = Field(None, description="Time of row 0. Default: the clock when the flow first starts.")

    @field_validator("fields")
    @classmethod
    def _no_field_is_also_a_struct(cls, fields: dict[str, AnyField]) -> dict[str, AnyField]:
        for name in fields:
            for longer in fields:
                if longer.startswith(f"{name}."):
                    raise ValueError(f"'{name}' cannot be both a value and the struct of '{longer}'")
        return fields

    def require_count(self) -> int:
        """The number of all rows; a ProjectError when the stream has no end."""
        if self.count is None:
            raise ProjectError(
                "generate-unbounded",
                f"a generated stream without an end can never be caught up with ({self.rate} rows/s, no count)",
                hint="set count to the number of rows to generate, or run without --until-caught-up",
            )
        return self.count

    def batch_count(self) -> int:
        """The number of rows of a batch read."""
        return _DEFAULT_COUNT if self.count is None else self.count

    def epoch_ms(self) -> int:
        """The time of row 0 in milliseconds: `start`, or now."""
        if self.start is None:
            return time.time_ns() // 1_000_000
        start = self.start if self.start.tzinfo else self.start.replace(tzinfo=UTC)
        return round(start.timestamp() * 1000)

    def maker(self, epoch_ms: int) -> RowMaker:
        """Generates the rows, given the time of row 0."""
        disorder_us = (self.disorder or timedelta()) // timedelta(microseconds=1)
        return RowMaker(self.fields, self.rate, self.seed, self.skew, disorder_us, epoch_ms)
