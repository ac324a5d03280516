"""Dashboards: pages of charts over endpoints. A caller gets only the charts whose rows it may see."""

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
from headrace.serve.http.request_context import RequestContext


def routes(context: RequestContext) -> list[BaseRoute]:
    """The list and each dashboard: browsers get the page, which then requests the same URL as JSON."""
    boards = Dashboards(context)
    return [Route("/dashboards", boards.listed), Route("/dashboards/{name}", boards.shown)]


class Dashboards:
    """Handles the routes."""

    def __init__(self, context: RequestContext) -> None:
        self._context = context
        self._specs = context.settings.dashboards

    async def listed(self, request: Request) -> Response:
        """All dashboards with a chart that the caller may see."""
        if pages.requested(request):
            return pages.DASHBOARDS.answer(self._context, request)
        grant = self._grant(request)
        return self._json(request, [self._about(name) for name in self._names(grant)])

    async def shown(self, request: Request) -> Response:
        """One dashboard: its queries, and how to draw their results."""
        if pages.requested(request):
            return pages.DASHBOARDS.answer(self._context, request)
        grant, name = self._grant(request), request.path_params["name"]
        names = self._names(grant)
        if name not in names:
            hint = did_you_mean(name[:60], names, "dashboards")
            raise RequestError("unknown-dashboard", f"unknown dashboard '{name[:60]}'", status=404, hint=hint)
        spec = self._specs[name]
        charts = [self._chart(chart) for chart in spec.charts if _may(grant, chart)]
        return self._json(request, {**self._about(name), "refresh": spec.refresh.total_seconds(), "charts": charts})

    def _grant(self, request: Request) -> Grant:
        grant = self._context.grant(request)
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
            "$limit": min(chart.limit, self._context.settings.spec.limits.page),
        }
        options = chart.model_dump(include={"title", "type", "endpoint", "x", "series", "combine", "unit", "width"})
        return {**options, "y": chart.values, "query": query}

    def _json(self, request: Request, value: Any) -> Response:
        headers = {"vary": f"accept, {self._context.vary}"}
        return self._context.answer(request, msgspec.json.encode(value), headers)


def _may(grant: Grant, chart: ChartSpec) -> bool:
    """Whether a caller may see all columns that a chart names; otherwise the chart does not exist for the caller."""
    access = grant.may(chart.endpoint)
    if access is None:
        return False
    return access.fields is None or {name for _, name in chart.used_columns()} <= set(access.fields)
