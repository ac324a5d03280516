"""The page of the project file, one section per model."""

from __future__ import annotations

from pydantic import BaseModel

from headrace.project.dashboards import ChartSpec, DashboardSpec
from headrace.project.model import (
    BackfillSpec,
    Defaults,
    EventTime,
    FlowSpec,
    FunctionsSpec,
    LookupsSpec,
    ProjectSpec,
    SparkSpec,
    StreamSpec,
)
from headrace.project.tables import TableSpec
from headrace.reference.markdown import docstring, page
from headrace.reference.models import keys_table

_SECTIONS: dict[str, type[BaseModel]] = {
    "The project": ProjectSpec,
    "A stream": StreamSpec,
    "Event time": EventTime,
    "Backfill": BackfillSpec,
    "A table": TableSpec,
    "A flow": FlowSpec,
    "A dashboard": DashboardSpec,
    "A chart": ChartSpec,
    "Functions": FunctionsSpec,
    "Lookups": LookupsSpec,
    "Defaults": Defaults,
    "Spark": SparkSpec,
}


def project_page() -> str:
    about = "An unknown key is an error that suggests the nearest known key. See also [all kinds](index.md)."
    lines = ["# headrace.yaml", "", about]
    for title, model in _SECTIONS.items():
        lines += ["", f"## {title}", "", *docstring(model), "", *keys_table(model, home="")]
    return page("the models of the project file", *lines)
