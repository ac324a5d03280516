"""The JSON schema of headrace.yaml: the models, plus the short forms and variables that the loader accepts.

Editors use it for completion and checks; `headrace lint` is authoritative.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from headrace.project.model import ProjectSpec

Schema = dict[str, Any]

_REFERENCE: Schema = {"type": "string", "pattern": r"\$\{[^}]+\}"}
_ABOUT = ("description", "default", "examples")
_FILLED_BY_VARIABLES = ("integer", "number", "boolean", "array")
_SETTINGS = {"FlowSpec": "spark", "SparkSpec": "conf"}


def project_schema() -> Schema:
    """The schema of a whole project file, without references to anything outside it."""
    schema = ProjectSpec.model_json_schema(mode="validation")
    models: dict[str, Schema] = schema["$defs"]
    for union in list(_kind_unions(schema)):
        _require_type(union, models)
        _allow_bare_kind(union, models)
    _allow_short_forms(schema, models)
    _allow_references(schema)
    _tidy(schema)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "headrace.yaml"}


def _nodes(node: Any) -> Iterator[Schema]:
    """Every mapping of the schema, children first, so that a wrapper put around a node is not visited."""
    if isinstance(node, list):
        for child in list(node):
            yield from _nodes(child)
    if isinstance(node, dict):
        for key, child in list(node.items()):
            if key not in ("default", "examples"):  # values of a file, not parts of the schema
                yield from _nodes(child)
        yield node


def _kind_unions(schema: Schema) -> Iterator[Schema]:
    """The places where any kind of a family is allowed."""
    return (node for node in _nodes(schema) if "oneOf" in node and "propertyName" in node.get("discriminator", {}))


def _name_of(reference: str) -> str:
    return reference.rsplit("/", 1)[-1]


def _require_type(union: Schema, models: dict[str, Schema]) -> None:
    """Require `type`: in the models it has a default, for Python only."""
    for reference in union["discriminator"]["mapping"].values():
        required = models[_name_of(reference)].setdefault("required", [])
        if "type" not in required:
            required.insert(0, "type")


def _allow_bare_kind(union: Schema, models: dict[str, Schema]) -> None:
    """Allow `format: json` for `format: {type: json}` if the kind has no other required key."""
    members = union.pop("discriminator")["mapping"]
    bare = [kind for kind, reference in members.items() if models[_name_of(reference)]["required"] == ["type"]]
    _wrap(union, [{"enum": sorted(bare)}] if bare else [])


def _wrap(node: Schema, alternatives: list[Schema]) -> None:
    """Allow `alternatives` too; description, default and examples stay on the node."""
    inner = {key: node.pop(key) for key in list(node) if key not in _ABOUT}
    node["anyOf"] = [*alternatives, inner]


def _allow_short_forms(schema: Schema, models: dict[str, Schema]) -> None:
    for model in ("StreamSpec", "FlowSpec"):
        models[model]["properties"]["event_time"]["anyOf"].insert(0, {"type": "string"})
    flow = models["FlowSpec"]
    sinks = flow["properties"]["sinks"]
    sink = {"anyOf": [{"type": "string", "description": "A sink under `sinks:`, or a type."}, sinks["items"]]}
    sinks["items"] = sink
    _wrap(sinks, [sink])
    flow["oneOf"] = [{"required": ["sql"]}, {"required": ["sql_file"]}]
    for model, settings in _SETTINGS.items():
        models[model]["properties"][settings]["additionalProperties"] = {"type": ["string", "number", "boolean"]}
    (profile,) = schema["properties"]["profiles"]["patternProperties"].values()
    profile["propertyNames"] = {"enum": sorted(schema["properties"])}


def _allow_references(schema: Schema) -> None:
    """Allow references such as `${RATE:-10}` for numbers, choices and lists."""
    names = {id(node["propertyNames"]) for node in _nodes(schema) if "propertyNames" in node}
    for node in list(_nodes(schema)):
        choice = "enum" in node and node.get("type") == "string"
        if id(node) not in names and (node.get("type") in _FILLED_BY_VARIABLES or choice):
            _wrap(node, [_REFERENCE])


def _tidy(schema: Schema) -> None:
    """Drop generated titles, and refuse names that match no pattern."""
    for node in list(_nodes(schema)):
        if isinstance(node.get("title"), str):
            del node["title"]
        if "patternProperties" in node:
            node.setdefault("additionalProperties", False)
