"""The generated files, and their comparison with the repository."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from headrace.core.kinds import FAMILIES
from headrace.project.json_schema import project_schema
from headrace.reference.blocks import filled
from headrace.reference.commands import command_pages
from headrace.reference.functions import function_pages, functions_index
from headrace.reference.kinds import kind_pages, kinds_table
from headrace.reference.markdown import page
from headrace.reference.metrics import metrics_page
from headrace.reference.project import project_page

FOLDER = Path("docs/reference")
HAND_WRITTEN = {
    "view-sql.md": "[SQL of views](view-sql.md): what incremental views support",
    "rest.md": "[REST](rest.md), [queries](queries.md), [live events](events.md) and [gRPC](grpc.md) of endpoints",
    "queries.md": "",
    "events.md": "",
    "grpc.md": "",
    "errors.md": "[Errors](errors.md): every error code and what to do about it",
}
"""The hand-written pages of the folder, with their line in the index."""
_DOCS = Path("docs")


@cache
def pages() -> Mapping[str, str]:
    """Return every generated file by its path below the reference folder."""
    return {
        "index.md": _index(),
        "project.md": project_page(),
        "metrics.md": metrics_page(),
        "headrace.schema.json": json.dumps(project_schema(), indent=2, ensure_ascii=False) + "\n",
        **kind_pages(),
        **function_pages(),
        **command_pages(),
    }


def _index() -> str:
    lines = [
        "# Reference",
        "",
        "* [headrace.yaml](project.md): every key of a project file",
        "* [JSON schema](headrace.schema.json) for editors; `headrace schema` prints the same",
        "* [Command line](cli/index.md): every command, with its options and exit codes",
        "* [Metrics](metrics.md): every metric that Prometheus can read",
        *(f"* {line}" for line in HAND_WRITTEN.values() if line),
    ]
    for family in FAMILIES:
        lines += ["", f"## {family.capitalize()}", "", *kinds_table(family)]
    return page("the code", *lines, "", *functions_index())


def stale(root: Path) -> list[str]:
    """Return the files that are out of date, missing or left over."""
    expected = _expected(root)
    return sorted(name for name, text in expected.items() if _current(root / name) != text)


def write(root: Path) -> list[str]:
    """Write every stale file and remove leftovers; return the changed files."""
    changed, expected = stale(root), _expected(root)
    for name in changed:
        path, text = root / name, expected[name]
        if text is None:
            path.unlink()
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return changed


def _expected(root: Path) -> dict[str, str | None]:
    """Return the expected text by path; None for a file that should not exist."""
    generated = {(FOLDER / name).as_posix(): text for name, text in pages().items()}
    # pages directly in the reference folder may be hand-written, those in its subfolders are all generated
    leftovers = {path.relative_to(root).as_posix() for path in (root / FOLDER).glob("*/**/*") if path.is_file()}
    return {**_hand_written(root, generated), **dict.fromkeys(leftovers), **generated}


def _hand_written(root: Path, generated: Mapping[str, str]) -> dict[str, str]:
    texts = {}
    for path in [root / "README.md", *sorted((root / _DOCS).rglob("*.md"))]:
        name = path.relative_to(root).as_posix()
        if name not in generated and path.is_file():
            texts[name] = filled(path.read_text(encoding="utf-8"), path, root / FOLDER)
    return texts


def _current(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.is_file() else None
