"""A project from the settings of a Dagger job."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from headrace.core.errors import Exit, ProjectError
from headrace.migrate.draft import PLACE, Draft, hidden, literal, milliseconds, name_of
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
    "FLINK_WATERMARK_": "the watermark moves with every batch; how long it waits is in event_time",
    "METRIC_TELEMETRY_": "metrics are always there, at /metrics",
    "SHUTDOWN_PERIOD_MS": "flows stop after their running batch",
    "FLINK_RETENTION_": "what a window keeps goes when the watermark passes it",
    "FLINK_MIN_IDLE_STATE_RETENTION_TIME": "what a window keeps goes when the watermark passes it",
    "FLINK_MAX_IDLE_STATE_RETENTION_TIME": "what a window keeps goes when the watermark passes it",
    "FUNCTION_FACTORY_CLASSES": "Dagger's functions are all there",
    "UDF_FACTORY_CLASSES": "Dagger's functions are all there",
    "SCHEMA_REGISTRY_STENCIL_": "descriptor sets are files, or addresses that are asked with the format's own settings",
    "UDF_STORE_PROVIDER": "it follows from the address of functions.lookups",
}
_NOT_CARRIED = {
    "PROCESSOR_LONGBOW_": "write a `history` step: what is remembered is kept with the flow, without Bigtable",
    "PYTHON_UDF_": "put functions into functions/*.py, with type hints instead of @udf(result_type=…)",
    "SINK_BIGQUERY_": "there is no BigQuery sink",
    "SINK_METRICS_APPLICATION_PREFIX": "metrics have the names in the guide",
    "UDF_DART_GCS_PROJECT_ID": "the machine's own credentials are used",
}
_LONGBOW = re.compile(r"\blongbow\w*", re.IGNORECASE)


def migrate(file: Path, descriptors: Path | None = None) -> Draft:
    """The project that does what a Dagger job does; its notes say what could not be carried over."""
    try:
        settings = read_properties(file.read_text(encoding="utf-8"), file.name)
    except (OSError, UnicodeDecodeError) as error:
        hint = "name a file of KEY=value lines"
        raise ProjectError("missing-file", f"{file} cannot be read", hint=hint, exit_code=Exit.NOT_FOUND) from error
    draft = Draft(settings)
    _schemas(draft, file, descriptors)
    query = draft.take("FLINK_SQL_QUERY")
    if not query:
        raise ProjectError("migrate-unreadable", f"{file} has no FLINK_SQL_QUERY", hint="is it the file of a job?")
    name = name_of(draft.take("FLINK_JOB_ID") or draft.take("JOB_NAME") or file.stem.split(".")[0], "job")
    draft.document["project"] = name
    tables = streams(draft)
    _flow(draft, name, tables, _renamed(draft, query.strip(), tables))
    _rest(draft)
    draft.files["headrace.yaml"] = _yaml(draft)
    draft.files["MIGRATION.md"] = report(draft, file.name)
    return draft


def _schemas(draft: Draft, file: Path, given: Path | None) -> None:
    """The descriptor set: one that was given, one beside the file, or addresses to ask."""
    urls = [one.strip() for one in draft.take("SCHEMA_REGISTRY_STENCIL_URLS").split(",") if one.strip()]
    local = [Path(urlsplit(one).path) for one in urls if urlsplit(one).scheme in ("", "file")]
    paths = [given] if given is not None else [file.parent / one for one in local]
    found = [path for path in paths if path.is_file()]
    if given is not None and not found:
        raise ProjectError("missing-file", f"there is no file '{given}'", hint="a set made by protoc --include_imports")
    if found:
        # descriptor sets one after the other are a descriptor set
        draft.descriptors = b"".join(path.read_bytes() for path in found)
        draft.files[PLACE] = draft.descriptors
    elif urls:
        draft.schemas = _registry(draft, urls) if len(local) < len(urls) else urls[0]
        message = "messages and field numbers could not be looked up: give a descriptor set with --descriptors"
        draft.note("check", "SCHEMA_REGISTRY_STENCIL_URLS", message)
    elif "PROTO" in str(draft.settings.get("STREAMS", "")):
        message = f"put the descriptor set at {PLACE}; protoc --include_imports --descriptor_set_out makes one"
        draft.note("check", "SCHEMA_REGISTRY_STENCIL_ENABLE", message)


def _registry(draft: Draft, urls: list[str]) -> dict[str, Any]:
    """The settings of Stencil's client as those of a format's `descriptors`."""
    made: dict[str, Any] = {"url": urls[0] if len(urls) == 1 else urls}
    given = draft.json(f"{_STENCIL}FETCH_HEADERS", [])
    pairs = given.items() if isinstance(given, dict) else [(one["name"], one["value"]) for one in given]
    headers = {str(k): hidden(draft, str(k), literal(str(v)), f"{_STENCIL}FETCH_HEADERS") for k, v in pairs}
    if headers:
        made["headers"] = headers
    for key, option in (("FETCH_TIMEOUT_MS", "timeout"), ("CACHE_TTL_MS", "refresh")):
        value = draft.take(_STENCIL + key)
        if value:
            made[option] = milliseconds(value)
    if draft.take(f"{_STENCIL}REFRESH_STRATEGY") == "VERSION_BASED_REFRESH":
        made["version"] = "newest"
    return made


def _renamed(draft: Draft, query: str, tables: dict[str, str]) -> str:
    """The query as it is, but for tables whose names no stream can have."""
    odd = {table.lower(): name for table, name in tables.items() if table.lower() != name}
    if not odd:
        return query
    parsed = parse(query)
    words = TokenList(parsed.sql, parsed.tokens)
    places = [words.at(int(table.this.meta["start"])) for table in parsed.inputs if table.name.lower() in odd]
    edits = [words.replace(place, place, odd[words.tokens[place].text.lower()]) for place in places]
    for table, name in odd.items():
        draft.note("check", "INPUT_SCHEMA_TABLE", f"'{table}' is called '{name}' now, also in the SQL")
    return apply_edits(parsed.sql, edits)[0]


def _flow(draft: Draft, name: str, tables: dict[str, str], query: str) -> None:
    path = f"sql/{name}.sql"
    draft.files[path] = query + "\n"
    flow_name = name if name not in tables.values() else f"{name}_flow"
    columns = _columns(draft, query)
    flow: dict[str, Any] = {}
    steps = before(draft, tables)
    if steps:
        flow["before"] = steps
    flow |= {"sql_file": path, "dialect": "dagger"}
    last = after(draft)
    if last:
        flow["after"] = last
    parallelism = draft.take("FLINK_PARALLELISM")
    if parallelism:
        flow["partitions"] = int(parallelism)
    flow["sinks"] = [sink(draft, flow, name, columns)]
    draft.document["flows"] = {flow_name: flow}


def _columns(draft: Draft, query: str) -> list[str]:
    try:
        found = list(parse(query).output)
    except SqlError as error:
        draft.note("not_carried", "FLINK_SQL_QUERY", f"it cannot be parsed: {error.message} (line {error.line})")
        return []
    if _LONGBOW.search(query):
        message = "columns named longbow_… start Longbow: write a `history` step instead, and rename them"
        draft.note("not_carried", "FLINK_SQL_QUERY", message)
    return found


def _rest(draft: Draft) -> None:
    """Every setting that nothing has asked for."""
    bucket = draft.take("UDF_DART_GCS_BUCKET_ID")
    if bucket:
        draft.document["functions"] = {"lookups": {"path": f"gs://{bucket}"}}
    for key in draft.settings:
        if key in draft.seen:
            continue
        dropped = next((why for start, why in _NOT_NEEDED.items() if key.startswith(start)), None)
        lost = next((why for start, why in _NOT_CARRIED.items() if key.startswith(start)), None)
        if dropped:
            draft.note("not_needed", key, dropped)
        else:
            draft.note("not_carried", key, lost or "there is nothing like it here")


class _Dumper(yaml.SafeDumper):
    """Lists are indented, and nothing is written as a reference to something else."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _yaml(draft: Draft) -> str:
    order = ("project", "functions", "streams", "flows")
    document = {key: draft.document[key] for key in order if key in draft.document}
    head = "# Made from a Dagger job by `headrace migrate dagger`; MIGRATION.md says what to look at.\n"
    return head + yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)
