"""What the commands about a running engine share: durations and the flows of a status."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.cli.terminal.output import usage_error
from headrace.core.options.durations import parse_duration


def seconds_of(option: str, text: str) -> float:
    """The seconds that a duration on the command line means."""
    try:
        return parse_duration(text).total_seconds()
    except ValueError as error:
        raise usage_error(f"{option}: {error}") from None


def flows_of(document: dict[str, Any], names: Sequence[str]) -> list[dict[str, Any]]:
    """The flows of a status that are meant: all, or those named."""
    return [flow for flow in document["flow_list"] if not names or flow["name"] in names]
