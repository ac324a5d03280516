"""Names for shell completion, read from the project file without checks, kinds or Spark."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

_FILE = "headrace.yaml"


def complete_flows(context: typer.Context, incomplete: str) -> list[str]:
    """Complete flows of the project on the command line, or of the current folder."""
    return [name for name in _section(context, "flows") if name.startswith(incomplete)]


def complete_profiles(context: typer.Context, incomplete: str) -> list[str]:
    return [name for name in _section(context, "profiles") if name.startswith(incomplete)]


def _section(context: typer.Context, name: str) -> Sequence[str]:
    import yaml

    try:
        tree: Any = yaml.safe_load(_project_file(context).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return []  # an unreadable file has no names; `lint` reports the error
    section = tree.get(name) if isinstance(tree, dict) else None
    return [str(key) for key in section] if isinstance(section, dict) else []


def _project_file(context: typer.Context) -> Path:
    names = context.params.get("names") or context.params.get("name")
    first = names[0] if isinstance(names, list | tuple) else names
    for candidate in (context.params.get("project"), first):
        path = Path(candidate) if candidate else None
        if path is not None and path.exists():
            return path / _FILE if path.is_dir() else path
    return Path(_FILE)
