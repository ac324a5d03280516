"""Translates Spark's errors about a checkpoint that does not fit its query.

`plan` detects such changes before a flow starts; these are the cases that it cannot detect.
"""

from __future__ import annotations

import re

from headrace.core.errors import Exit, ProjectError
from headrace.plan.model import FlowPlan

_INCOMPATIBLE = re.compile(
    r"\[(STATE_STORE_(?:KEY|VALUE)_SCHEMA_NOT_COMPATIBLE|STATE_STORE_\w*SCHEMA\w*"
    r"|STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA)\]\s*([^\n]*)"
    r"|(There are \[\d+\] sources in the checkpoint offsets and now there are \[\d+\] sources)"
)
_DAMAGED = re.compile(
    r"\[(STREAMING_CHECKPOINT_MISSING_METADATA_FILE|STREAMING_STATEFUL_OPERATOR_MISSING_STATE_DIRECTORY)\]\s*([^\n]*)"
)


def from_state(flow: FlowPlan, text: str) -> ProjectError | None:
    """The error of a query that cannot continue from its checkpoint; None for other errors."""
    incompatible = _INCOMPATIBLE.search(text)
    if incompatible:
        return ProjectError(
            "needs-new-generation",
            f"flow '{flow.name}' cannot continue from its checkpoint: {_sentence(incompatible[2] or incompatible[3])}",
            hint=f"revert the change, or start a new generation: headrace run --new-generation {flow.name}",
            exit_code=Exit.CONFLICT,
        )
    damaged = _DAMAGED.search(text)
    if damaged:
        return ProjectError(
            "checkpoint-damaged",
            f"the checkpoint of flow '{flow.name}' is damaged: {_sentence(damaged[2])}",
            hint=f"restore the files, or start a new generation: headrace run --new-generation {flow.name}",
            exit_code=Exit.CONFLICT,
        )
    return None


def _sentence(text: str) -> str:
    return re.split(r"(?<=[a-z])\. |SQLSTATE", text.strip())[0].strip().rstrip(".")[:300]
