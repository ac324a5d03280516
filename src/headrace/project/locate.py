"""Where a project is and keeps its state, without checking the rest of it: quick enough for commands that only look."""

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
            hint="go to a project's folder, name it on the command line, or make one: headrace init DIR",
            exit_code=Exit.NOT_FOUND,
        )
    return file


@dataclass(frozen=True)
class ProjectOutline:
    """A project as far as its state folder and the names of its flows."""

    context: Context
    flows: tuple[str, ...]
    store: Path
    """Where a serve node on this machine keeps its copies of endpoints."""


def locate(path: Path, *, profile: str | None = None, overrides: Sequence[str] = ()) -> ProjectOutline:
    """The place of the project at `path`. What is wrong elsewhere in its files does not matter here."""
    file = find_file(path).absolute()
    errors: list[ProjectError] = []
    tree = with_profile(with_includes(load_tree(file, file.name, errors), file, errors), profile)
    for override in overrides:
        tree = with_override(tree, override)
    flows = tree.data.get("flows")
    wanted: tuple[str, ...] = ("state", "object_store", "serve", "variables", "secrets")
    needed = {key: tree.data[key] for key in wanted if key in tree.data}
    unfilled: list[ProjectError] = []
    filled = with_variables(Tree(needed, tree.origins), file.parent, Secrets(), os.environ, unfilled).data
    if unfilled and "${" in f"{needed.get('state')} {needed.get('object_store')}":
        raise ProjectErrors(unfilled)
    folder = Context(file.parent, "").path(str(filled.get("state") or DEFAULT_STATE))
    context = Context(file.parent, folder, store=_store(filled.get("object_store")))
    names = tuple(map(str, flows)) if isinstance(flows, dict) else ()
    return ProjectOutline(context, names, Path(context.path(_store_folder(filled.get("serve")))))


def _store_folder(serve: Any) -> str:
    given = serve.get("store") if isinstance(serve, dict) else None
    return str(given or ServeSpec.model_fields["store"].default)


def _store(given: Any) -> ObjectStore:
    try:
        return ObjectStore.model_validate(given or {})
    except ValidationError:
        raise ProjectError(
            "bad-object-store", "'object_store:' of the project cannot be read", hint="see: headrace lint"
        ) from None
