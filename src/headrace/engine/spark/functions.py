"""Registers functions in a Spark session: library functions without a Spark expression, and project functions."""

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
    """Register the functions that the SQL of a flow calls, and that of its steps and of the flows merged into it."""
    texts = [flow.sql, *(source.sql for source in flow.all_inputs() if isinstance(source, FlowInput))]
    processors = (step.processor for step in flow.steps())
    texts += [text for processor in processors if isinstance(processor, RunsSql) for text in processor.statements]
    register(session, texts, project)


def register(session: SparkSession, texts: Iterable[str], project: Project | None) -> None:
    """Register the functions that these SQL texts call."""
    names = {name for text in texts for name in called(text)}
    own = {} if project is None else user_functions(project.root)
    resources = resources_of(project, messages=any(name == "filters" or wanted(name) for name in names))
    for name in sorted(names):
        _register(session, name, _library_function(name, resources))
    for name, function in used_by(names, own).items():
        _ship(function)
        _register(session, name, function.arrow())


def _library_function(name: str, resources: Resources) -> Arrow | None:
    """A function of the library; None if it is a Spark expression or not in the library."""
    field = wanted(name)
    if field is not None:
        return pick(resources, *field)
    function = library().get(name)
    if function is None:
        return None
    return function.arrow if function.build is None else function.build(resources)


def _register(session: SparkSession, name: str, function: Arrow | None) -> None:
    if function is None:
        return
    from pyspark.sql.functions import arrow_udf  # type: ignore[attr-defined]

    compute = function.compute

    def over_columns(*columns: pa.Array) -> pa.Array:
        return compute(*columns)

    session.udf.register(name, arrow_udf(over_columns, function.returns))


def _ship(function: UserFunction) -> None:
    """Pickle a function with its module, as workers do not have the file."""
    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(load(function))  # type: ignore[no-untyped-call]
