"""Whatever changes come: rows, versions, events, counts and indexes are those of a plain dict."""

from __future__ import annotations

import base64
import itertools
import json
import math
import tempfile
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.core.endpoints import Conflicts, Endpoint, Op
from headrace.core.schema import from_ddl
from headrace.store.endpoint.reader import StoreReader
from headrace.store.endpoint.writer import StoreWriter
from headrace.store.rows.keys import codec
from headrace.store.rows.layout import shortened_row_key, shortened_value_key, words

LONG = "so long that it is cut " * 40
TIMES = [datetime(1, 1, 1), datetime(2026, 11, 16, 10, 0, 0), datetime(2026, 11, 16, 10, 0, 0, 120_000)]
POOLS: dict[str, list[Any]] = {
    "bool": [None, True, False],
    "int8": [None, 0, -128],
    "int64": [None, 0, 1, -(2**63), 2**63 - 1],
    "double": [None, 0.0, 1.0, -1.5e300, 0.1, math.inf, -math.inf, math.nan],
    "float": [None, 0.5, 0.10000000149011612, math.nan],
    "decimal128(38, 10)": [None, Decimal("0E-10"), Decimal("1.5"), Decimal("-9999999999999999999999999999.0000000001")],
    "decimal128(10, 2)": [None, Decimal("0.00"), Decimal("-1.50"), Decimal("99999999.99")],
    "string": [None, "", "a", "A b", 'ä "q" \\ \n\x00', LONG, LONG + "!"],
    "binary": [None, b"", b"\x00\xff", b"x" * 600],
    "date32[day]": [None, date(1, 1, 1), date(9999, 12, 31)],
    "timestamp[us, tz=UTC]": [None, *(time.replace(tzinfo=UTC) for time in TIMES)],
    "timestamp[us]": [None, *TIMES],
}
ENDPOINTS = [
    Endpoint(
        "scalars",
        from_ddl(
            "id bigint, name string, price decimal(10, 2), huge decimal(38, 10), at timestamp, seen timestamp_ntz, "
            "day date, flag boolean, raw binary, ratio double, single float, small tinyint"
        ),
        key=("id",),
        indexes=(("name",), ("price", "at"), ("ratio",), ("raw", "single"), ("seen", "day", "flag"), ("huge",)),
        text=("name",),
    ),
    Endpoint(
        "composite",
        from_ddl(
            "a string, b timestamp, c decimal(38, 10), tags array<string>, inner struct<x: double, y: array<date>>"
        ),
        key=("a", "b", "c"),
        indexes=(("tags",), ("inner",), ("c", "a")),
    ),
    Endpoint(
        "maps", from_ddl("id string, by map<string, int>, of map<int, timestamp>"), key=("id",), indexes=(("by",),)
    ),
    Endpoint("lines", from_ddl("text string, size bigint"), indexes=(("size",),), text=("text",)),
    Endpoint("bare", from_ddl("id binary, size bigint"), key=("id",)),
]


def values(kind: pa.DataType) -> st.SearchStrategy[Any]:
    if pa.types.is_list(kind):
        return st.none() | st.lists(values(kind.value_type), max_size=2)
    if pa.types.is_struct(kind):
        return st.none() | st.fixed_dictionaries({one.name: values(one.type) for one in kind})
    if pa.types.is_map(kind):
        keys = values(kind.key_type).filter(lambda key: key is not None)
        return st.none() | st.dictionaries(keys, values(kind.item_type), max_size=2).map(lambda one: list(one.items()))
    if pa.types.is_integer(kind) and kind != pa.int64():
        return st.sampled_from(POOLS["int8"])
    return st.sampled_from(POOLS[str(kind)])


