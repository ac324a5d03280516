"""Names that a shell can complete, read from the project file as it stands: no checks, no kinds, no Spark."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

_FILE = "headrace.yaml"


def complete_flows(context: typer.Context, incomplete: str) -> list[str]:
    """The flows of the project named on the line, or of the current folder."""
    return [name for name in _section(context, "flows") if name.startswith(incomplete)]


def complete_profiles(context: typer.Context, incomplete: str) -> list[str]:
    """The profiles of that project."""
    return [name for name in _section(context, "profiles") if name.startswith(incomplete)]


def _section(context: typer.Context, name: str) -> Sequence[str]:
    import yaml

    try:
        tree: Any = yaml.safe_load(_project_file(context).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return []  # a file that cannot be read offers nothing; `lint` says why
    section = tree.get(name) if isinstance(tree, dict) else None
    return [str(key) for key in section] if isinstance(section, dict) else []


def _project_file(context: typer.Context) -> Path:
    given = context.params.get("names") or context.params.get("name")
    first = given[0] if isinstance(given, list | tuple) else given
    for candidate in (context.params.get("project"), first):
        path = Path(candidate) if candidate else None
        if path is not None and path.exists():
            return path / _FILE if path.is_dir() else path
    return Path(_FILE)
