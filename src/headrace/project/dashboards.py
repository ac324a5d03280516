"""The section `dashboards:`: pages of charts over endpoints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from headrace.core.component import Options
from headrace.core.durations import Duration

_LEAST_REFRESH = timedelta(seconds=1)


class ChartSpec(Options):
    """A chart of the rows of one endpoint. Readers see it if their token grants the endpoint and all columns used."""

    title: str = Field(min_length=1, description="A short title.", examples=["Hours by week"])
    type: Literal["line", "bar", "pie", "number", "table"] = Field(
        description="line and bar: `y` over `x`. pie: shares of `x`. number: one value of all rows. table: the rows."
    )
    endpoint: str = Field(description="Whose rows.", examples=["orders"])
    x: str | None = Field(None, description="Column along the axis: times, numbers or names.", examples=["week"])
    y: str | list[str] = Field(
        default=[],
        description="Column(s) of numbers; of a table, the columns to show besides `x`; default: all.",
        examples=["hours", ["started", "completed"]],
    )
    series: str | None = Field(
        None, description="Of line and bar: a column; each of its values is a separate series.", examples=["channel"]
    )
    combine: Literal["sum", "average", "min", "max"] = Field(
        "sum", description="How to combine the numbers of several rows with the same `x` and `series`."
    )
    unit: str = Field("", max_length=20, description="Shown after the numbers.", examples=["%", "h"])
    filter: dict[str, Any] | None = Field(
        None, description="Only rows that match this filter.", examples=[{"region": {"$eq": "EU"}}]
    )
    order_by: dict[str, Literal["asc", "desc"]] = Field(
        default={}, description="The order of rows; `limit` takes the first ones.", examples=[{"hours": "desc"}]
    )
    limit: int = Field(500, ge=1, le=1_000, description="The most rows; at most `serve.limits.page`.")
    width: Literal["third", "half", "full"] = Field("half", description="Its share of the page width; full on a phone.")

    @model_validator(mode="after")
    def _fits_its_type(self) -> ChartSpec:
        if self.type in ("line", "bar", "pie") and (self.x is None or not self.values):
            raise ValueError(f"a {self.type} needs 'x' and 'y'")
        if self.type in ("pie", "number") and len(self.values) != 1:
            raise ValueError(f"a {self.type} needs one column as 'y'")
        if self.type == "number" and self.x is not None:
            raise ValueError("a number has no 'x': it combines all rows")
        if self.series is not None and (self.type not in ("line", "bar") or len(self.values) != 1):
            raise ValueError("'series' is for a line or a bar with one column as 'y'")
        return self

    @property
    def values(self) -> tuple[str, ...]:
        """The columns of `y`."""
        return (self.y,) if isinstance(self.y, str) else tuple(self.y)

    def used_columns(self) -> Iterator[tuple[str, str]]:
        """Each column it uses, with the key that names it."""
        yield from (("x", column) for column in (self.x,) if column is not None)
        yield from (("y", column) for column in self.values)
        yield from (("series", column) for column in (self.series,) if column is not None)
        yield from (("filter", column) for column in _filtered(self.filter or {}))
        yield from (("order_by", column.partition(".")[0]) for column in self.order_by)


class DashboardSpec(Options):
    """A page of charts that the serve node serves at `/dashboards/NAME`."""

    title: str = Field(min_length=1, description="The heading of the page.", examples=["Activity"])
    description: str = Field("", description="A line or two below the heading.")
    refresh: Duration = Field(timedelta(seconds=30), description="How often the page reloads the rows.")
    charts: list[ChartSpec] = Field(min_length=1, description="The charts, in order.")

    @field_validator("refresh")
    @classmethod
    def _not_too_often(cls, refresh: timedelta) -> timedelta:
        if refresh < _LEAST_REFRESH:
            raise ValueError("must be at least 1s")
        return refresh


def _filtered(filter: Mapping[str, Any]) -> Iterator[str]:
    """The columns in a filter, as far as it is well-formed; its parser reports the rest."""
    for key, value in filter.items():
        if not key.startswith("$"):
            yield key.partition(".")[0]
            continue
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, dict):
                yield from _filtered(part)
