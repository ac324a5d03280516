"""Functions in a Spark session: those of the library that Spark cannot express, and those of the project."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.core.processor import RunsSql
from headrace.functions.expansion import called
from headrace.functions.families.messages import pick, wanted
from headrace.functions.function import Arrow
from headrace.functions.library import library
from headrace.functions.resources import Resources
from headrace.functions.user import UserFunction, load, used_by, user_functions
from headrace.plan.functions import resources_of
from headrace.plan.model import FlowInput, FlowPlan
from headrace.project.loader import Project

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register_for(session: SparkSession, flow: FlowPlan, project: Project) -> None:
    """Make known what a flow's SQL calls, also that of its steps and of flows which became part of it."""
    texts = [flow.sql, *(one.sql for one in flow.all_inputs() if isinstance(one, FlowInput))]
    steps = (step.processor for step in flow.steps())
    texts += [text for step in steps if isinstance(step, RunsSql) for text in step.statements]
    register(session, texts, project)


def register(session: SparkSession, texts: Iterable[str], project: Project | None) -> None:
    """Make known what these texts call."""
    names = {name for text in texts for name in called(text)}
    own = {} if project is None else user_functions(project.root)
    resources = resources_of(project, messages=any(name == "filters" or wanted(name) for name in names))
    for name in sorted(names):
        _register(session, name, _made(name, resources))
    for name, function in used_by(names, own).items():
        _ship(function)
        _register(session, name, function.arrow())


def _made(name: str, resources: Resources) -> Arrow | None:
    """What a name of the library means, when it is not in Spark's own words already."""
    field = wanted(name)
    if field is not None:
        return pick(resources, *field)
    function = library().get(name)
    if function is None:
        return None
    return function.arrow if function.build is None else function.build(resources)


def _register(session: SparkSession, name: str, made: Arrow | None) -> None:
    if made is None:
        return
    from pyspark.sql.functions import arrow_udf  # type: ignore[attr-defined]

    compute = made.compute

    def over_columns(*columns: pa.Array) -> pa.Array:
        return compute(*columns)

    session.udf.register(name, arrow_udf(over_columns, made.returns))


def _ship(function: UserFunction) -> None:
    """Let a function's file travel with it: no worker has it."""
    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(load(function))  # type: ignore[no-untyped-call]
