"""The pages of the kinds, and lists of them for the index and for hand-written pages."""

from __future__ import annotations

from pydantic import BaseModel

from headrace.core.capabilities import capabilities_of
from headrace.core.component import Component
from headrace.core.kinds import FAMILIES, kinds
from headrace.core.sink import Sink
from headrace.reference.markdown import docstring, first_line, page, table
from headrace.reference.models import keys_table, nested_models


def kind_pages() -> dict[str, str]:
    """Return the pages by path below the reference folder."""
    return {
        f"{family}/{name}.md": _page(family, name, kind) for family in FAMILIES for name, kind in kinds(family).items()
    }


def kinds_table(family: str, home: str = "") -> list[str]:
    """Return the kinds of a family with the first line of their docstrings.

    `home` is the relative path to the reference folder.
    """
    rows = [(f"[{name}]({home}{family}/{name}.md)", first_line(kind)) for name, kind in kinds(family).items()]
    return table((family.removesuffix("s"), "description"), rows)


def kinds_list(home: str) -> list[str]:
    """Return one line per family with all its kinds."""
    return [
        f"* {family.capitalize()}: {', '.join(f'[{name}]({home}{family}/{name}.md)' for name in kinds(family))}"
        for family in FAMILIES
    ]


def _page(family: str, name: str, kind: type[Component]) -> str:
    lines = [f"# {name} ({family.removesuffix('s')})", "", *docstring(kind), ""]
    lines += [*_capabilities(kind), *keys_table(kind), ""]
    for nested in nested_models(kind):
        lines += [f"## {_heading(nested)}", "", *docstring(nested), "", *keys_table(nested), ""]
    lines.append("[All kinds](../index.md) · [headrace.yaml](../project.md)")
    return page("the class of this kind", *lines)


def _capabilities(kind: type[Component]) -> list[str]:
    sentences = capabilities_of(kind) if issubclass(kind, Sink) else []
    return [*(f"* {sentence}" for sentence in sentences), ""] if sentences else []


def _heading(model: type[BaseModel]) -> str:
    words = "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in model.__name__).strip()
    return words.capitalize()
