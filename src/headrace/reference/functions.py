"""The pages of the function library, one per family."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.functions.function import Function
from headrace.functions.library import families
from headrace.reference.markdown import page, table


def function_pages() -> dict[str, str]:
    """Return the pages by path below the reference folder."""
    return {f"functions/{name}.md": _page(name, about, library) for name, (about, library) in families().items()}


def functions_index() -> list[str]:
    """Return all functions in alphabetical order, linked to the page of their family."""
    names = sorted((function.name, family) for family, (_, library) in families().items() for function in library)
    rows = [(f"[{name}](functions/{family}.md#{name.lower()})", family) for name, family in names]
    about = "In addition to the functions of Spark. Names are case-insensitive."
    return ["## Functions", "", about, "", *table(("function", "family"), rows)]


def _page(name: str, about: str, library: Sequence[Function]) -> str:
    lines = [f"# {name} (functions)", "", *about.splitlines(), ""]
    for function in library:
        lines += [
            f"## {function.name}",
            "",
            function.about,
            "",
            f"A {function.kind} function; {_runs_in(function)}.",
            "",
        ]
        signatures = [f"{function.name}({text.replace(' -> ', ') -> ', 1)}" for text in function.signatures]
        lines += ["```sql", *signatures, "```", "", f"Example: `{function.example}` returns `{function.gives}`.", ""]
    lines.append("[All functions](../index.md#functions) · [headrace.yaml](../project.md)")
    return page("the function library", *lines)


def _runs_in(function: Function) -> str:
    native = function.arrow is None and function.build is None
    return "runs inside Spark" if native else "runs in Python on Arrow batches"
