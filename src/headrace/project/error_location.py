"""From a place in pydantic's words to a place in the file, and to the model that says what may stand there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from headrace.core.kinds import FAMILIES, KindOf, kinds
from headrace.project.yaml_tree import Path_


@dataclass(frozen=True)
class ErrorLocation:
    """A path in the file, and what the models know about it."""

    path: Path_
    owner: type[BaseModel] | None
    """The model whose key the path's last part is."""
    family: str = FAMILIES[0]
    """The family of kinds, when a kind belongs there."""
    siblings: Sequence[str] = field(default=())
    """The keys known beside it."""

    @property
    def info(self) -> FieldInfo | None:
        """The field the path ends with, or that holds the list or mapping it ends in."""
        if self.owner is None:
            return None
        keys = keys_of(self.owner)
        return next((keys[str(part)] for part in reversed(self.path) if part in keys), None)

    @property
    def help(self) -> str | None:
        """The description of the key, with examples."""
        if self.info is None or not self.info.description:
            return None
        examples = f" For example: {', '.join(map(str, self.info.examples))}" if self.info.examples else ""
        return self.info.description + examples

    def choices(self, detail: Any) -> list[str]:
        """The values that would have been right, when they can be listed."""
        if detail["type"] != "literal_error" or self.info is None:
            return []
        return [str(value) for value in _literals(self.info.annotation)]


def keys_of(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """The keys a model takes, as they are written in a file."""
    return {info.alias or name: info for name, info in model.model_fields.items()}


def family_of(info: FieldInfo) -> str | None:
    """The family of kinds that a field holds, if it does."""
    return _family(_annotated(info))


def error_location(detail: Any, data: Any, model: type[BaseModel]) -> ErrorLocation:
    """The place of a validation error. Its location has the names of union members in it, which the file has not."""
    path: list[str | int] = []
    owner: type[BaseModel] | None = model
    inner: Any = model
    family = FAMILIES[0]
    node = data
    location = [part for part in detail["loc"] if part != "[key]"]
    for index, part in enumerate(location):
        missing = index == len(location) - 1 and detail["type"] == "missing"
        if _is_tag(part, node) and (kind := kinds(_family(inner) or family).get(str(part))) is not None:
            inner = kind
            node = {"type": node} if isinstance(node, str) else node
            continue
        if not missing and not _has(node, part):
            continue
        path.append(part)
        node = node[part] if _has(node, part) else None
        found = _model_in(inner)
        if found is not None and part in keys_of(found):
            owner, inner = found, _annotated(keys_of(found)[str(part)])
        elif found is not None and detail["type"] == "extra_forbidden":
            owner = found
        family = _family(inner) or family
    siblings = list(keys_of(owner)) if owner is not None else []
    return ErrorLocation(tuple(path), owner, family, siblings)


def _is_tag(part: str | int, node: Any) -> bool:
    """Whether a part of a location is the name of a kind: the value of `type`, or the whole value when it is text."""
    return isinstance(part, str) and (node == part or (isinstance(node, dict) and node.get("type") == part))


def _has(node: Any, part: str | int) -> bool:
    if isinstance(node, dict):
        return part in node
    return isinstance(node, list) and isinstance(part, int) and part < len(node)


def _annotated(info: FieldInfo) -> tuple[Any, ...]:
    """A field's type together with what it is annotated with."""
    return (info.annotation, *info.metadata)


def _parts(annotation: Any) -> tuple[Any, ...]:
    return annotation if isinstance(annotation, tuple) else get_args(annotation)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The model whose keys belong at a place of this type."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for part in _parts(annotation):
        found = _model_in(part)
        if found is not None:
            return found
    return None


def _family(annotation: Any) -> str | None:
    """The family of kinds that belongs at a place of this type."""
    if isinstance(annotation, KindOf):
        return annotation.family
    for part in _parts(annotation):
        found = _family(part)
        if found is not None:
            return found
    return None


def _literals(annotation: Any) -> list[Any]:
    if get_origin(annotation) is Literal:
        return list(get_args(annotation))
    return [value for part in get_args(annotation) for value in _literals(part)]
