"""Maps the location of a pydantic error to a path in the file and to the model that defines it."""

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
    """A path in the file and the model field it belongs to."""

    path: Path_
    owner: type[BaseModel] | None
    """The model that has the last part of the path as a key."""
    family: str = FAMILIES[0]
    """The family of kinds, if a kind belongs there."""
    siblings: Sequence[str] = field(default=())
    """All keys of that model."""

    @property
    def info(self) -> FieldInfo | None:
        """The field at the end of the path, or the field with the list or mapping it ends in."""
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
        """The allowed values, if they can be listed."""
        if detail["type"] != "literal_error" or self.info is None:
            return []
        return [str(value) for value in _literals(self.info.annotation)]


def keys_of(model: type[BaseModel]) -> dict[str, FieldInfo]:
    return {info.alias or name: info for name, info in model.model_fields.items()}


def family_of(info: FieldInfo) -> str | None:
    """The family of kinds of a field, if it holds a kind."""
    return _family(_annotated(info))


def error_location(detail: Any, data: Any, model: type[BaseModel]) -> ErrorLocation:
    """The location of a validation error in the file. pydantic's location also contains names of union members."""
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
        current_model = _model_in(inner)
        if current_model is not None and part in keys_of(current_model):
            owner, inner = current_model, _annotated(keys_of(current_model)[str(part)])
        elif current_model is not None and detail["type"] == "extra_forbidden":
            owner = current_model
        family = _family(inner) or family
    siblings = list(keys_of(owner)) if owner is not None else []
    return ErrorLocation(tuple(path), owner, family, siblings)


def _is_tag(part: str | int, node: Any) -> bool:
    """Whether a part of a location is the name of a kind: the value of `type`, or the whole value if it is a string."""
    return isinstance(part, str) and (node == part or (isinstance(node, dict) and node.get("type") == part))


def _has(node: Any, part: str | int) -> bool:
    if isinstance(node, dict):
        return part in node
    return isinstance(node, list) and isinstance(part, int) and part < len(node)


def _annotated(info: FieldInfo) -> tuple[Any, ...]:
    """A field's type and its annotations."""
    return (info.annotation, *info.metadata)


def _parts(annotation: Any) -> tuple[Any, ...]:
    return annotation if isinstance(annotation, tuple) else get_args(annotation)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for part in _parts(annotation):
        model = _model_in(part)
        if model is not None:
            return model
    return None


def _family(annotation: Any) -> str | None:
    """The family of kinds in a type annotation."""
    if isinstance(annotation, KindOf):
        return annotation.family
    for part in _parts(annotation):
        family = _family(part)
        if family is not None:
            return family
    return None


def _literals(annotation: Any) -> list[Any]:
    if get_origin(annotation) is Literal:
        return list(get_args(annotation))
    return [value for part in get_args(annotation) for value in _literals(part)]
