"""Which project a process of its own works for: it is told where the project is, never what is in it, so that no secret
stands in an environment or a command line."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from headrace.project.loader import Project, load

_VARIABLE = "HEADRACE_PROCESS"


@dataclass(frozen=True)
class ProjectRef:
    """Which project, and what is laid over its file."""

    path: Path
    profile: str | None = None
    overrides: Sequence[str] = ()

    @classmethod
    def here(cls) -> Self:
        """What this process was told by the one that started it."""
        said = json.loads(os.environ[_VARIABLE])
        return cls(Path(said["path"]), said["profile"], tuple(said["overrides"]))

    def project(self) -> Project:
        """The project, as its files are now."""
        return load(self.path, profile=self.profile, overrides=tuple(self.overrides))

    def environment(self) -> dict[str, str]:
        """What tells it to a process."""
        said = {"path": str(self.path.absolute()), "profile": self.profile, "overrides": list(self.overrides)}
        return {_VARIABLE: json.dumps(said)}
