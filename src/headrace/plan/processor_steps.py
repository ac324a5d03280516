"""What processors do to the columns of a flow, as far as it can be told without Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from headrace.core.context import Context
from headrace.core.errors import ProjectError
from headrace.core.processor import FlowLakeTable, Processor
from headrace.functions.expansion import expand
from headrace.functions.user import UserFunction
from headrace.plan.model import FlowInput, FlowPlan, Input, ProcessorStep, StreamInput
from headrace.sql.query import parse


@dataclass(frozen=True)
class ProjectFacts:
    """What a step may ask about its project."""

    context: Context
    tables: Callable[[str], FlowLakeTable]
    functions: Mapping[str, UserFunction]
    mode: str

    def lake_table(self, flow: str) -> FlowLakeTable:
        """The table of a flow."""
        return self.tables(flow)

    def written_out(self, sql: str) -> str:
        """A query in Spark's own words."""
        return expand(parse(sql), self.functions).sql


def steps_of(place: str, processors: Sequence[Processor]) -> tuple[ProcessorStep, ...]:
    """The steps of one place of a flow: `after`, or `before.` and the name of an input."""
    return tuple(ProcessorStep(f"{place}.{number}", one) for number, one in enumerate(processors))


def output_of(
    steps: Sequence[ProcessorStep], given: pa.Schema, refused: Callable[[ProjectError, int], None]
) -> pa.Schema | None:
    """The columns after these steps; None when one of them refuses what it gets."""
    for number, step in enumerate(steps):
        try:
            given = step.processor.output(given)
        except ProjectError as error:
            refused(error, number)
            return None
    return given


def columns_needed(
    steps: Sequence[ProcessorStep], wanted: Sequence[str] | None, given: pa.Schema | None
) -> tuple[str, ...] | None:
    """The columns that must go in so that those wanted come out; None for all.

    A step may name more than there is, and in letters of either case.
    """
    needed = None if wanted is None else frozenset(wanted)
    for step in reversed(steps):
        needed = step.processor.uses(needed)
    if needed is None or given is None:
        return None if needed is None else tuple(sorted(needed))
    lower = {name.lower() for name in needed}
    return tuple(name for name in given.names if name.lower() in lower)


def steps_at(one: Input) -> tuple[ProcessorStep, ...]:
    """The steps between an input and the SQL that reads it."""
    return (*one.after, *one.before) if isinstance(one, FlowInput) else one.before


def inlined_inputs(flow: str, inputs: Sequence[Input]) -> tuple[Input, ...]:
    """The inputs of a flow that becomes part of another."""
    return tuple(replace(one, before=tuple(step.within(flow) for step in one.before)) for one in inputs)


def state_descriptions(steps: Sequence[ProcessorStep]) -> list[str]:
    """What these steps keep from batch to batch, in words."""
    return [step.processor.remembers for step in steps if step.processor.remembers is not None]


def lost_event_times(
    inputs: Sequence[Input], schema_of: Callable[[str], pa.Schema | None]
) -> Iterator[tuple[ProjectError, str]]:
    """Steps that lose the event time on which what a flow keeps depends, and the inputs before which they stand."""
    for one in inputs:
        schema = schema_of(one.name) if isinstance(one, StreamInput) and one.before else None
        if schema is None or not isinstance(one, StreamInput) or one.event_time is None:
            continue
        made = output_of(one.before, schema, lambda _error, _number: None)
        if made is not None and one.event_time.column not in made.names:
            message = f"the steps before '{one.name}' leave out its event time '{one.event_time.column}'"
            hint = "a flow that keeps something needs it: let it through"
            yield ProjectError("bad-event-time", message, hint=hint), one.name


def step_refusals(flow: FlowPlan) -> Iterator[tuple[ProjectError, str]]:
    """Why steps cannot be in this flow, and the key that says so."""
    for step in flow.steps():
        if step.processor.remembers and flow.spec.output == "update" and flow.spec.mode != "batch":
            message = f"step {step.id} ({step.processor.kind()}) takes rows once, and update gives them again"
            hint = "use output: append, or put the step into a flow that reads this one through a lake table"
            yield ProjectError("step-needs-append", message, hint=hint), "output"
        for obstacle in _obstacles(step, flow):
            message = f"step {step.id} ({step.processor.kind()}) {obstacle}"
            hint = "give it a flow of its own, which others read through a topic or a lake table"
            yield ProjectError("step-needs-own-flow", message, hint=hint), "before" if flow.spec.before else "after"


def _obstacles(step: ProcessorStep, flow: FlowPlan) -> Iterator[str]:
    """What in a flow does not go together with a step that takes all rows at once, or has a watermark of its own."""
    if step.processor.takes_all and flow.spec.mode != "batch":
        yield f"is of a flow with mode: batch, and '{flow.name}' has mode: {flow.spec.mode}"
    if step.processor.takes_all and flow.spec.max_records is not None:
        yield "needs all rows of a run in one batch, and max_records divides them"
    if not step.processor.keeps_time:
        return
    others = [one for one in flow.steps() if one.processor.keeps_time and one != step]
    if others:
        yield f"has a watermark of its own, and so has {others[0].id}"
    for one in flow.all_inputs():
        if not isinstance(one, FlowInput) and one.event_time is not None:
            yield f"has a watermark of its own, and input '{one.name}' has an event time"
    for state in set(flow.state) - set(state_descriptions(list(flow.steps()))):
        yield f"gives rows without a watermark, and the SQL keeps state ({state})"
