"""A reference to a project for child processes: its path and overlays, never its content, so that no secret is in an
environment or a command line."""

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
    """The path of a project and the overlays of its file."""

    path: Path
    profile: str | None = None
    overrides: Sequence[str] = ()

    @classmethod
    def here(cls) -> Self:
        """The reference that the parent process passed in the environment."""
        fields = json.loads(os.environ[_VARIABLE])
        return cls(Path(fields["path"]), fields["profile"], tuple(fields["overrides"]))

    def project(self) -> Project:
        """Load the project from its current files."""
        return load(self.path, profile=self.profile, overrides=tuple(self.overrides))

    def environment(self) -> dict[str, str]:
        """The environment variables that pass the reference to a child process."""
        fields = {"path": str(self.path.absolute()), "profile": self.profile, "overrides": list(self.overrides)}
        return {_VARIABLE: json.dumps(fields)}
