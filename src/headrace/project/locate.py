"""Finds a project and its state folder without checking the rest of it: fast, for commands that only read state."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from headrace.core.context import Context
from headrace.core.errors import Exit, ProjectError, ProjectErrors
from headrace.core.files.object_store import ObjectStore
from headrace.project.overlays import with_includes, with_override, with_profile, with_variables
from headrace.project.serving import ServeSpec
from headrace.project.variables import Secrets
from headrace.project.yaml_tree import Tree, load_tree

FILE = "headrace.yaml"
DEFAULT_STATE = ".headrace"


def find_file(path: Path) -> Path:
    """The project file at or in `path`."""
    file = path / FILE if path.is_dir() else path
    if not file.is_file():
        raise ProjectError(
            "no-project",
            f"there is no {FILE} in {path}" if path.is_dir() else f"there is no file {path}",
            hint="change to a project's folder, pass it on the command line, or create one: headrace init DIR",
            exit_code=Exit.NOT_FOUND,
        )
    return file


@dataclass(frozen=True)
class ProjectOutline:
    """The state folder of a project and the names of its flows."""

    context: Context
    flows: tuple[str, ...]
    store: Path
    """The store folder of a serve node on this machine."""


def locate(path: Path, *, profile: str | None = None, overrides: Sequence[str] = ()) -> ProjectOutline:
    """Locate the project at `path`. Errors elsewhere in its files are ignored."""
    file = find_file(path).absolute()
    errors: list[ProjectError] = []
    tree = with_profile(with_includes(load_tree(file, file.name, errors), file, errors), profile)
    for override in overrides:
        tree = with_override(tree, override)
    flows = tree.data.get("flows")
    keys: tuple[str, ...] = ("state", "object_store", "serve", "variables", "secrets")
    needed = {key: tree.data[key] for key in keys if key in tree.data}
    unfilled: list[ProjectError] = []
    filled = with_variables(Tree(needed, tree.origins), file.parent, Secrets(), os.environ, unfilled).data
    if unfilled and "${" in f"{needed.get('state')} {needed.get('object_store')}":
        raise ProjectErrors(unfilled)
    folder = Context(file.parent, "").path(str(filled.get("state") or DEFAULT_STATE))
    context = Context(file.parent, folder, store=_store(filled.get("object_store")))
    names = tuple(map(str, flows)) if isinstance(flows, dict) else ()
    return ProjectOutline(context, names, Path(context.path(_store_folder(filled.get("serve")))))


def _store_folder(serve: Any) -> str:
    folder = serve.get("store") if isinstance(serve, dict) else None
    return str(folder or ServeSpec.model_fields["store"].default)


def _store(options: Any) -> ObjectStore:
    try:
        return ObjectStore.model_validate(options or {})
    except ValidationError:
        raise ProjectError(
            "bad-object-store", "'object_store:' of the project is not valid", hint="see: headrace lint"
        ) from None
