"""Creates a project from the settings of a Dagger job."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from headrace.core.errors import Exit, ProjectError
from headrace.migrate.draft import (
    DESCRIPTORS_PATH,
    NO_EQUIVALENT,
    Draft,
    duration,
    escape_variables,
    header_value,
    split_list,
    valid_name,
)
from headrace.migrate.processors import after, before
from headrace.migrate.properties import read_properties
from headrace.migrate.report import report
from headrace.migrate.sinks import sink
from headrace.migrate.streams import streams
from headrace.sql.query import SqlError, parse
from headrace.sql.text_edits import apply_edits
from headrace.sql.tokens import TokenList

_STENCIL = "SCHEMA_REGISTRY_STENCIL_"
_NOT_NEEDED = {
    "FLINK_JOB_CHECKPOINT_": "every batch is a checkpoint",
    "FLINK_JOB_MAX_CONCURRENT_CHECKPOINTS": "every batch is a checkpoint",
    "FLINK_JOB_MIN_PAUSE_BETWEEN_CHECKPOINTS_MS": "every batch is a checkpoint",
    "FLINK_WATERMARK_": "the watermark advances with every batch; its delay is in event_time",
    "METRIC_TELEMETRY_": "metrics are always available at /metrics",
    "SHUTDOWN_PERIOD_MS": "flows stop after their running batch",
    "FLINK_RETENTION_": "the state of a window is deleted when the watermark passes it",
    "FLINK_MIN_IDLE_STATE_RETENTION_TIME": "the state of a window is deleted when the watermark passes it",
    "FLINK_MAX_IDLE_STATE_RETENTION_TIME": "the state of a window is deleted when the watermark passes it",
    "FUNCTION_FACTORY_CLASSES": "all functions of Dagger are built in",
    "UDF_FACTORY_CLASSES": "all functions of Dagger are built in",
    "SCHEMA_REGISTRY_STENCIL_": "descriptor sets are files, or URLs with the settings of the format",
    "UDF_STORE_PROVIDER": "it follows from the address of functions.lookups",
}
_NOT_CARRIED = {
    "PROCESSOR_LONGBOW_": "write a `history` step: its state is part of the flow, without Bigtable",
    "PYTHON_UDF_": "write the functions in functions/*.py, with type hints instead of @udf(result_type=…)",
    "SINK_BIGQUERY_": "there is no BigQuery sink",
    "SINK_METRICS_APPLICATION_PREFIX": "metrics have the names in docs/reference/metrics.md",
    "UDF_DART_GCS_PROJECT_ID": "the default credentials of the machine are used",
}
_LONGBOW = re.compile(r"\blongbow\w*", re.IGNORECASE)


def migrate(file: Path, descriptors: Path | None = None) -> Draft:
    """The project that corresponds to a Dagger job. Its notes list what could not be carried over."""
    try:
        settings = read_properties(file.read_text(encoding="utf-8"), file.name)
    except (OSError, UnicodeDecodeError) as error:
        hint = "expected a file of KEY=value lines"
        raise ProjectError("missing-file", f"{file} cannot be read", hint=hint, exit_code=Exit.NOT_FOUND) from error
    draft = Draft(settings)
    _find_descriptors(draft, file, descriptors)
    query = draft.take("FLINK_SQL_QUERY")
    if not query:
        raise ProjectError(
            "migrate-unreadable", f"{file} has no FLINK_SQL_QUERY", hint="check that it is the file of a job"
        )
    name = valid_name(draft.take("FLINK_JOB_ID") or draft.take("JOB_NAME") or file.stem.split(".")[0], "job")
    draft.document["project"] = name
    tables = streams(draft)
    _flow(draft, name, tables, _renamed(draft, query.strip(), tables))
    _note_unused(draft)
    draft.files["headrace.yaml"] = _yaml(draft)
    draft.files["MIGRATION.md"] = report(draft, file.name)
    return draft


def _find_descriptors(draft: Draft, file: Path, explicit: Path | None) -> None:
    """Find the descriptor set: the explicit one, one relative to the file, or the URLs of a registry."""
    urls = split_list(draft.take("SCHEMA_REGISTRY_STENCIL_URLS"))
    local = [Path(urlsplit(url).path) for url in urls if urlsplit(url).scheme in ("", "file")]
    paths = [explicit] if explicit is not None else [file.parent / path for path in local]
    existing = [path for path in paths if path.is_file()]
    if explicit is not None and not existing:
        message, hint = f"file '{explicit}' does not exist", "expected a set made by protoc --include_imports"
        raise ProjectError("missing-file", message, hint=hint)
    if existing:
        # concatenated descriptor sets are a descriptor set
        draft.descriptors = b"".join(path.read_bytes() for path in existing)
        draft.files[DESCRIPTORS_PATH] = draft.descriptors
    elif urls:
        draft.schemas = _registry(draft, urls) if len(local) < len(urls) else urls[0]
        message = "messages and field numbers are not known: pass a descriptor set with --descriptors"
        draft.note("check", "SCHEMA_REGISTRY_STENCIL_URLS", message)
    elif "PROTO" in str(draft.settings.get("STREAMS", "")):
        message = f"put the descriptor set at {DESCRIPTORS_PATH} (protoc --include_imports --descriptor_set_out)"
        draft.note("check", "SCHEMA_REGISTRY_STENCIL_ENABLE", message)


def _registry(draft: Draft, urls: list[str]) -> dict[str, Any]:
    """The settings of the Stencil client as the option `descriptors` of a format."""
    options: dict[str, Any] = {"url": urls[0] if len(urls) == 1 else urls}
    setting = draft.json(f"{_STENCIL}FETCH_HEADERS", [])
    pairs = setting.items() if isinstance(setting, dict) else [(header["name"], header["value"]) for header in setting]
    headers = {
        str(k): header_value(draft, str(k), escape_variables(str(v)), f"{_STENCIL}FETCH_HEADERS") for k, v in pairs
    }
    if headers:
        options["headers"] = headers
    for key, option in (("FETCH_TIMEOUT_MS", "timeout"), ("CACHE_TTL_MS", "refresh")):
        value = draft.take(_STENCIL + key)
        if value:
            options[option] = duration(value)
    if draft.take(f"{_STENCIL}REFRESH_STRATEGY") == "VERSION_BASED_REFRESH":
        options["version"] = "newest"
    return options


def _renamed(draft: Draft, query: str, tables: dict[str, str]) -> str:
    """The query, with new names for tables whose names are not valid for a stream."""
    new_names = {table.lower(): name for table, name in tables.items() if table.lower() != name}
    if not new_names:
        return query
    parsed = parse(query)
    words = TokenList(parsed.sql, parsed.tokens)
    places = [words.at(int(table.this.meta["start"])) for table in parsed.inputs if table.name.lower() in new_names]
    edits = [words.replace(place, place, new_names[words.tokens[place].text.lower()]) for place in places]
    for table, name in new_names.items():
        draft.note("check", "INPUT_SCHEMA_TABLE", f"'{table}' is renamed to '{name}', also in the SQL")
    return apply_edits(parsed.sql, edits)[0]


def _flow(draft: Draft, name: str, tables: dict[str, str], query: str) -> None:
    path = f"sql/{name}.sql"
    draft.files[path] = query + "\n"
    flow_name = name if name not in tables.values() else f"{name}_flow"
    columns = _columns(draft, query)
    flow: dict[str, Any] = {}
    first_steps = before(draft, tables)
    if first_steps:
        flow["before"] = first_steps
    flow |= {"sql_file": path, "dialect": "dagger"}
    last_steps = after(draft)
    if last_steps:
        flow["after"] = last_steps
    parallelism = draft.take("FLINK_PARALLELISM")
    if parallelism:
        flow["partitions"] = int(parallelism)
    flow["sinks"] = [sink(draft, flow, name, columns)]
    draft.document["flows"] = {flow_name: flow}


def _columns(draft: Draft, query: str) -> list[str]:
    try:
        columns = list(parse(query).output)
    except SqlError as error:
        draft.note("not_carried", "FLINK_SQL_QUERY", f"the SQL cannot be parsed: {error.message} (line {error.line})")
        return []
    if _LONGBOW.search(query):
        message = "columns named longbow_… belong to Longbow: write a `history` step instead, and rename them"
        draft.note("not_carried", "FLINK_SQL_QUERY", message)
    return columns


def _note_unused(draft: Draft) -> None:
    """Note every setting that was not used."""
    bucket = draft.take("UDF_DART_GCS_BUCKET_ID")
    if bucket:
        draft.document["functions"] = {"lookups": {"path": f"gs://{bucket}"}}
    for key in draft.settings:
        if key in draft.seen:
            continue
        not_needed = next((why for start, why in _NOT_NEEDED.items() if key.startswith(start)), None)
        not_carried = next((why for start, why in _NOT_CARRIED.items() if key.startswith(start)), None)
        if not_needed:
            draft.note("not_needed", key, not_needed)
        else:
            draft.note("not_carried", key, not_carried or NO_EQUIVALENT)


class _Dumper(yaml.SafeDumper):
    """Indents lists and writes no YAML references."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _yaml(draft: Draft) -> str:
    order = ("project", "functions", "streams", "flows")
    document = {key: draft.document[key] for key in order if key in draft.document}
    head = "# Created from a Dagger job by `headrace migrate dagger`; MIGRATION.md lists what to check.\n"
    return head + yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)
