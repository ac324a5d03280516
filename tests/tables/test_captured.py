"""Kinds of tables through the capture: what their logs hold adds up to what the source has, whenever it is stopped."""

from __future__ import annotations

import random
import sqlite3
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from tests.tables.test_debezium import Connector, plain_key, wrapped_value

from headrace.capture.worker import CaptureWorker
from headrace.core.context import Context
from headrace.core.schema import from_ddl
from headrace.core.tables import WEIGHT, TableSource
from headrace.log.tables import table_log
from headrace.log.tablestatus import tables_folder
from headrace.project.model import RestartSpec
from headrace.project.tables import TableSpec
from headrace.tables.debezium import DebeziumTable
from headrace.tables.lake import LakeTable
from headrace.tables.polling import PollingTable
from headrace.testing.services import Kafka

QUICK = RestartSpec(backoff=timedelta(milliseconds=10), max_backoff=timedelta(milliseconds=20))
Rows = list[tuple[Any, ...]]


def logged(context: Context, group: str) -> Rows:
    """What the log of a group says the table is; no row is there more than once."""
    log = table_log(context, group)
    counts: Counter[tuple[Any, ...]] = Counter()
    for rows in log.rows("orders", log.end(), log.shapes()["orders"]) if log.end() else ():
        for row in rows.to_pylist():
            weight = row.pop(WEIGHT)
            counts[tuple(row.values())] += weight
    assert set(counts.values()) <= {0, 1}
    return sorted(row for row, count in counts.items() if count)


def captured(context: Context, source: TableSource, key: list[str], truth: Callable[[], Rows]) -> None:
    """Follow the source until the log holds what it has."""
    spec = TableSpec(source=source, key=key)
    follower = CaptureWorker(source.group, {"orders": spec}, context, tables_folder(context), QUICK, str)
    follower.start()
    try:
        deadline = time.monotonic() + 30
        while logged(context, source.group) != truth():
            assert time.monotonic() < deadline, follower.document()
            time.sleep(0.02)
    finally:
        follower.stop()
        assert follower.join(20)


def changed(rows: dict[int, str], chance: random.Random) -> tuple[int, str | None]:
    """One change of a model: a key and its new value, None when it is deleted."""
    key = chance.randrange(10)
    value = None if key in rows and chance.random() < 0.3 else f"n{chance.randrange(100)}"
    if value is None:
        del rows[key]
    else:
        rows[key] = value
    return key, value


def test_a_table_that_is_polled(context: Context) -> None:
    model: dict[int, str] = {}
    with closing(sqlite3.connect(context.root / "shop.db", isolation_level=None)) as database:
        database.execute("PRAGMA synchronous = OFF")
        database.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, name TEXT)")
        source = PollingTable(url="sqlite:///shop.db", table="orders", every="20ms")  # type: ignore[arg-type]
        chance = random.Random(1)
        for _ in range(3):
            for _ in range(8):
                key, value = changed(model, chance)
                database.execute("DELETE FROM orders WHERE id = ?", (key,))
                if value is not None:
                    database.execute("INSERT INTO orders VALUES (?, ?)", (key, value))
            captured(context, source, [], lambda: sorted(model.items()))


def test_a_table_of_the_lake(context: Context) -> None:
    path = str(context.root / "lake")
    rows = pa.Table.from_pylist([{"id": n, "name": "a"} for n in range(5)], from_ddl("id bigint, name string"))
    write_deltalake(path, rows, configuration={"delta.enableChangeDataFeed": "true"})
    source = LakeTable(path="lake", every="20ms")  # type: ignore[arg-type]
    captured(context, source, ["id"], lambda: [(n, "a") for n in range(5)])
    DeltaTable(path).update({"name": "'b'", "id": "id + 1"}, predicate="id > 2")
    DeltaTable(path).delete("id = 0")
    captured(context, source, ["id"], lambda: [(1, "a"), (2, "a"), (4, "b"), (5, "b")])


@pytest.mark.service
def test_a_topic_of_debezium(kafka: Kafka, topic: Callable[..., str], context: Context) -> None:
    name = topic(partitions=2)
    connector = Connector(kafka, name, wrapped_value, plain_key)
    source = DebeziumTable(brokers=[kafka.address], topic=name)
    model: dict[int, str] = {}
    chance = random.Random(2)
    for _ in range(3):
        for _ in range(40):
            key, value = changed(model, chance)
            if value is None:
                connector.delete(key)
            else:
                connector.put({"id": key, "name": value})
        connector.flush()
        captured(context, source, [], lambda: sorted(model.items()))
