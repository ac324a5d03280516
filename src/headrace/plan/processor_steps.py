"""How processors change the columns of a flow, as far as known without Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from headrace.core.context import Context
from headrace.core.errors import ProjectError
from headrace.core.processor import FlowLakeTable, Processor, StatefulStep
from headrace.functions.expansion import expand
from headrace.functions.user import UserFunction
from headrace.plan.model import FlowInput, FlowPlan, Input, ProcessorStep, StreamInput
from headrace.sql.query import parse


@dataclass(frozen=True)
class ProjectFacts:
    """What a step may look up in its project."""

    context: Context
    tables: Callable[[str], FlowLakeTable]
    functions: Mapping[str, UserFunction]
    mode: str

    def lake_table(self, flow: str) -> FlowLakeTable:
        return self.tables(flow)

    def written_out(self, sql: str) -> str:
        """A query with the project's functions expanded to Spark SQL."""
        return expand(parse(sql), self.functions).sql


def steps_of(place: str, processors: Sequence[Processor]) -> tuple[ProcessorStep, ...]:
    """The steps at one place of a flow: `after`, or `before.` and the name of an input."""
    return tuple(ProcessorStep(f"{place}.{number}", processor) for number, processor in enumerate(processors))


def output_of(
    steps: Sequence[ProcessorStep], schema: pa.Schema, refused: Callable[[ProjectError, int], None]
) -> pa.Schema | None:
    """The columns after these steps; None if a step refuses its input."""
    for number, step in enumerate(steps):
        try:
            schema = step.processor.output(schema)
        except ProjectError as error:
            refused(error, number)
            return None
    return schema


def columns_needed(
    steps: Sequence[ProcessorStep], wanted: Sequence[str] | None, schema: pa.Schema | None
) -> tuple[str, ...] | None:
    """The input columns needed for the `wanted` output columns; None for all.

    A step may name columns that do not exist, and in any letter case.
    """
    needed = None if wanted is None else frozenset(wanted)
    for step in reversed(steps):
        needed = step.processor.uses(needed)
    if needed is None or schema is None:
        return None if needed is None else tuple(sorted(needed))
    lower = {name.lower() for name in needed}
    return tuple(name for name in schema.names if name.lower() in lower)


def steps_at(input_: Input) -> tuple[ProcessorStep, ...]:
    """The steps between an input and the SQL that reads it."""
    return (*input_.after, *input_.before) if isinstance(input_, FlowInput) else input_.before


def inlined_inputs(flow: str, inputs: Sequence[Input]) -> tuple[Input, ...]:
    return tuple(replace(input_, before=tuple(step.within(flow) for step in input_.before)) for input_ in inputs)


def state_descriptions(steps: Sequence[ProcessorStep]) -> list[str]:
    names = (step.processor.state_name for step in steps if isinstance(step.processor, StatefulStep))
    return [name for name in names if name is not None]


def lost_event_times(
    inputs: Sequence[Input], schema_of: Callable[[str], pa.Schema | None]
) -> Iterator[tuple[ProjectError, str]]:
    """Errors for steps that drop the event time a stateful flow needs, with the input they belong to."""
    for input_ in inputs:
        schema = schema_of(input_.name) if isinstance(input_, StreamInput) and input_.before else None
        if schema is None or not isinstance(input_, StreamInput) or input_.event_time is None:
            continue
        output = output_of(input_.before, schema, lambda _error, _number: None)
        if output is not None and input_.event_time.column not in output.names:
            message = f"the steps before '{input_.name}' drop its event time '{input_.event_time.column}'"
            hint = "a stateful flow needs it: keep the column"
            yield ProjectError("bad-event-time", message, hint=hint), input_.name


def step_refusals(flow: FlowPlan) -> Iterator[tuple[ProjectError, str]]:
    """Errors for steps that do not fit the flow, with the key of the flow they belong to."""
    for step in flow.steps():
        if state_descriptions([step]) and flow.spec.output == "update" and flow.spec.mode != "batch":
            message = f"step {step.id} ({step.processor.kind()}) needs each row once, and output: update repeats rows"
            hint = "use output: append, or put the step into a flow that reads this one through a lake table"
            yield ProjectError("step-needs-append", message, hint=hint), "output"
        for obstacle in _obstacles(step, flow):
            message = f"step {step.id} ({step.processor.kind()}) {obstacle}"
            hint = "move it to a separate flow, which others read through a topic or a lake table"
            yield ProjectError("step-needs-own-flow", message, hint=hint), "before" if flow.spec.before else "after"


def _obstacles(step: ProcessorStep, flow: FlowPlan) -> Iterator[str]:
    """Conflicts of a flow with a step that takes all rows at once or has its own watermark."""
    if not isinstance(step.processor, StatefulStep):
        return
    if step.processor.needs_one_batch and flow.spec.mode != "batch":
        yield f"needs a flow with mode: batch, and '{flow.name}' has mode: {flow.spec.mode}"
    if step.processor.needs_one_batch and flow.spec.max_records is not None:
        yield "needs all rows of a run in one batch, and max_records divides them"
    if not step.processor.has_watermark:
        return
    others = [other for other in flow.steps() if _has_watermark(other.processor) and other != step]
    if others:
        yield f"has its own watermark, and so has {others[0].id}"
    for input_ in flow.all_inputs():
        if not isinstance(input_, FlowInput) and input_.event_time is not None:
            yield f"has its own watermark, and input '{input_.name}' has an event time"
    for state in set(flow.state) - set(state_descriptions(list(flow.steps()))):
        yield f"returns rows without a watermark, and the SQL keeps state ({state})"


def _has_watermark(step: Processor) -> bool:
    return isinstance(step, StatefulStep) and step.has_watermark
