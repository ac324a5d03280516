"""Migrates the streams of Dagger: Kafka topics or Parquet files, in protobuf or JSON."""

from __future__ import annotations

import json
import re
from datetime import date, timedelta
from typing import Any

from pydantic import ValidationError

from headrace.core.errors import ProjectError
from headrace.migrate import kafka
from headrace.migrate.draft import NO_EQUIVALENT, Draft, duration, escape_variables, split_list, valid_name
from headrace.migrate.messages import field_name, message_of, protobuf
from headrace.project.model import BackfillSpec

_CONSUMER = "SOURCE_KAFKA_CONSUMER_CONFIG_"
_ADDITIONAL = "SOURCE_KAFKA_CONSUMER_ADDITIONAL_CONFIGURATIONS"
_ALTERNATIVES = re.compile(r"[A-Za-z0-9._-]+(\|[A-Za-z0-9._-]+)*")


def streams(draft: Draft) -> dict[str, str]:
    """Add the streams to the project; returns the names of the streams by table name in the SQL."""
    settings = draft.json("STREAMS", [])
    if not isinstance(settings, list) or not settings or not all(isinstance(item, dict) for item in settings):
        raise ProjectError(
            "migrate-unreadable", "STREAMS has no stream", hint='expected a JSON list: [{"INPUT_SCHEMA_TABLE": …}]'
        )
    delay = duration(draft.take("FLINK_WATERMARK_DELAY_MS", "10000"))
    alias = draft.take("FLINK_ROWTIME_ATTRIBUTE_NAME", "rowtime")
    names: dict[str, str] = {}
    for number, stream in enumerate(settings):
        part = draft.part(stream)
        table = part.take("INPUT_SCHEMA_TABLE", f"stream_{number + 1}")
        names[table] = valid_name(table, "stream")
        draft.document.setdefault("streams", {})[names[table]] = _stream(part, names[table], delay, alias)
        for key in stream:
            if key not in part.seen:
                draft.note("not_carried", f"STREAMS[{number}].{key}", NO_EQUIVALENT)
    return names


def _stream(part: Draft, name: str, delay: str, alias: str) -> dict[str, Any]:
    stream = _source(part, name)
    is_json = part.take("INPUT_DATATYPE", "PROTO").upper() == "JSON"
    if stream["source"].get("contains") == "parquet":
        part.take("INPUT_SCHEMA_PROTO_CLASS")
        column, unit = _event_field(part, None), None
    elif is_json:
        stream["format"], column, unit = _json(part, name)
    else:
        java_class = part.take("INPUT_SCHEMA_PROTO_CLASS")
        stream["format"] = protobuf(part, java_class, "INPUT_SCHEMA_PROTO_CLASS")
        column, unit = _event_field(part, java_class), None
    if column:
        stream["event_time"] = {
            "column": column,
            **({"unit": unit} if unit else {}),
            **({"alias": alias} if alias != "rowtime" else {}),
            "watermark": delay if delay != "0ms" else "1ms",
        }
    return stream


def _event_field(part: Draft, java_class: str | None) -> str:
    key = "INPUT_SCHEMA_EVENT_TIMESTAMP_FIELD_INDEX"
    number = part.take(key)
    if not number:
        return ""
    message = message_of(part, java_class) if java_class else None
    if message is not None:
        return field_name(message, number)
    part.note("check", key, f"field {number} is assumed to be event_timestamp: set its name as event_time.column")
    return "event_timestamp"


def _json(part: Draft, name: str) -> tuple[dict[str, Any], str, str | None]:
    schema = part.json("INPUT_SCHEMA_JSON_SCHEMA")
    column = part.take("INPUT_SCHEMA_JSON_EVENT_TIMESTAMP_FIELD_NAME")
    if schema is None:
        return {"type": "json"}, column, None
    path = f"schemas/{name}.json"
    part.files[path] = json.dumps(schema, indent=2) + "\n"
    kind = schema.get("properties", {}).get(column, {}).get("type")
    numeric = kind in ("integer", "number")
    if numeric:
        part.note("check", "INPUT_SCHEMA_JSON_EVENT_TIMESTAMP_FIELD_NAME", f"'{column}' is assumed to be epoch seconds")
    return {"type": "json", "json_schema": path}, column, "s" if numeric else None


