"""What the commands about a running engine share: which project, what is known about its engine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.cli.terminal.output import usage_error
from headrace.core.durations import parse_duration
from headrace.core.errors import unknown_flow

if TYPE_CHECKING:
    from headrace.engine.state.state import StateDir
    from headrace.project.place import ProjectOutline


def state_of(path: Path, profile: str | None, overrides: Sequence[str] | None, flows: Sequence[str] = ()) -> StateDir:
    """The state folder of a project; the flows named must be its own."""
    from headrace.engine.state.state import StateDir

    return StateDir.of(place_of(path, profile, overrides, flows).context)


def place_of(
    path: Path, profile: str | None, overrides: Sequence[str] | None, flows: Sequence[str] = ()
) -> ProjectOutline:
    """Where a project keeps what it has; the flows named must be its own."""
    from headrace.project.place import locate

    place = locate(path, profile=profile, overrides=tuple(overrides or ()))
    for name in flows:
        if name not in place.flows:
            raise unknown_flow(name, place.flows)
    return place


def seconds_of(option: str, text: str) -> float:
    """The seconds that a duration on the command line means."""
    try:
        return parse_duration(text).total_seconds()
    except ValueError as error:
        raise usage_error(f"{option}: {error}") from None


def flows_of(document: dict[str, Any], names: Sequence[str]) -> list[dict[str, Any]]:
    """The flows of a status that are meant: all, or those named."""
    return [flow for flow in document["flow_list"] if not names or flow["name"] in names]
