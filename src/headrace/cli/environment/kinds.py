"""List the kinds of sources, formats, processors, sinks and tables, or the options of one."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.terminal.output import printer
from headrace.cli.terminal.project_args import Json
from headrace.core.errors import Exit, ProjectError, did_you_mean
from headrace.core.runtime.lazy import lazy_modules

if TYPE_CHECKING:
    from headrace.core import kinds as registry
    from headrace.core.component import Component
else:
    registry = lazy_modules("headrace.core.kinds")


def kinds(
    family: Annotated[
        str | None, typer.Argument(metavar="FAMILY", help="sources, formats, processors, sinks or tables.")
    ] = None,
    kind: Annotated[str | None, typer.Argument(metavar="KIND", help="A kind of the family.")] = None,
    json: Json = False,
) -> None:
    """List all kinds with a line about each: built-in ones and those of installed packages.

    With a FAMILY only its kinds; with a KIND too, the options that a project file may set.
    """
    families = registry.FAMILIES if family is None else (_known(family, registry.FAMILIES, "family", "families"),)
    if kind is not None:
        _show(registry.kinds(families[0])[_known(kind, registry.kinds(families[0]), "kind", "kinds")], json)
        return
    found = [(one, name, _summary(model)) for one in families for name, model in registry.kinds(one).items()]
    if json:
        printer.document([{"family": one, "kind": name, "summary": summary} for one, name, summary in found])
        return
    width = max(len(f"{one}/{name}") for one, name, _ in found)
    for one, name, summary in found:
        printer.data(f"{f'{one}/{name}':<{width}}  {summary}")


def _known(name: str, names: Any, what: str, plural: str) -> str:
    if name in names:
        return name
    hint = did_you_mean(name, list(names), plural)
    raise ProjectError("unknown-kind", f"there is no {what} '{name}'", hint=hint, exit_code=Exit.NOT_FOUND)


def _summary(model: type[Component]) -> str:
    return inspect.cleandoc(model.__doc__ or "").partition("\n")[0]


def _show(model: type[Component], json: bool) -> None:
    options = {
        name: {"required": field.is_required(), "description": field.description or ""}
        for name, field in model.model_fields.items()
        if name != "type"
    }
    if json:
        printer.document(
            {"kind": model.kind(), "description": inspect.cleandoc(model.__doc__ or ""), "options": options}
        )
        return
    printer.data(inspect.cleandoc(model.__doc__ or ""))
    for name, option in options.items():
        printer.data(f"\n{name}{' (required)' if option['required'] else ''}\n  {option['description']}")