def served(value: Any, kind: pa.DataType) -> Any:
    """What a value is in the JSON."""
    if value is None:
        return None
    if pa.types.is_list(kind):
        return [served(one, kind.value_type) for one in value]
    if pa.types.is_struct(kind):
        return {one.name: served(value[one.name], one.type) for one in kind}
    if pa.types.is_map(kind):
        return {str(key): served(one, kind.item_type) for key, one in value}
    if pa.types.is_timestamp(kind):
        milliseconds = "milliseconds" if value.microsecond else "seconds"
        return value.replace(tzinfo=None).isoformat(timespec=milliseconds) + ("Z" if kind.tz else "")
    return _served_simple(value, kind)


def _served_simple(value: Any, kind: pa.DataType) -> Any:
    match value:
        case Decimal():
            return f"{value:.{kind.scale}f}"
        case date():
            return str(value)
        case bytes():
            return base64.b64encode(value).decode()
        case float() if not math.isfinite(value):
            return {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN")
        case float() if kind == pa.float32():
            return float(f"{value:.7g}")
    return value


@dataclass
class Model:
    """The endpoint as a dict from the values of the key to version and row."""

    endpoint: Endpoint
    rows: dict[Any, tuple[int, dict[str, Any]]] = field(default_factory=dict)
    events: list[tuple[int, Op, Any, Any]] = field(default_factory=list)
    ignored: int = 0
    refused: int = 0

    @property
    def version(self) -> int:
        return len(self.events)

    def apply(self, op: Op, row: dict[str, Any], old: Any) -> None:
        policies = self.endpoint.conflicts
        key = tuple(row[name] for name in self.endpoint.key) or (self.version + 1,)
        old = key if old is None else old
        match op:
            case Op.UPSERT:
                if old != key and old in self.rows:
                    self._note(Op.DELETE, self.rows.pop(old)[1], None)
                self._set(key, row, self.rows.get(key))
            case Op.INSERT if key in self.rows and policies.on_insert != "update":
                self._conflict(policies.on_insert)
            case Op.INSERT:
                self._set(key, row, self.rows.get(key))
            case Op.UPDATE if old not in self.rows and policies.on_update != "upsert":
                self._conflict(policies.on_update)
            case Op.UPDATE if old != key and key in self.rows:
                self._conflict(policies.on_update)
            case Op.UPDATE:
                self._set(key, row, self.rows.pop(old, None))
            case Op.DELETE if old in self.rows:
                self._note(Op.DELETE, self.rows.pop(old)[1], None)
            case Op.DELETE:
                self._conflict(policies.on_delete)

    def _set(self, key: Any, row: dict[str, Any], before: Any) -> None:
        # by what is served: a NaN is not itself
        if before is not None and self.json(before[1]) == self.json(row):
            self.rows[key] = before
            self.ignored += 1
            return
        self._note(Op.INSERT if before is None else Op.UPDATE, before and before[1], row)
        self.rows[key] = (self.version, row)

    def _note(self, op: Op, before: Any, now: Any) -> None:
        self.events.append((self.version + 1, op, before and self.json(before), now and self.json(now)))

    def _conflict(self, policy: str) -> None:
        if policy == "nothing":
            self.ignored += 1
        else:
            self.refused += 1

    def json(self, row: dict[str, Any]) -> dict[str, Any]:
        return {one.name: served(row[one.name], one.type) for one in self.endpoint.columns}

    def encoded(self, names: tuple[str, ...], row: dict[str, Any]) -> bytes:
        return b"".join(codec(self.endpoint.columns.field(name).type).encode(row[name]) for name in names)

    def row_key(self, key: Any, row: dict[str, Any]) -> bytes:
        if not self.endpoint.key:
            return int(key[0]).to_bytes(8, "big")
        return shortened_row_key(self.encoded(self.endpoint.key, row))

    def entries(self, index: tuple[str, ...]) -> list[bytes]:
        found = self.rows.items()
        return sorted(shortened_value_key(self.encoded(index, row)) + self.row_key(key, row) for key, (_, row) in found)

    def words(self) -> list[bytes]:
        found = []
        for (number, name), (key, (_, row)) in itertools.product(enumerate(self.endpoint.text), self.rows.items()):
            found += [word + bytes((0, number)) + self.row_key(key, row) for word in words(row[name] or "")]
        return sorted(found)


def compare(model: Model, folder: Path, kept: int) -> None:
    reader = StoreReader.open(folder)
    try:
        with reader.transaction() as transaction:
            expected = sorted((model.row_key(key, row), version, row) for key, (version, row) in model.rows.items())
            assert (transaction.rows, transaction.version, transaction.refused) == (
                len(expected),
                model.version,
                model.refused,
            )
            scanned = [(row.key, row.version, json.loads(row.json)) for row in transaction.scan()]
            assert scanned == [(key, version, model.json(row)) for key, version, row in expected]
            for _, version, row in expected if model.endpoint.key else ():
                found = transaction.get([row[name] for name in model.endpoint.key])
                assert found is not None
                assert found.version == version
            for number, index in enumerate(model.endpoint.indexes):
                assert list(transaction.txn.cursor(db=reader.databases[b"ix%d" % number]).iternext(values=False)) == (
                    model.entries(index)
                )
            assert list(transaction.txn.cursor(db=reader.databases[b"text"]).iternext(values=False)) == model.words()
            events = transaction.events(0)
            assert events.first_kept == max(1, model.version - kept + 1)
            assert [
                (one.version, one.op, one.old and json.loads(one.old), one.new and json.loads(one.new))
                for one in events.events
            ] == model.events[-kept:]
    finally:
        reader.close()


@st.composite
def changes(draw: st.DrawFn, endpoint: Endpoint, pool: list[dict[str, Any]]) -> tuple[Op, dict[str, Any], Any]:
    """A change of a row whose key is one of a few, so that they meet."""
    row = draw(st.fixed_dictionaries({one.name: values(one.type) for one in endpoint.columns}))
    key = draw(st.sampled_from(pool))
    op = draw(st.sampled_from(Op))
    old = draw(st.none() | st.sampled_from(pool)) if endpoint.key else None
    if op is Op.DELETE:
        row = dict.fromkeys(row)
    return op, {**row, **key}, old


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(data=st.data())
def test_a_store_is_what_its_changes_make_of_it(data: st.DataObject) -> None:
    conflicts = Conflicts(
        data.draw(st.sampled_from(["nothing", "update", "error"])),
        data.draw(st.sampled_from(["nothing", "upsert", "error"])),
        data.draw(st.sampled_from(["nothing", "error"])),
    )
    endpoint = replace(data.draw(st.sampled_from(ENDPOINTS)), conflicts=conflicts)
    keys = st.fixed_dictionaries({name: values(endpoint.columns.field(name).type) for name in endpoint.key})
    pool = data.draw(st.lists(keys, min_size=1, max_size=4))
    kept = data.draw(st.sampled_from([1, 3, 1000]))
    batches = st.lists(changes(endpoint, pool), max_size=10)
    model = Model(endpoint)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "store"
        writer = StoreWriter.open(folder, endpoint, events=kept)
        for position in range(1, 4):
            segment = [data.draw(batches) for _ in range(data.draw(st.integers(1, 2)))]
            before = (model.version, model.ignored, model.refused)
            for op, row, old in itertools.chain(*segment):
                model.apply(op, row, None if old is None else tuple(old[name] for name in endpoint.key))
            applied = writer.apply(position, [arrow(endpoint, batch) for batch in segment])
            counts = (applied.changes, applied.ignored, applied.refused)
            assert counts == (model.version - before[0], model.ignored - before[1], model.refused - before[2])
            compare(model, folder, kept)
            if data.draw(st.booleans()):
                writer.close()
                writer = StoreWriter.open(folder, endpoint, events=kept)
        writer.verify()
        writer.close()


def arrow(endpoint: Endpoint, batch: list[tuple[Op, dict[str, Any], Any]]) -> pa.RecordBatch:
    rows = [{"__op": int(op), "__old": old, **row} for op, row, old in batch]
    return pa.RecordBatch.from_pylist(rows, endpoint.changes)
