"""Migrates the sink of Dagger: InfluxDB (the default), Kafka, BigQuery or the log."""

from __future__ import annotations

import json
from typing import Any

from headrace.migrate import kafka
from headrace.migrate.draft import Draft, duration, escape_variables, split_list
from headrace.migrate.messages import message_of, protobuf

_PRODUCER = "SINK_KAFKA_PRODUCER_CONFIG_"


def sink(draft: Draft, flow: dict[str, Any], name: str, columns: list[str]) -> dict[str, Any]:
    """The sink. Settings that belong to the flow are added to `flow`. `columns` are those of the query."""
    kind = draft.take("SINK_TYPE", "influx").lower()
    match kind:
        case "kafka":
            return _kafka(draft, name, columns)
        case "log" | "console":
            return {"type": "console"}
        case "influx" | "influxdb":
            return _influx(draft, flow)
        case "bigquery":
            draft.note(
                "not_carried",
                "SINK_TYPE",
                "there is no BigQuery sink: rows are written to a lake table, which BigQuery can read",
            )
            return {"type": "lake", "path": f"lake/{name}"}
    draft.note("not_carried", "SINK_TYPE", f"there is no sink '{kind}': rows are printed to the terminal")
    return {"type": "console"}


def _influx(draft: Draft, flow: dict[str, Any]) -> dict[str, Any]:
    options: dict[str, Any] = {
        "type": "influxdb",
        "url": escape_variables(draft.take("SINK_INFLUX_URL", "http://localhost:8086")),
        "database": escape_variables(draft.take("SINK_INFLUX_DB_NAME")),
        "measurement": escape_variables(draft.take("SINK_INFLUX_MEASUREMENT_NAME")),
    }
    user, password = draft.take("SINK_INFLUX_USERNAME"), draft.take("SINK_INFLUX_PASSWORD")
    if user:
        options["username"] = escape_variables(user)
    if password:
        options["password"] = draft.secret("influx_password", "SINK_INFLUX_PASSWORD")
    policy = draft.take("SINK_INFLUX_RETENTION_POLICY")
    if policy:
        options["retention_policy"] = escape_variables(policy)
    size = draft.take("SINK_INFLUX_BATCH_SIZE")
    if size and int(size) > 0:
        options["batch_size"] = int(size)
    flush = draft.take("SINK_INFLUX_FLUSH_DURATION_MS")
    if flush and int(flush) > 0:
        flow["trigger"] = duration(flush)
    return options


def _kafka(draft: Draft, name: str, columns: list[str]) -> dict[str, Any]:
    client = kafka.properties(draft, _PRODUCER)
    linger = draft.take("SINK_KAFKA_LINGER_MS")
    if linger:
        client.setdefault("linger.ms", linger)
    brokers = draft.take("SINK_KAFKA_BROKERS") or client.get("bootstrap.servers", "")
    client.pop("bootstrap.servers", None)
    options: dict[str, Any] = {
        "type": "kafka",
        "brokers": split_list(brokers),
        "topic": draft.take("SINK_KAFKA_TOPIC"),
        "format": _format(draft, name),
    }
    draft.take("SINK_KAFKA_STREAM")
    if draft.is_on("SINK_KAFKA_PRODUCE_LARGE_MESSAGE_ENABLE"):
        client.setdefault("max.request.size", "20971520")
        client.setdefault("compression.type", "snappy")
    key = draft.take("SINK_KAFKA_PROTO_KEY")
    if key and options["format"]["type"] == "protobuf":
        options |= _key(draft, key, columns)
    return options | kafka.options(draft, client, _PRODUCER, f"{name}_sink")


def _format(draft: Draft, name: str) -> dict[str, Any]:
    if draft.take("SINK_KAFKA_DATA_TYPE", "PROTO").upper() != "JSON":
        return protobuf(draft, draft.take("SINK_KAFKA_PROTO_MESSAGE"), "SINK_KAFKA_PROTO_MESSAGE")
    schema = draft.json("SINK_KAFKA_JSON_SCHEMA")
    if schema is None:
        return {"type": "json"}
    path = f"schemas/{name}_sink.json"
    draft.files[path] = json.dumps(schema, indent=2) + "\n"
    return {"type": "json", "json_schema": path}


def _key(draft: Draft, java_class: str, columns: list[str]) -> dict[str, Any]:
    """The key, which is also a message: the columns that have a field in it."""
    message = message_of(draft, java_class)
    if message is None:
        draft.note("not_carried", "SINK_KAFKA_PROTO_KEY", f"the fields of {java_class} are unknown: list them as `key`")
        return {}
    fields = {field.name for field in message.fields}
    key = [column for column in columns if column.partition(".")[0] in fields]
    if not key:
        draft.note("not_carried", "SINK_KAFKA_PROTO_KEY", f"no column of the query has a field in {java_class}")
        return {}
    return {"key": key, "key_format": protobuf(draft, java_class, "SINK_KAFKA_PROTO_KEY")}
