"""What may stand under `dashboards:`: pages of charts over endpoints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from headrace.core.component import Options
from headrace.core.durations import Duration

_LEAST_REFRESH = timedelta(seconds=1)


class ChartSpec(Options):
    """Rows of one endpoint, drawn. Readers see it if their token shows them the endpoint and all columns in it."""

    title: str = Field(min_length=1, description="What it shows, in a few words.", examples=["Hours by week"])
    type: Literal["line", "bar", "pie", "number", "table"] = Field(
        description="line and bar: `y` over `x`. pie: shares of `x`. number: one value of all rows. table: the rows."
    )
    endpoint: str = Field(description="Whose rows.", examples=["orders"])
    x: str | None = Field(None, description="Column along the axis: times, numbers or names.", examples=["week"])
    y: str | list[str] = Field(
        default=[],
        description="Column(s) of numbers; of a table, the columns to show beside `x`: all, if there are none.",
        examples=["hours", ["started", "completed"]],
    )
    series: str | None = Field(
        None, description="Of line and bar: a column whose values are drawn apart.", examples=["channel"]
    )
    combine: Literal["sum", "average", "min", "max"] = Field(
        "sum", description="How numbers of several rows become one, where they share `x` and `series`."
    )
    unit: str = Field("", max_length=20, description="Shown behind the numbers.", examples=["%", "h"])
    filter: dict[str, Any] | None = Field(
        None, description="Only rows that meet this filter.", examples=[{"region": {"$eq": "EU"}}]
    )
    order_by: dict[str, Literal["asc", "desc"]] = Field(
        default={}, description="Which rows come first, and are kept by `limit`.", examples=[{"hours": "desc"}]
    )
    limit: int = Field(500, ge=1, le=1_000, description="How many rows, within `serve.limits.page`.")
    width: Literal["third", "half", "full"] = Field("half", description="Its part of the page; a phone gives it all.")

    @model_validator(mode="after")
    def _fits_its_type(self) -> ChartSpec:
        if self.type in ("line", "bar", "pie") and (self.x is None or not self.values):
            raise ValueError(f"a {self.type} needs 'x' and 'y'")
        if self.type in ("pie", "number") and len(self.values) != 1:
            raise ValueError(f"a {self.type} needs one column as 'y'")
        if self.type == "number" and self.x is not None:
            raise ValueError("a number has no 'x': it is made of all rows")
        if self.series is not None and (self.type not in ("line", "bar") or len(self.values) != 1):
            raise ValueError("'series' is for a line or a bar with one column as 'y'")
        return self

    @property
    def values(self) -> tuple[str, ...]:
        """The columns of `y`."""
        return (self.y,) if isinstance(self.y, str) else tuple(self.y)

    def named(self) -> Iterator[tuple[str, str]]:
        """Each column that it names, behind the key that names it."""
        yield from (("x", one) for one in (self.x,) if one is not None)
        yield from (("y", one) for one in self.values)
        yield from (("series", one) for one in (self.series,) if one is not None)
        yield from (("filter", one) for one in _filtered(self.filter or {}))
        yield from (("order_by", one.partition(".")[0]) for one in self.order_by)


class DashboardSpec(Options):
    """A page of charts that the serve node gives at `/dashboards/NAME`."""

    title: str = Field(min_length=1, description="The heading of the page.", examples=["Activity"])
    description: str = Field("", description="A line or two below the heading.")
    refresh: Duration = Field(timedelta(seconds=30), description="How often the page asks for the rows again.")
    charts: list[ChartSpec] = Field(min_length=1, description="What is on it, in this order.")

    @field_validator("refresh")
    @classmethod
    def _not_too_often(cls, refresh: timedelta) -> timedelta:
        if refresh < _LEAST_REFRESH:
            raise ValueError("must be at least 1s")
        return refresh


def _filtered(filter: Mapping[str, Any]) -> Iterator[str]:
    """The columns in a filter, as far as it has the form of one; the rest is for whoever parses it."""
    for key, value in filter.items():
        if not key.startswith("$"):
            yield key.partition(".")[0]
            continue
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, dict):
                yield from _filtered(one)
