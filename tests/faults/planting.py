"""The environment of an engine process that loads `planted/sitecustomize.py`."""

from __future__ import annotations

import os
from pathlib import Path

PLANTED = Path(__file__).parent / "planted"


def planted_environment(crash: str | None = None, **variables: str) -> dict[str, str]:
    """This environment with the module on PYTHONPATH; `crash` names the point at which the engine is killed."""
    path = os.pathsep.join(filter(None, (str(PLANTED), os.environ.get("PYTHONPATH"))))
    crashes = {"HEADRACE_CRASH": crash} if crash else {}
    return {**os.environ, "PYTHONPATH": path, **crashes, **variables}
