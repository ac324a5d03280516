"""The registry of kinds: every module of a family's package, and every installed entry point.

Adding a kind is adding a file. Built-in kinds and installed ones come through the same door: an entry point in the
group `headrace.<family>` whose name is the kind and whose value is the class.
"""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated, Any, Union, cast

from pydantic import Field, GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from headrace.core.component import Component
from headrace.core.errors import ProjectError

FAMILIES = ("sources", "formats", "sinks")


@cache
def kinds(family: str) -> dict[str, type[Component]]:
    """All kinds of a family by name. Modules import Spark and clients only when used, so this is quick."""
    package = importlib.import_module(f"headrace.{family}")
    found: dict[str, type[Component]] = {}
    for module_info in pkgutil.iter_modules(package.__path__):
        if not module_info.name.startswith("_"):
            found[module_info.name] = _kind_in(f"{package.__name__}.{module_info.name}", module_info.name)
    for entry in entry_points(group=f"headrace.{family}"):
        if entry.name in found:
            raise _not_loadable(family, entry, "there is a kind of that name already")
        found[entry.name] = _installed(family, entry)
    return dict(sorted(found.items()))


def _installed(family: str, entry: EntryPoint) -> type[Component]:
    try:
        kind = entry.load()
    except (ImportError, AttributeError) as error:
        raise _not_loadable(family, entry, str(error)) from error
    if not (isinstance(kind, type) and issubclass(kind, Component) and "type" in kind.model_fields):
        raise _not_loadable(family, entry, "it is not a component with a field 'type'")
    if kind.kind() != entry.name:
        raise _not_loadable(family, entry, f"its field 'type' says '{kind.kind()}'")
    return kind


def _not_loadable(family: str, entry: EntryPoint, reason: str) -> ProjectError:
    return ProjectError(
        "kind-not-loadable",
        f"the installed {family[:-1]} kind '{entry.name}' ({entry.value}) cannot be loaded: {reason}",
        hint=f"reinstall or remove the package '{entry.dist.name if entry.dist else entry.value}'",
    )


def _kind_in(module_name: str, name: str) -> type[Component]:
    module = importlib.import_module(module_name)
    for value in vars(module).values():
        own = isinstance(value, type) and issubclass(value, Component) and value.__module__ == module_name
        if own and "type" in value.model_fields and value.kind() == name:
            return cast(type[Component], value)
    raise TypeError(f"{module_name} defines no component whose type is '{name}'")


@dataclass(frozen=True)
class KindOf:
    """Annotation for a field that holds any kind of a family, chosen by its `type` key."""

    family: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """The union of all kinds, discriminated by `type`; a bare name stands for a kind without options."""
        members = tuple(kinds(self.family).values())
        union = handler.generate_schema(Annotated[Union[members], Field(discriminator="type")])  # noqa: UP007
        return core_schema.no_info_before_validator_function(_spell_out, union)


def _spell_out(value: Any) -> Any:
    return {"type": value} if isinstance(value, str) else value
