"""The migration report: what the user should know about a migrated project."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.migrate.draft import Draft

_TITLES = {
    "not_carried": "Not carried over",
    "check": "Carried over: please check",
    "not_needed": "Not needed",
}


def report(draft: Draft, origin: str) -> str:
    """The report as a Markdown page."""
    return "\n".join(_lines(draft, origin)) + "\n"


def _lines(draft: Draft, origin: str) -> Iterator[str]:
    yield f"# {draft.document['project']}: from {origin}"
    yield ""
    yield "    headrace lint      # checks the project"
    yield "    headrace plan      # shows inputs, state and sinks"
    yield "    headrace run"
    if draft.secrets:
        yield from ("", "## Secrets", "")
        yield "Set these in the environment, or list files for them under `secrets:`. The project has no values."
        yield ""
        yield from (f"* `{name}`: was in `{key}`" for name, key in draft.secrets.items())
    for kind, title in _TITLES.items():
        notes = [note for note in draft.notes if note.kind == kind]
        if notes:
            yield from ("", f"## {title}", "")
            yield from (f"* `{note.key}`: {note.message}" for note in notes)
