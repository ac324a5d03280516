"""The registry of kinds: every module of a family's package, and every installed entry point.

A built-in kind is one module or package in its family's package. Other packages add a kind with an entry point in the
group `headrace.<family>`: its name is the kind, its value is the class. A kind is imported when a project uses it, so
the start time of a command does not grow with the number of kinds.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated, Any, Union, cast

from pydantic import Field, GetCoreSchemaHandler, GetJsonSchemaHandler, TypeAdapter
from pydantic_core import CoreSchema, PydanticKnownError, SchemaValidator, core_schema

from headrace.core.component import Component
from headrace.core.errors import ProjectError

FAMILIES = ("sources", "formats", "processors", "sinks", "tables")


class Kinds(Mapping[str, type[Component]]):
    """The kinds of a family by name. Each is loaded at its first access."""

    def __init__(self, loaders: Mapping[str, Callable[[], type[Component]]]) -> None:
        self._loaders = dict(sorted(loaders.items()))
        self._loaded: dict[str, type[Component]] = {}

    def __getitem__(self, name: str) -> type[Component]:
        if name not in self._loaded:
            self._loaded[name] = self._loaders[name]()
        return self._loaded[name]

    def __contains__(self, name: object) -> bool:
        return name in self._loaders

    def __iter__(self) -> Iterator[str]:
        return iter(self._loaders)

    def __len__(self) -> int:
        return len(self._loaders)


@cache
def kinds(family: str) -> Kinds:
    """Return the kinds of one of the `FAMILIES`.

    Raises ProjectError `kind-not-loadable` when an installed kind has the name of a built-in one.
    """
    package = importlib.import_module(f"headrace.{family}")
    loaders: dict[str, Callable[[], type[Component]]] = {}
    for module in pkgutil.iter_modules(package.__path__):
        if not module.name.startswith("_"):
            loaders[module.name] = partial(_kind_in, f"{package.__name__}.{module.name}", module.name)
    for entry in entry_points(group=f"headrace.{family}"):
        if entry.name in loaders:
            raise _not_loadable(family, entry, "a kind with this name already exists")
        loaders[entry.name] = partial(_installed, family, entry)
    return Kinds(loaders)


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
    """Annotation for a field that accepts any kind of a family, selected by the key `type`."""

    family: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Validate with the kind that `type` names; a plain name means a kind without options."""
        return core_schema.no_info_plain_validator_function(self._validate)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Return the union of all kinds, discriminated by `type`."""
        members = tuple(kinds(self.family).values())
        union: Any = Annotated[Union[members], Field(discriminator="type")]  # noqa: UP007
        return handler(TypeAdapter(union).core_schema)

    def _validate(self, value: Any) -> Any:
        if isinstance(value, Component) and value.family == self.family:
            return value
        document = {"type": value} if isinstance(value, str) else value
        if not isinstance(document, dict):
            raise PydanticKnownError("model_attributes_type")
        tag = document.get("type")
        if tag is None:
            raise PydanticKnownError("union_tag_not_found", {"discriminator": "'type'"})
        known = kinds(self.family)
        if tag not in known:
            expected = ", ".join(f"'{name}'" for name in known)
            context = {"discriminator": "'type'", "tag": str(tag), "expected_tags": expected}
            raise PydanticKnownError("union_tag_invalid", context)
        return _validator(self.family, tag).validate_python(document)


@cache
def _validator(family: str, kind: str) -> SchemaValidator:
    """Return the validator of one kind, as the member of a union, so that errors name the kind in their location."""
    member = kinds(family)[kind]
    return SchemaValidator(core_schema.tagged_union_schema({kind: member.__pydantic_core_schema__}, "type"))
