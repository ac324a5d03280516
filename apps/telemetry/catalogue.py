"""Generates the lookups of denormalisation, the SQL of the OLAP tables and the Druid specs from catalogue.yaml.

`python apps/telemetry/catalogue.py` writes the files; `--check` writes nothing and fails when a file is out of date.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, model_validator

ROOT = Path(__file__).parent
_STEP = re.compile(r"\.(?P<plain>[A-Za-z_]\w*)|\['(?P<quoted>[^']+)'\]|(?P<each>\[\*\])")
_WORD = re.compile(r"[A-Za-z_]\w*\(?")
_TEXT = re.compile(r"'[^']*'")
Step = dict[str, Any]


class Model(BaseModel):
    """A frozen model that rejects unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Lookup(Model):
    """The source of the answers of a lookup."""

    redis: str
    key: str
    holds: Literal["hash", "text"]


class FieldRule(Model):
    """A field of a block, in the syntax of the processor `reshape`."""

    path: str
    type: Literal["any", "text", "json", "long", "epoch_ms"] = "any"
    prefix: str = ""
    default: Any = None
    otherwise: Any = None


class Block(Model):
    """The fields that denormalisation writes at one path of an event."""

    path: str
    lookup: str | None = None
    fields: dict[str, str | FieldRule]

    def writes(self, path: tuple[str, ...]) -> bool:
        """Return whether the block writes a path below its own; a JSON field may contain any path."""
        return any(
            path == tuple(name.split("."))
            or (isinstance(rule, FieldRule) and rule.type == "json" and path[:1] == (name,))
            for name, rule in self.fields.items()
        )


class Column(Model):
    """A column of an OLAP table."""

    type: Literal["string", "strings", "long", "double"] = "string"
    path: str | None = None
    cdata: str | None = None

    @model_validator(mode="after")
    def _one_place(self) -> Column:
        if (self.path is None) == (self.cdata is None):
            raise ValueError("needs one of 'path' and 'cdata'")
        _ = self.steps
        return self

    @cached_property
    def steps(self) -> tuple[tuple[str, bool], ...]:
        """The names of the path, each with whether it selects all elements of a list."""
        if self.path is None:
            return (("context", False), ("cdata", True))
        steps: list[tuple[str, bool]] = []
        position = 1
        while position < len(self.path):
            match = _STEP.match(self.path, position)
            if match is None or not self.path.startswith("$") or (match["each"] and not steps):
                raise ValueError(f"'{self.path}' is not a path like $.context.cdata[*].id")
            if match["each"]:
                steps[-1] = (steps[-1][0], True)
            else:
                steps.append((match["plain"] or match["quoted"], False))
            position = match.end()
        return tuple(steps)

    @property
    def names(self) -> tuple[str, ...]:
        """The path without lists."""
        return tuple(name for name, _ in self.steps)


class Metric(Model):
    """A metric that Druid aggregates."""

    type: Literal["long", "double", "count", "distinct"]
    of: str | None = None


