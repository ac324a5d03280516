"""Tables of the keys of pydantic models: type, default and description."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from headrace.core.component import Component
from headrace.core.durations import format_duration
from headrace.project.error_location import family_of, keys_of
from headrace.project.value_descriptions import describe_type
from headrace.reference.markdown import table


def nested_models(model: type[BaseModel]) -> list[type[BaseModel]]:
    """Return the models nested in a model, in the order of their keys, without kinds, which have their own pages."""
    models: dict[str, type[BaseModel]] = {}
    for field in model.model_fields.values():
        for inner in _models_in(field.annotation):
            if not issubclass(inner, Component) and inner.__name__ not in models:
                models[inner.__name__] = inner
                models.update({deeper.__name__: deeper for deeper in nested_models(inner)})
    return list(models.values())


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in getattr(annotation, "__args__", ()):
        yield from _models_in(part)


def keys_table(model: type[BaseModel], home: str = "../") -> list[str]:
    """Return one row per key; `home` is the relative path to the reference folder."""
    schema = model.model_json_schema(mode="validation")
    rows = []
    # `type` is always the first row
    for name, field in sorted(keys_of(model).items(), key=lambda item: item[0] != "type"):
        type_words = _type(field, schema["properties"][name], schema.get("$defs", {}), home)
        about = " ".join([field.description or "", *_examples(field.examples)])
        rows.append((f"`{name}`", type_words, _default(field), about))
    return table(("key", "type", "default", "description"), rows)


def _type(field: FieldInfo, node: dict[str, Any], models: dict[str, Any], home: str) -> str:
    """Return the type in words. A nested mapping has its own table on the page."""
    if "timedelta" in str(field.annotation):
        return "duration"
    words = describe_type(_resolved(node, models))
    family = family_of(field)
    return words if family is None else words.replace("kind", f"[{family.removesuffix('s')}]({home}index.md#{family})")


def _resolved(node: Any, models: dict[str, Any]) -> Any:
    if isinstance(node, list):
        return [_resolved(child, models) for child in node]
    if not isinstance(node, dict):
        return node
    if "discriminator" in node:
        return {"type": "kind"}
    if "$ref" in node:
        model = models[node["$ref"].rsplit("/", 1)[-1]]
        return {"type": "object"} if "properties" in model else _resolved(model, models)
    return {key: _resolved(child, models) for key, child in node.items()}


def _examples(examples: Sequence[Any] | None) -> list[str]:
    return [f"For example: {', '.join(f'`{_plain(value)}`' for value in examples)}."] if examples else []


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    default = field.get_default(call_default_factory=True, validated_data={})
    if default is None or default in ("", [], {}, ()) or isinstance(default, BaseModel):
        return ""
    return f"`{_plain(format_duration(default) if isinstance(default, timedelta) else default)}`"


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