def _source(part: Draft, name: str) -> dict[str, Any]:
    details = part.json("SOURCE_DETAILS", [])
    kinds = [str(source.get("SOURCE_NAME", "")).upper() for source in details]
    if "PARQUET_SOURCE" not in kinds:
        return {"source": _kafka(part, name)}
    if len(kinds) == 1:
        return {"source": _parquet(part)}
    history = _backfill(part)
    return {"source": _kafka(part, name), **({"backfill": history} if history else {})}


def _backfill(part: Draft) -> dict[str, Any]:
    """History from files, then Kafka from the end of the date range."""
    paths, dates = part.json("SOURCE_PARQUET_FILE_PATHS", []), part.take("SOURCE_PARQUET_FILE_DATE_RANGE")
    part.take("SOURCE_PARQUET_READ_ORDER_STRATEGY")
    part.take("SOURCE_PARQUET_SCHEMA_MATCH_STRATEGY")
    backfill = {
        "files": [escape_variables(path) for path in paths],
        "dates": dates,
        "until": _end(dates.rpartition(",")[2].strip()),
    }
    try:
        BackfillSpec.model_validate(backfill)
    except (ValidationError, ProjectError):
        message = "its files are not read: write `backfill` with `files` and the time `until` of their end"
        part.note("not_carried", "SOURCE_DETAILS", message)
        return {}
    message = f"Kafka is read from {backfill['until']} on: check that the files end there"
    part.note("check", "SOURCE_PARQUET_FILE_DATE_RANGE", message)
    return backfill


def _end(last: str) -> str:
    """The end of the last day, which is part of the range; a time is unchanged."""
    try:
        return (date.fromisoformat(last) + timedelta(days=1)).isoformat()
    except ValueError:
        return last


def _parquet(part: Draft) -> dict[str, Any]:
    paths = part.json("SOURCE_PARQUET_FILE_PATHS", [])
    if len(paths) > 1:
        part.note("not_carried", "SOURCE_PARQUET_FILE_PATHS", f"only {paths[0]} is read, not {', '.join(paths[1:])}")
    for key in ("SOURCE_PARQUET_FILE_DATE_RANGE", "SOURCE_PARQUET_READ_ORDER_STRATEGY"):
        if part.take(key):
            part.note("not_carried", key, "all files are read, in any order; filter on the event time in the SQL")
    part.take("SOURCE_PARQUET_SCHEMA_MATCH_STRATEGY")
    return {
        "type": "files",
        "contains": "parquet",
        "path": escape_variables(paths[0] if paths else ""),
        "recursive": True,
    }


def _kafka(part: Draft, name: str) -> dict[str, Any]:
    topics = part.take("SOURCE_KAFKA_TOPIC_NAMES")
    part.take("SOURCE_KAFKA_NAME")
    client = {**kafka.additional(part, _ADDITIONAL, _CONSUMER), **kafka.properties(part, _CONSUMER)}
    source: dict[str, Any] = {"type": "kafka"}
    source["brokers"] = split_list(client.pop("bootstrap.servers", ""))
    if _ALTERNATIVES.fullmatch(topics):
        names = topics.split("|")
        source["topic"] = names[0] if len(names) == 1 else names
    else:
        source["pattern"] = escape_variables(topics)
    # the default of Dagger
    source["start"] = client.pop("auto.offset.reset", "latest").lower()
    group = client.pop("group.id", None)
    if group:
        source["group_prefix"] = escape_variables(group)
        message = (
            "positions are stored in checkpoints, and only published to groups with that prefix; to continue from the "
            f"position of Dagger, write its offsets as streams.{name}.source.start"
        )
        part.note("check", f"{_CONSUMER}GROUP_ID", message)
    return source | kafka.options(part, client, _CONSUMER, name)
