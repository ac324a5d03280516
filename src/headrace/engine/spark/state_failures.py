"""What Spark says when a checkpoint and a query do not belong together, in our words.

`plan` finds such changes before anything starts; this is for what it could not know.
"""

from __future__ import annotations

import re

from headrace.core.errors import Exit, ProjectError
from headrace.plan.model import FlowPlan

_MISFITS = re.compile(
    r"\[(STATE_STORE_(?:KEY|VALUE)_SCHEMA_NOT_COMPATIBLE|STATE_STORE_\w*SCHEMA\w*"
    r"|STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA)\]\s*([^\n]*)"
    r"|(There are \[\d+\] sources in the checkpoint offsets and now there are \[\d+\] sources)"
)
_DAMAGED = re.compile(
    r"\[(STREAMING_CHECKPOINT_MISSING_METADATA_FILE|STREAMING_STATEFUL_OPERATOR_MISSING_STATE_DIRECTORY)\]\s*([^\n]*)"
)


def from_state(flow: FlowPlan, text: str) -> ProjectError | None:
    """The error of a query that cannot go on from its checkpoint; None when the text is about something else."""
    misfit = _MISFITS.search(text)
    if misfit:
        return ProjectError(
            "needs-new-generation",
            f"flow '{flow.name}' cannot go on from its checkpoint: {_sentence(misfit[2] or misfit[3])}",
            hint=f"take the change back, or begin anew: headrace run --new-generation {flow.name}",
            exit_code=Exit.CONFLICT,
        )
    damaged = _DAMAGED.search(text)
    if damaged:
        return ProjectError(
            "checkpoint-damaged",
            f"the checkpoint of flow '{flow.name}' is damaged: {_sentence(damaged[2])}",
            hint=f"put the files back, or begin anew: headrace run --new-generation {flow.name}",
            exit_code=Exit.CONFLICT,
        )
    return None


def _sentence(text: str) -> str:
    return re.split(r"(?<=[a-z])\. |SQLSTATE", text.strip())[0].strip().rstrip(".")[:300]
