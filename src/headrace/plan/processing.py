"""What processors do to the columns of a flow, as far as it can be told without Spark."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from headrace.core.context import Context
from headrace.core.errors import ProjectError
from headrace.core.processor import LakeTable, Processor
from headrace.functions.expansion import expand
from headrace.functions.user import UserFunction
from headrace.plan.model import FlowInput, Input, ProcessorStep
from headrace.sql.query import parse


@dataclass(frozen=True)
class Known:
    """What a step may ask about its project."""

    context: Context
    tables: Callable[[str], LakeTable]
    functions: Mapping[str, UserFunction]

    def lake_table(self, flow: str) -> LakeTable:
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


def used_through(
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


def part_of_another(flow: str, inputs: Sequence[Input]) -> tuple[Input, ...]:
    """The inputs of a flow that becomes part of another."""
    return tuple(replace(one, before=tuple(step.within(flow) for step in one.before)) for one in inputs)


def remembered(steps: Sequence[ProcessorStep]) -> list[str]:
    """What these steps keep from batch to batch, in words."""
    return [step.processor.remembers for step in steps if step.processor.remembers is not None]
