"""Migrates the pre- and post-processors of Dagger to steps of a flow."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from pydantic import ValidationError

from headrace.core.errors import ProjectError
from headrace.core.kinds import kinds
from headrace.migrate.draft import NO_EQUIVALENT, Draft, escape_variables
from headrace.migrate.enrichers import ENRICHERS
from headrace.migrate.messages import protobuf
from headrace.sql.query import parse
from headrace.sql.text_edits import apply_edits
from headrace.sql.tokens import TokenList

Step = dict[str, Any]
_BEFORE, _AFTER = "PROCESSOR_PREPROCESSOR_CONFIG", "PROCESSOR_POSTPROCESSOR_CONFIG"


def before(draft: Draft, tables: dict[str, str]) -> dict[str, list[Step]]:
    """The steps before the SQL, by stream."""
    config = draft.json(_BEFORE, {})
    if not draft.is_on("PROCESSOR_PREPROCESSOR_ENABLE"):
        if config:
            draft.note("not_needed", _BEFORE, "PROCESSOR_PREPROCESSOR_ENABLE is not true")
        return {}
    steps_by_stream: dict[str, list[Step]] = {}
    for number, transformer in enumerate(config.get("table_transformers") or ()):
        table = str(transformer.get("table_name", ""))
        place = f"{_BEFORE}.table_transformers[{number}]"
        if table not in tables:
            draft.note("not_carried", place, f"table '{table}' has no stream")
            continue
        steps = list(_transformers(draft, transformer.get("transformers") or (), place))
        if steps:
            steps_by_stream.setdefault(tables[table], []).extend(steps)
    return steps_by_stream


def after(draft: Draft) -> list[Step]:
    """The steps after the SQL, in the order in which Dagger runs them."""
    config = draft.json(_AFTER, {})
    if not draft.is_on("PROCESSOR_POSTPROCESSOR_ENABLE"):
        if config:
            draft.note("not_needed", _AFTER, "PROCESSOR_POSTPROCESSOR_ENABLE is not true")
        return []
    steps = []
    external = config.get("external_source") or {}
    for kind in ("http", "es", "pg", "grpc"):
        for number, source in enumerate(external.get(kind) or ()):
            place = f"{_AFTER}.external_source.{kind}[{number}]"
            steps += _checked(draft, place, lambda k=kind, s=source, p=place: [ENRICHERS[k](draft, s, p)])  # type: ignore[misc]
    for number, source in enumerate(config.get("internal_source") or ()):
        place = f"{_AFTER}.internal_source[{number}]"
        steps += _checked(draft, place, lambda s=source: list(_internal(draft, s)))  # type: ignore[misc]
    steps += _checked(draft, _AFTER, lambda: _outputs(config, steps))
    steps += _transformers(draft, config.get("transformers") or (), _AFTER)
    known = ("external_source", "internal_source", "transformers")
    for key in [key for key in config if key not in known] + [key for key in external if key not in ENRICHERS]:
        draft.note("not_carried", f"{_AFTER}.{key}", NO_EQUIVALENT)
    return steps


def _internal(draft: Draft, source: dict[str, Any]) -> Iterator[Step]:
    kind, target, value = (str(source.get(key, "")) for key in ("type", "output_field", "value"))
    match kind.lower(), value.upper():
        case "constant", _:
            yield {"type": "constant", "values": {target: escape_variables(value)}}
        case "function", "CURRENT_TIMESTAMP":
            yield {"type": "now", "column": target}
        case "function", "JSON_PAYLOAD":
            java_class = (source.get("internal_processor_config") or {}).get("schema_proto_class")
            form = protobuf(draft, str(java_class), f"{_AFTER}.schema_proto_class") if java_class else {}
            if java_class and not isinstance(form["descriptors"], str):
                raise ProjectError("migrate-unknown", f"the descriptor set of '{java_class}' must be a file")
            yield {**form, "type": "json_payload", "column": target}
        case "sql", _:
            return  # part of the output columns
        case _:
            raise ProjectError(
                "migrate-unknown", f"Headrace has no equivalent of the internal source '{kind}' of '{value}'"
            )


def _outputs(config: dict[str, Any], steps: list[Step]) -> list[Step]:
    """Keep only the columns that the sources of Dagger name: its output has no other column of the query."""
    columns: dict[str, str] = {}
    for step in steps:
        names = step.get("values") or step.get("columns") or [step.get("column")]
        columns |= {str(name): str(name) for name in names}
    for source in config.get("internal_source") or ():
        if str(source.get("type")).lower() == "sql":
            columns[str(source.get("output_field"))] = str(source.get("value"))
    return [{"type": "column", "columns": columns, "keep": "none"}] if columns else []


def _transformers(draft: Draft, transformers: Any, place: str) -> Iterator[Step]:
    for number, transformer in enumerate(transformers):
        java = str(transformer.get("transformation_class", ""))
        arguments = transformer.get("transformation_arguments") or {}
        where = f"{place}.transformers[{number}]"
        migrate = _TRANSFORMERS.get(java.rpartition(".")[2])
        if java.endswith("InvalidRecordFilterTransformer"):
            draft.note("not_needed", where, "records that cannot be decoded become dead letters; see `on_error`")
            continue
        if migrate is None:
            draft.note("not_carried", where, f"'{java}' is a custom class: write it as a Python processor")
            continue
        yield from _checked(draft, where, lambda m=migrate, a=arguments: m(a))  # type: ignore[misc]


def _checked(draft: Draft, place: str, make: Callable[[], list[Step]]) -> list[Step]:
    """The steps if they are valid; otherwise none, and a note."""
    secrets, notes = dict(draft.secrets), list(draft.notes)
    try:
        steps = make()
        for step in steps:
            known = kinds("processors")
            if step["type"] not in known:
                raise ProjectError("migrate-unknown", f"processor '{step['type']}' does not exist")
            known[step["type"]].model_validate(step)
    except ValidationError as error:
        first = error.errors()[0]
        at = ".".join(str(part) for part in first["loc"])
        why = f"{first['msg']} ({at})"
    except (ProjectError, KeyError) as error:
        why = getattr(error, "message", None) or f"{error} is missing"
    else:
        return steps
    # remove the notes and secrets of the invalid step
    draft.secrets.clear()
    draft.secrets.update(secrets)
    draft.notes[:] = notes
    draft.note("not_carried", place, why)
    return []


def _clear(arguments: dict[str, Any]) -> list[Step]:
    return [{"type": "clear", "columns": [arguments["targetColumnName"]]}]


def _deduplicate(arguments: dict[str, Any]) -> list[Step]:
    return [{"type": "deduplicate", "key": [arguments["key_column"]], "ttl": f"{arguments['ttl_in_seconds']}s"}]


def _feature(arguments: dict[str, Any]) -> list[Step]:
    key, value = arguments["keyColumnName"], arguments["valueColumnName"]
    return [{"type": "feature", "column": value, "features": [{"key": key, "value": value}]}]


def _feature_with_type(arguments: dict[str, Any]) -> list[Step]:
    features = [
        {
            "key": feature["keyColumnName"],
            "value": feature["valueColumnName"],
            "type": _SLOTS.get(str(feature["type"]).lower().removesuffix("type"), feature["type"]),
        }
        for feature in arguments["data"]
    ]
    return [{"type": "feature", "features": features, "column": arguments["outputColumnName"]}]


def _hash(arguments: dict[str, Any]) -> list[Step]:
    return [{"type": "hash", "columns": list(arguments["maskColumns"])}]


def _sql(arguments: dict[str, Any]) -> list[Step]:
    """The input rows are the table `rows`."""
    query = parse(str(arguments["sqlQuery"]))
    words = TokenList(query.sql, query.tokens)
    places = [words.at(int(table.this.meta["start"])) for table in query.inputs]
    return [
        {"type": "sql", "sql": apply_edits(query.sql, [words.replace(place, place, "rows") for place in places])[0]}
    ]


_SLOTS = {
    "byte": "bytes",
    "string": "string",
    "integer": "int32",
    "int": "int32",
    "long": "int64",
    "bigint": "int64",
    "double": "double",
    "float": "float",
    "bool": "bool",
    "boolean": "bool",
    "timestamp": "timestamp",
}
_TRANSFORMERS: dict[str, Callable[[dict[str, Any]], list[Step]]] = {
    "ClearColumnTransformer": _clear,
    "DeDuplicationTransformer": _deduplicate,
    "FeatureTransformer": _feature,
    "FeatureWithTypeTransformer": _feature_with_type,
    "HashTransformer": _hash,
    "SQLTransformer": _sql,
}
