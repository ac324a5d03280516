"""The JSON schema of headrace.yaml: what the models say, plus the short forms and variables that the loader takes.

Editors complete and check by it while a file is being written; `lint` has the last word.
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
    """Every mapping of the schema, children first, so that what is put around a node is not visited again."""
    if isinstance(node, list):
        for child in list(node):
            yield from _nodes(child)
    if isinstance(node, dict):
        for key, child in list(node.items()):
            if key not in ("default", "examples"):  # values of a file, not parts of the schema
                yield from _nodes(child)
        yield node


def _kind_unions(schema: Schema) -> Iterator[Schema]:
    """Where any kind of a family may stand."""
    return (node for node in _nodes(schema) if "oneOf" in node and "propertyName" in node.get("discriminator", {}))


def _name_of(reference: str) -> str:
    return reference.rsplit("/", 1)[-1]


def _require_type(union: Schema, models: dict[str, Schema]) -> None:
    """In the models `type` has a default, so that Python need not repeat it; a file must say it."""
    for reference in union["discriminator"]["mapping"].values():
        required = models[_name_of(reference)].setdefault("required", [])
        if "type" not in required:
            required.insert(0, "type")


def _allow_bare_kind(union: Schema, models: dict[str, Schema]) -> None:
    """`format: json` is short for `format: {type: json}` where the kind needs nothing else."""
    members = union.pop("discriminator")["mapping"]
    bare = [kind for kind, reference in members.items() if models[_name_of(reference)]["required"] == ["type"]]
    _wrap(union, [{"enum": sorted(bare)}] if bare else [])


def _wrap(node: Schema, alternatives: list[Schema]) -> None:
    """Let `alternatives` stand there too; what is said about the place stays with the place."""
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
    """A number, a choice or a list may be text like `${RATE:-10}` until the variable is filled in."""
    names = {id(node["propertyNames"]) for node in _nodes(schema) if "propertyNames" in node}
    for node in list(_nodes(schema)):
        choice = "enum" in node and node.get("type") == "string"
        if id(node) not in names and (node.get("type") in _FILLED_BY_VARIABLES or choice):
            _wrap(node, [_REFERENCE])


def _tidy(schema: Schema) -> None:
    """Drop the titles made from field names, and refuse names that no pattern allows."""
    for node in list(_nodes(schema)):
        if isinstance(node.get("title"), str):
            del node["title"]
        if "patternProperties" in node:
            node.setdefault("additionalProperties", False)