def _columns(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Expand columns that are only a path."""
    return {name: {"path": column} if isinstance(column, str) else column for name, column in columns.items()}


class Datasource(Model):
    """One OLAP table."""

    druid: str
    topic: str
    rollup: bool = False
    granularity: Literal["none", "hour"] = "none"
    metrics: dict[str, Metric] = {}
    columns: dict[str, Column] = Field(min_length=1)

    @model_validator(mode="before")
    @classmethod
    def _paths_alone(cls, values: Any) -> Any:
        return {**values, "columns": _columns(values["columns"])}


class Rollup(Model):
    """A further Druid source over the topic of a table: an aggregation by some of its columns."""

    of: str
    granularity: Literal["none", "hour", "day"]
    metrics: dict[str, Metric] = Field(min_length=1)
    dimensions: list[str] = Field(min_length=1)
    columns: dict[str, Column] = {}
    """Columns that the table does not have, or has under another name; they can be dimensions."""
    where: str | None = None
    """A filter of events, as a Druid expression."""
    transforms: dict[str, str] = {}
    """Computed dimensions, as Druid expressions."""

    @model_validator(mode="before")
    @classmethod
    def _paths_alone(cls, values: Any) -> Any:
        return {**values, "columns": _columns(values.get("columns", {}))}

    @property
    def used_columns(self) -> list[str]:
        """All columns that it uses, the dimensions first."""
        expressions = [*self.transforms.values(), *([self.where] if self.where else [])]
        words = [word for text in expressions for word in _WORD.findall(_TEXT.sub("", text)) if not word.endswith("(")]
        sources = [metric.of for metric in self.metrics.values() if metric.of]
        return [*dict.fromkeys([*self.dimensions, *sources, *words])]


class Catalogue(Model):
    """All blocks, tables and rollups."""

    lookups: dict[str, Lookup]
    blocks: dict[str, Block]
    datasources: dict[str, Datasource]
    rollups: dict[str, Rollup] = {}

    @model_validator(mode="after")
    def _no_gaps(self) -> Catalogue:
        for table, source in (*self.datasources.items(), *self.rollups.items()):
            for name in self.gaps(source.columns):
                raise ValueError(f"column {table}.{name} reads a path that denormalisation does not write")
        for name, rollup in self.rollups.items():
            if rollup.of not in self.datasources:
                raise ValueError(f"rollup {name} is of '{rollup.of}', which is not a table")
            for column in sorted({*rollup.used_columns, *rollup.transforms} - self.readable(rollup).keys()):
                raise ValueError(f"rollup {name} names '{column}', which is not a column of {rollup.of}")
        return self

    def readable(self, rollup: Rollup) -> dict[str, Column]:
        """Return all columns that a rollup can use."""
        return {**self.datasources[rollup.of].columns, **rollup.columns}

    def gaps(self, columns: Mapping[str, Column]) -> list[str]:
        """Return the columns below a block that would always be empty."""
        blocks = {block.path: block for block in self.blocks.values()}
        return [
            name
            for name, column in columns.items()
            if column.names[0] in blocks and not blocks[column.names[0]].writes(column.names[1:])
        ]


def load(file: Path = ROOT / "catalogue.yaml") -> Catalogue:
    """Load the catalogue. Raises ValueError if it is invalid."""
    return Catalogue.model_validate(yaml.safe_load(file.read_text(encoding="utf-8")))


def generated(catalogue: Catalogue) -> Iterator[tuple[str, str]]:
    """Yield the generated files and their texts."""
    yield "flows/lookups.yaml", lookups_yaml(catalogue)
    for name, source in catalogue.datasources.items():
        yield f"sql/{name}.sql", table_sql(source)
        yield f"druid/{source.druid}.json", json.dumps(druid_spec(source), indent=2) + "\n"
    for name, rollup in catalogue.rollups.items():
        yield f"druid/{name}.json", json.dumps(rollup_spec(catalogue, name, rollup), indent=2) + "\n"


# --- denormalisation ---------------------------------------------------------------------------------------------

_HEAD = "-- Generated by catalogue.py from catalogue.yaml: change it there.\n"


def lookups_yaml(catalogue: Catalogue) -> str:
    """Return the flows between keys and documents: for each block a lookup, and the selected fields of the answer."""
    blocks = {name: block for name, block in catalogue.blocks.items() if block.lookup}
    reshapes = [_reshape(catalogue, name, block) for name, block in blocks.items()]
    files = [_in_files(name, block) for name, block in blocks.items()]
    redis = [_in_redis(catalogue, name, block) for name, block in blocks.items()]
    flows = ("denormalise", "denormalise_summary")
    profiles = {"kafka": {"flows": {f"{flow}_found": {"after": redis + reshapes} for flow in flows}}}
    found_flows = {f"{flow}_found": _found_flow(flow, files + reshapes) for flow in flows}
    head = "# Generated by catalogue.py from catalogue.yaml: change it there.\n"
    return head + yaml.dump(
        {"flows": found_flows, "profiles": profiles}, sort_keys=False, width=110, default_flow_style=None
    )


def _found_flow(flow: str, steps: list[Step]) -> Step:
    return {
        "description": "Events with the answers of the caches.",
        "sql": f"SELECT * FROM {flow}_keys",
        "after": steps,
    }


def _in_redis(catalogue: Catalogue, name: str, block: Block) -> Step:
    lookup = catalogue.lookups[str(block.lookup)]
    return {
        "type": "redis",
        "url": lookup.redis,
        "key": f"{lookup.key}{{{name}_key}}",
        "holds": lookup.holds,
        "columns": {f"{name}_value": "$"},
        "cache": {"ttl": "${lookup_ttl}", "size": 20_000},
    }


def _in_files(name: str, block: Block) -> Step:
    return {
        "type": "table",
        "table": {"files": f"lookups/{block.lookup}.jsonl", "format": "json"},
        "key": {f"{name}_key": "key"},
        "columns": "value string",
        "prefix": f"{name}_",
    }


def _reshape(catalogue: Catalogue, name: str, block: Block) -> Step:
    hashed = catalogue.lookups[str(block.lookup)].holds == "hash"
    fields = {
        field: ({"path": rule, "type": "json"} if hashed else rule)
        if isinstance(rule, str)
        else rule.model_dump(exclude_unset=True)
        for field, rule in block.fields.items()
    }
    # the writers of the caches escape square brackets with backslashes, and write a missing value as an empty text
    options = {"strip": "\\", "empty": "drop"} if hashed else {}
    # an invalid cache entry counts as missing: the event itself is valid
    return {"type": "reshape", "column": f"{name}_value", "invalid": "missing", **options, "fields": fields}


# --- OLAP tables -------------------------------------------------------------------------------------------------


def _long(text: str) -> str:
    # numbers written by Gson look like 1.5E12
    return f"coalesce(try_cast({text} AS BIGINT), try_cast(try_cast({text} AS DOUBLE) AS BIGINT))"


def _millis(text: str) -> str:
    return f"CASE WHEN try_cast({text} AS DOUBLE) BETWEEN 0 AND 253402300799999 THEN {_long(text)} END"


def _lines(parts: Sequence[str], indent: int) -> str:
    return f",\n{' ' * indent}".join(parts)


def table_sql(source: Datasource) -> str:
    """Return the query of a table, which parses the event once."""
    tree: dict[str, Any] = {"syncts": None, "ets": None}
    for column in source.columns.values():
        _grow(tree, column)
    parts = [f"{_column(column)} AS {_quoted(name)}" for name, column in source.columns.items()]
    parts += [f"{_metric(source, metric)} AS {name}" for name, metric in source.metrics.items()]
    time = f"timestamp_millis(coalesce({_millis('e.syncts')}, {_millis('e.ets')}))"
    return (
        f"{_HEAD}SELECT {time} AS __time,\n  CAST({time} AS DATE) AS day,\n  {_lines(parts, 2)}\n"
        f"FROM (\n  SELECT from_json(value, '{_ddl(tree, ' ')}') AS e\n"
        f"  FROM {source.topic.replace('.', '_')}\n)\n"
    )


def _grow(tree: dict[str, Any], column: Column) -> None:
    """Add a path to the tree of parsed fields: None is a text, a dict a struct, a list of a dict a list of structs."""
    *parents, (last, _) = column.steps if column.path else (*column.steps, ("type", False))
    for name, each in parents:
        child = tree.setdefault(name, [{}] if each else {})
        tree = child[0] if isinstance(child, list) else child
    tree.setdefault(last, None)
    if column.cdata:
        tree.setdefault("id", None)


def _ddl(tree: Mapping[str, Any], between: str = ": ") -> str:
    return ", ".join(f"{_quoted(name)}{between}{_type(child)}" for name, child in tree.items())


def _type(node: Any) -> str:
    if isinstance(node, list):
        return f"ARRAY<{_type(node[0])}>"
    return "STRING" if node is None else f"STRUCT<{_ddl(node)}>"


def _column(column: Column) -> str:
    if column.cdata is not None:
        like = column.cdata.replace("_", "")
        return f"get(filter(e.context.cdata, one -> lower(replace(one.type, '_', '')) = '{like}'), 0).id"
    value = "e." + ".".join(_quoted(name) for name in column.names)
    if column.type == "long":
        return _long(value)
    if column.type == "double":
        return f"try_cast({value} AS DOUBLE)"
    if column.type == "string" or any(each for _, each in column.steps[:-1]):
        return value
    # a list, or a single value that counts as a list
    listed = f"CASE WHEN left({value}, 1) = '[' THEN from_json({value}, 'ARRAY<STRING>') ELSE array({value}) END"
    return f"CASE WHEN {value} IS NOT NULL THEN {listed} END"


def _metric(source: Datasource, metric: Metric) -> str:
    return "1L" if metric.of is None else _column(source.columns[metric.of])


def _quoted(name: str) -> str:
    return name if name.isidentifier() else f"`{name}`"


# --- Druid -------------------------------------------------------------------------------------------------------


def druid_spec(source: Datasource) -> dict[str, Any]:
    """Return the supervisor spec that reads a table's topic into Druid."""
    summed = {metric.of for metric in source.metrics.values()} if source.granularity != "none" else set()
    dimensions = [name for name in source.columns if name not in summed]
    schema = _schema(source.druid, dimensions, source.columns, source, rollup=source.rollup)
    return _supervisor(schema, source.topic, source.columns)


def rollup_spec(catalogue: Catalogue, name: str, rollup: Rollup) -> dict[str, Any]:
    """Return the supervisor spec that reads a table's topic into Druid and aggregates it."""
    readable = catalogue.readable(rollup)
    columns = {column: readable[column] for column in rollup.used_columns}
    schema = _schema(name, rollup.dimensions, columns, rollup, rollup=True)
    transforms = [
        {"type": "expression", "name": column, "expression": text} for column, text in rollup.transforms.items()
    ]
    where = {"filter": {"type": "expression", "expression": rollup.where}} if rollup.where else {}
    transform = {"transformSpec": {"transforms": transforms, **where}} if transforms or where else {}
    return _supervisor({**schema, **transform}, catalogue.datasources[rollup.of].topic, columns)


def _schema(
    name: str, dimensions: Sequence[str], columns: Mapping[str, Column], source: Datasource | Rollup, *, rollup: bool
) -> dict[str, Any]:
    types = {column: columns[column].type.replace("strings", "string") for column in dimensions}
    return {
        "dataSource": name,
        "timestampSpec": {"column": "syncts", "format": "auto"},
        "dimensionsSpec": {"dimensions": [{"type": type, "name": column} for column, type in types.items()]},
        "metricsSpec": [_druid_metric(column, metric) for column, metric in source.metrics.items()],
        "granularitySpec": {
            "type": "uniform",
            "segmentGranularity": "DAY",
            "queryGranularity": source.granularity.upper(),
            "rollup": rollup,
        },
    }


def _supervisor(schema: dict[str, Any], topic: str, columns: Mapping[str, Column]) -> dict[str, Any]:
    """Return a supervisor spec. `ENV` and `BROKERS` are placeholders that are replaced when it is submitted."""
    timed = {"syncts": Column(type="long", path="$.syncts"), **columns}
    fields = [_flat(name, column) for name, column in timed.items()]
    return {
        "type": "kafka",
        "spec": {
            "dataSchema": schema,
            "ioConfig": {
                "type": "kafka",
                "topic": f"ENV.{topic}",
                "consumerProperties": {"bootstrap.servers": "BROKERS", "isolation.level": "read_committed"},
                "inputFormat": {"type": "json", "flattenSpec": {"useFieldDiscovery": False, "fields": fields}},
                "taskCount": 1,
                "replicas": 1,
                "taskDuration": "PT4H",
                "useEarliestOffset": True,
            },
            "tuningConfig": {"type": "kafka", "maxRowsPerSegment": 5_000_000, "reportParseExceptions": False},
        },
    }


def _druid_metric(name: str, metric: Metric) -> dict[str, str]:
    kind = {"count": "count", "distinct": "HLLSketchBuild"}.get(metric.type, f"{metric.type}Sum")
    return {"type": kind, "name": name, **({} if metric.of is None else {"fieldName": metric.of})}


def _flat(name: str, column: Column) -> dict[str, str]:
    if column.cdata is not None:
        pattern = column.cdata.replace("_", "_?")
        return {"type": "path", "name": name, "expr": f"$.context.cdata[?(@.type =~ /{pattern}/i)].id"}
    if column.names == (name,):
        return {"type": "root", "name": name}
    return {"type": "path", "name": name, "expr": str(column.path)}


# --- the command -------------------------------------------------------------------------------------------------


def stale(root: Path = ROOT) -> list[str]:
    """Return the files that are out of date."""
    expected = dict(generated(load(root / "catalogue.yaml")))
    existing = {file.relative_to(root).as_posix() for file in root.glob("druid/*.json")}
    return sorted(
        {name for name, text in expected.items() if not _holds(root / name, text)} | (existing - expected.keys())
    )


def _holds(file: Path, text: str) -> bool:
    return file.is_file() and file.read_text(encoding="utf-8") == text


def main() -> int:
    """Write the files, or report those that are out of date."""
    parser = argparse.ArgumentParser(prog="catalogue", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when a file is out of date")
    if parser.parse_args().check:
        out_of_date = stale()
        print("\n".join(f"out of date: {name}" for name in out_of_date), file=sys.stderr, end="\n" * bool(out_of_date))
        return 1 if out_of_date else 0
    for name, text in generated(load()):
        (ROOT / name).parent.mkdir(exist_ok=True)
        (ROOT / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
