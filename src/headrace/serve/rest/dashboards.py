"""Pages of charts over endpoints. What is on them is told to callers as far as they may see the rows themselves."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from headrace.core.errors import RequestError, did_you_mean
from headrace.project.dashboards import ChartSpec
from headrace.serve.access.grants import Grant
from headrace.serve.http import pages
from headrace.serve.http.request_context import Front


def routes(front: Front) -> list[BaseRoute]:
    """The list and each dashboard: for browsers the page, which then asks the same address for JSON."""
    boards = Dashboards(front)
    return [Route("/dashboards", boards.listed), Route("/dashboards/{name}", boards.shown)]


class Dashboards:
    """The routes' handlers."""

    def __init__(self, front: Front) -> None:
        self._front = front
        self._specs = front.settings.dashboards

    async def listed(self, request: Request) -> Response:
        """All dashboards with a chart that the caller may see."""
        if pages.wanted(request):
            return pages.DASHBOARDS.answer(self._front, request)
        grant = self._grant(request)
        return self._json(request, [self._about(name) for name in self._names(grant)])

    async def shown(self, request: Request) -> Response:
        """One dashboard: what to ask for, and how to draw it."""
        if pages.wanted(request):
            return pages.DASHBOARDS.answer(self._front, request)
        grant, name = self._grant(request), request.path_params["name"]
        names = self._names(grant)
        if name not in names:
            hint = did_you_mean(name[:60], names, "dashboards")
            raise RequestError("unknown-dashboard", f"there is no dashboard '{name[:60]}'", status=404, hint=hint)
        spec = self._specs[name]
        charts = [self._chart(chart) for chart in spec.charts if _may(grant, chart)]
        return self._json(request, {**self._about(name), "refresh": spec.refresh.total_seconds(), "charts": charts})

    def _grant(self, request: Request) -> Grant:
        grant = self._front.grant(request)
        grant.check("read")
        return grant

    def _names(self, grant: Grant) -> list[str]:
        return [name for name, spec in self._specs.items() if any(_may(grant, chart) for chart in spec.charts)]

    def _about(self, name: str) -> dict[str, Any]:
        spec = self._specs[name]
        return {"name": name, "title": spec.title, "description": spec.description}

    def _chart(self, chart: ChartSpec) -> dict[str, Any]:
        query = {
            "$filter": chart.filter or {},
            "$order_by": chart.order_by,
            "$limit": min(chart.limit, self._front.settings.spec.limits.page),
        }
        drawn = chart.model_dump(include={"title", "type", "endpoint", "x", "series", "combine", "unit", "width"})
        return {**drawn, "y": chart.values, "query": query}

    def _json(self, request: Request, value: Any) -> Response:
        headers = {"vary": f"accept, {self._front.vary}"}
        return self._front.answer(request, msgspec.json.encode(value), headers)


def _may(grant: Grant, chart: ChartSpec) -> bool:
    """Whether a caller may see all that a chart names: what it may not see is for it as if it were not there."""
    access = grant.may(chart.endpoint)
    return access is not None and (
        access.fields is None or {one for _, one in chart.used_columns()} <= set(access.fields)
    )
