"""`python apps/telemetry/catalogue.py`: writes the lookups of denormalisation, the OLAP tables' SQL and Druid's specs.

All of it comes from catalogue.yaml. `--check` writes nothing and fails when a file is not as the catalogue says.
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
    """Frozen, and without unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Lookup(Model):
    """Where answers come from."""

    redis: str
    key: str
    holds: Literal["hash", "text"]


class Taken(Model):
    """A field of a block, in the words of the step `reshape`."""

    path: str
    type: Literal["any", "text", "json", "long", "epoch_ms"] = "any"
    prefix: str = ""
    default: Any = None
    otherwise: Any = None


class Block(Model):
    """What denormalisation writes at one path of an event."""

    path: str
    lookup: str | None = None
    fields: dict[str, str | Taken]

    def writes(self, path: tuple[str, ...]) -> bool:
        """Whether a path below the block's own is written; below JSON there may be anything."""
        return any(
            path == tuple(name.split(".")) or (isinstance(one, Taken) and one.type == "json" and path[:1] == (name,))
            for name, one in self.fields.items()
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
        """The names of the path, and whether each of a list is meant."""
        if self.path is None:
            return (("context", False), ("cdata", True))
        found: list[tuple[str, bool]] = []
        position = 1
        while position < len(self.path):
            match = _STEP.match(self.path, position)
            if match is None or not self.path.startswith("$") or (match["each"] and not found):
                raise ValueError(f"'{self.path}' is not a path like $.context.cdata[*].id")
            if match["each"]:
                found[-1] = (found[-1][0], True)
            else:
                found.append((match["plain"] or match["quoted"], False))
            position = match.end()
        return tuple(found)

    @property
    def names(self) -> tuple[str, ...]:
        """The path without lists."""
        return tuple(name for name, _ in self.steps)


class Metric(Model):
    """What Druid adds up."""

    type: Literal["long", "double", "count", "distinct"]
    of: str | None = None


def _columns(given: Mapping[str, Any]) -> dict[str, Any]:
    """Where a column is a text, that is its path."""
    return {name: {"path": one} if isinstance(one, str) else one for name, one in given.items()}


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
    def _paths_alone(cls, given: Any) -> Any:
        return {**given, "columns": _columns(given["columns"])}


class Rollup(Model):
    """A further source of Druid over the topic of a table: what is added up by some of its columns."""

    of: str
    granularity: Literal["none", "hour", "day"]
    metrics: dict[str, Metric] = Field(min_length=1)
    dimensions: list[str] = Field(min_length=1)
    columns: dict[str, Column] = {}
    """Those that the table has not, or by another name; a dimension may be one of them."""
    where: str | None = None
    """Which events, as an expression of Druid."""
    transforms: dict[str, str] = {}
    """Dimensions that are not as they are read, as expressions of Druid."""

    @model_validator(mode="before")
    @classmethod
    def _paths_alone(cls, given: Any) -> Any:
        return {**given, "columns": _columns(given.get("columns", {}))}

    @property
    def named(self) -> list[str]:
        """All columns that it needs, the dimensions first."""
        expressions = [*self.transforms.values(), *([self.where] if self.where else [])]
        words = [word for one in expressions for word in _WORD.findall(_TEXT.sub("", one)) if not word.endswith("(")]
        return [*dict.fromkeys([*self.dimensions, *(one.of for one in self.metrics.values() if one.of), *words])]


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
                raise ValueError(f"rollup {name} is of '{rollup.of}', which is no table")
            for column in sorted({*rollup.named, *rollup.transforms} - self.readable(rollup).keys()):
                raise ValueError(f"rollup {name} names '{column}', which is no column of {rollup.of}")
        return self

    def readable(self, rollup: Rollup) -> dict[str, Column]:
        """All columns that a rollup can have."""
        return {**self.datasources[rollup.of].columns, **rollup.columns}

    def gaps(self, columns: Mapping[str, Column]) -> list[str]:
        """The columns below a block that would always be empty."""
        blocks = {block.path: block for block in self.blocks.values()}
        return [
            name
            for name, column in columns.items()
            if column.names[0] in blocks and not blocks[column.names[0]].writes(column.names[1:])
        ]


def load(file: Path = ROOT / "catalogue.yaml") -> Catalogue:
    """The catalogue; a ValueError says what is wrong with it."""
    return Catalogue.model_validate(yaml.safe_load(file.read_text(encoding="utf-8")))


def generated(catalogue: Catalogue) -> Iterator[tuple[str, str]]:
    """The files and their texts."""
    yield "flows/lookups.yaml", lookups_yaml(catalogue)
    for name, source in catalogue.datasources.items():
        yield f"sql/{name}.sql", table_sql(source)
        yield f"druid/{source.druid}.json", json.dumps(druid_spec(source), indent=2) + "\n"
    for name, rollup in catalogue.rollups.items():
        yield f"druid/{name}.json", json.dumps(rollup_spec(catalogue, name, rollup), indent=2) + "\n"


# --- denormalisation ---------------------------------------------------------------------------------------------

_HEAD = "-- Written by catalogue.py from catalogue.yaml: change it there.\n"


def lookups_yaml(catalogue: Catalogue) -> str:
    """The flows between the keys and the documents: for each block a lookup, and what is kept of the answer."""
    asked = {name: block for name, block in catalogue.blocks.items() if block.lookup}
    kept = [_reshape(catalogue, name, block) for name, block in asked.items()]
    files = [_in_files(name, block) for name, block in asked.items()]
    redis = [_in_redis(catalogue, name, block) for name, block in asked.items()]
    flows = ("denormalise", "denormalise_summary")
    over = {"kafka": {"flows": {f"{flow}_found": {"after": redis + kept} for flow in flows}}}
    made = {f"{flow}_found": _found(flow, files + kept) for flow in flows}
    head = "# Written by catalogue.py from catalogue.yaml: change it there.\n"
    return head + yaml.dump({"flows": made, "profiles": over}, sort_keys=False, width=110, default_flow_style=None)


def _found(flow: str, steps: list[Step]) -> Step:
    return {
        "description": "Events with what the caches know about them.",
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
        field: ({"path": one, "type": "json"} if hashed else one)
        if isinstance(one, str)
        else one.model_dump(exclude_unset=True)
        for field, one in block.fields.items()
    }
    # the writers of the caches escape square brackets by backslashes, and write nothing as an empty text
    options = {"strip": "\\", "empty": "drop"} if hashed else {}
    # an entry that cannot be read is none: the event is not to blame
    return {"type": "reshape", "column": f"{name}_value", "invalid": "missing", **options, "fields": fields}


# --- OLAP tables -------------------------------------------------------------------------------------------------


def _long(text: str) -> str:
    # numbers that went through Gson look like 1.5E12
    return f"coalesce(try_cast({text} AS BIGINT), try_cast(try_cast({text} AS DOUBLE) AS BIGINT))"


def _millis(text: str) -> str:
    return f"CASE WHEN try_cast({text} AS DOUBLE) BETWEEN 0 AND 253402300799999 THEN {_long(text)} END"


def _lines(parts: Sequence[str], indent: int) -> str:
    return f",\n{' ' * indent}".join(parts)


def table_sql(source: Datasource) -> str:
    """The columns of a table, from one look at the event."""
    tree: dict[str, Any] = {"syncts": None, "ets": None}
    for column in source.columns.values():
        _grow(tree, column)
    parts = [f"{_column(one)} AS {_quoted(name)}" for name, one in source.columns.items()]
    parts += [f"{_metric(source, one)} AS {name}" for name, one in source.metrics.items()]
    time = f"timestamp_millis(coalesce({_millis('e.syncts')}, {_millis('e.ets')}))"
    return (
        f"{_HEAD}SELECT {time} AS __time,\n  CAST({time} AS DATE) AS day,\n  {_lines(parts, 2)}\n"
        f"FROM (\n  SELECT from_json(value, '{_ddl(tree, ' ')}') AS e\n"
        f"  FROM {source.topic.replace('.', '_')}\n)\n"
    )


def _grow(tree: dict[str, Any], column: Column) -> None:
    """Add a path to the tree of what is read: None is a text, a dict a struct, a list with a dict a list of structs."""
    *way, (last, _) = column.steps if column.path else (*column.steps, ("type", False))
    for name, each in way:
        held = tree.setdefault(name, [{}] if each else {})
        tree = held[0] if isinstance(held, list) else held
    tree.setdefault(last, None)
    if column.cdata:
        tree.setdefault("id", None)


def _ddl(tree: Mapping[str, Any], between: str = ": ") -> str:
    return ", ".join(f"{_quoted(name)}{between}{_type(one)}" for name, one in tree.items())


def _type(one: Any) -> str:
    if isinstance(one, list):
        return f"ARRAY<{_type(one[0])}>"
    return "STRING" if one is None else f"STRUCT<{_ddl(one)}>"


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
    # a list, or the one value that stands for a list
    listed = f"CASE WHEN left({value}, 1) = '[' THEN from_json({value}, 'ARRAY<STRING>') ELSE array({value}) END"
    return f"CASE WHEN {value} IS NOT NULL THEN {listed} END"


def _metric(source: Datasource, metric: Metric) -> str:
    return "1L" if metric.of is None else _column(source.columns[metric.of])


def _quoted(name: str) -> str:
    return name if name.isidentifier() else f"`{name}`"


# --- Druid -------------------------------------------------------------------------------------------------------


def druid_spec(source: Datasource) -> dict[str, Any]:
    """A supervisor that reads a table's topic into Druid."""
    summed = {one.of for one in source.metrics.values()} if source.granularity != "none" else set()
    dimensions = [name for name in source.columns if name not in summed]
    schema = _schema(source.druid, dimensions, source.columns, source, rollup=source.rollup)
    return _supervisor(schema, source.topic, source.columns)


def rollup_spec(catalogue: Catalogue, name: str, rollup: Rollup) -> dict[str, Any]:
    """A supervisor that reads the topic of a table into Druid and adds up what is alike."""
    readable = catalogue.readable(rollup)
    columns = {one: readable[one] for one in rollup.named}
    schema = _schema(name, rollup.dimensions, columns, rollup, rollup=True)
    made = [{"type": "expression", "name": one, "expression": how} for one, how in rollup.transforms.items()]
    kept = {"filter": {"type": "expression", "expression": rollup.where}} if rollup.where else {}
    transform = {"transformSpec": {"transforms": made, **kept}} if made or kept else {}
    return _supervisor({**schema, **transform}, catalogue.datasources[rollup.of].topic, columns)


def _schema(
    name: str, dimensions: Sequence[str], columns: Mapping[str, Column], how: Datasource | Rollup, *, rollup: bool
) -> dict[str, Any]:
    types = {one: columns[one].type.replace("strings", "string") for one in dimensions}
    return {
        "dataSource": name,
        "timestampSpec": {"column": "syncts", "format": "auto"},
        "dimensionsSpec": {"dimensions": [{"type": type, "name": one} for one, type in types.items()]},
        "metricsSpec": [_druid_metric(one, metric) for one, metric in how.metrics.items()],
        "granularitySpec": {
            "type": "uniform",
            "segmentGranularity": "DAY",
            "queryGranularity": how.granularity.upper(),
            "rollup": rollup,
        },
    }


def _supervisor(schema: dict[str, Any], topic: str, columns: Mapping[str, Column]) -> dict[str, Any]:
    """`ENV` and `BROKERS` stand for what is known when it is sent."""
    timed = {"syncts": Column(type="long", path="$.syncts"), **columns}
    fields = [_flat(name, one) for name, one in timed.items()]
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
    """The files that are not as the catalogue says."""
    wanted = dict(generated(load(root / "catalogue.yaml")))
    held = {file.relative_to(root).as_posix() for file in root.glob("druid/*.json")}
    return sorted({name for name, text in wanted.items() if not _holds(root / name, text)} | (held - wanted.keys()))


def _holds(file: Path, text: str) -> bool:
    return file.is_file() and file.read_text(encoding="utf-8") == text


def main() -> int:
    """Write the files, or say which are out of date."""
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
