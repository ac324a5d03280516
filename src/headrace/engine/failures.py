"""Why a running query ended, in words a user can act on."""

from __future__ import annotations

import re
from typing import Any

from headrace.core.errors import ProjectError
from headrace.plan.model import FlowPlan

_BAD_RECORD = re.compile(r"BadRecordError: (.*)")
_PROJECT_ERROR = re.compile(r"error\[([a-z-]+)\]: (.*)")


def from_query(flow: FlowPlan, exception: Any) -> ProjectError:
    """The error of a failed query. Its whole text is in the engine's log."""
    text = str(exception)
    bad = _BAD_RECORD.search(text)
    if bad:
        return ProjectError(
            "bad-record", f"flow '{flow.name}' met a {bad[1]}", hint="on_error: dead_letter would keep it and go on"
        )
    own = _PROJECT_ERROR.search(text)
    if own:
        return ProjectError(own[1], f"flow '{flow.name}': {own[2]}")
    return ProjectError(
        "flow-failed",
        f"flow '{flow.name}' failed: {_cause(text)}",
        hint="the whole story is in logs/engine.log of the state folder",
    )


def _cause(text: str) -> str:
    """The last and deepest cause of a Java or Python trace, in one line."""
    causes = re.findall(r"(?:Caused by: |^)([\w.$]+(?:Exception|Error)): (.+)", text, re.MULTILINE)
    if causes:
        kind, message = causes[-1]
        return f"{kind.rsplit('.', 1)[-1]}: {message.strip()[:300]}"
    return text.strip().splitlines()[0][:300] if text.strip() else "no reason given"
