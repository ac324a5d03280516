"""A view of PostgreSQL tables while everything around it dies: it ends up as PostgreSQL's own answer.

A writer updates, deletes, changes keys and large values and adds a column; the engine is killed with -9 at any moment,
and the database is restarted. `HEADRACE_SEED=n` repeats a run, `HEADRACE_FAULTS=full` makes it a long one.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from tests.serve.nodekit import client

from headrace.log.tables import table_log
from headrace.project.loader import load
from headrace.serve.base.status import read_node
from headrace.testing.services import Postgres

pytestmark = pytest.mark.service

FULL = os.environ.get("HEADRACE_FAULTS") == "full"
SEED = int(os.environ.get("HEADRACE_SEED", time.time_ns() % 10_000))
ORDERS, CUSTOMERS = (500_000, 20_000) if FULL else (20_000, 1_000)
DEATHS = 3 if FULL else 1
PATIENCE = 600.0
QUERY = (
    "SELECT c.region, sum(o.amount) AS total, count(*) AS orders, max(o.amount) AS most, "
    "sum(length(o.note)) AS letters FROM orders o JOIN customers c ON o.customer = c.id GROUP BY c.region"
)
SCHEMA = """
CREATE TABLE customers(id bigint PRIMARY KEY, region text);
CREATE TABLE orders(id bigint PRIMARY KEY, customer bigint, amount numeric(12,2), note text);
ALTER TABLE orders ALTER COLUMN note SET STORAGE EXTERNAL;
"""


@contextmanager
def database() -> Iterator[tuple[Postgres, str]]:
    with Postgres() as server:
        url = f"postgresql://postgres@{server.address}/postgres"
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(SCHEMA)
            connection.execute("ALTER SYSTEM SET log_statement = 'all'")
            connection.execute("SELECT pg_reload_conf()")
            connection.execute(
                "INSERT INTO customers SELECT n, 'r' || n %% 20 FROM generate_series(1, %s) n", [CUSTOMERS]
            )
            # every hundredth has a value that is kept out of line, and so not sent again when others change
            connection.execute(
                "INSERT INTO orders SELECT n, 1 + n %% %s, n %% 1000 + 0.25, "
                "CASE WHEN n %% 100 = 0 THEN repeat('x', 3000 + n %% 50) ELSE 'note' END FROM generate_series(1, %s) n",
                [CUSTOMERS, ORDERS],
            )
        yield server, url


class Writer(threading.Thread):
    """Changes rows all the time, through restarts of the database."""

    def __init__(self, url: str, seed: int) -> None:
        super().__init__(daemon=True)
        self.url, self.random = url, random.Random(seed)  # repeats a run
        self.ending = threading.Event()
        self.transactions = 0

    def run(self) -> None:
        while not self.ending.is_set():
            try:
                with psycopg.connect(self.url, options="-c log_statement=none") as connection:
                    while not self.ending.is_set():
                        self._transaction(connection)
                        connection.commit()
                        self.transactions += 1
                        self.ending.wait(0.005)
            except psycopg.Error:  # restarted just now
                self.ending.wait(0.2)

    def _transaction(self, connection: psycopg.Connection[Any]) -> None:
        for _ in range(self.random.randint(1, 10)):
            order, other = self.random.randint(1, ORDERS), self.random.randint(1, CUSTOMERS)
            match self.random.randint(0, 9):
                case 0:
                    connection.execute("DELETE FROM orders WHERE id = %s", [order])
                case 1:
                    connection.execute("UPDATE orders SET id = id + %s WHERE id = %s", [ORDERS * 10, order])
                case 2:
                    connection.execute("UPDATE orders SET customer = %s WHERE id = %s", [other, order])
                case 3:
                    connection.execute(
                        "INSERT INTO orders(id, customer, amount, note) VALUES (%s, %s, 7.5, 'new') "
                        "ON CONFLICT (id) DO UPDATE SET amount = 7.5",
                        [order, other],
                    )
                case 4:
                    connection.execute("UPDATE customers SET region = 'r' || %s WHERE id = %s", [order % 20, other])
                case 5:
                    note = "y" * self.random.randint(0, 4000)
                    connection.execute("UPDATE orders SET note = %s WHERE id = %s", [note, order])
                case _:
                    connection.execute("UPDATE orders SET amount = amount + 1 WHERE id = %s", [order])

    def stop(self) -> None:
        self.ending.set()
        self.join(60)


def project(folder: Path, url: str) -> Path:
    text = {
        "project": "shop",
        "tables": {
            name: {"source": {"type": "postgres", "url": url, "table": name}} for name in ("orders", "customers")
        },
        "flows": {"revenue": {"sql": QUERY, "trigger": "200ms", "sinks": ["endpoint"]}},
        "serve": {"port": 0, "grpc_port": None, "workers": 1},
        "http": {"port": 0},
    }
    (folder / "headrace.yaml").write_text(json.dumps(text))
    return folder


class Engine:
    """`headrace run`, which can be killed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.client = client(timeout=10)
        self.start()

    def start(self) -> None:
        with (self.folder / "run.out").open("ab") as out:
            command = [sys.executable, "-m", "headrace", "run", str(self.folder)]
            self.process = subprocess.Popen(command, stdout=out, stderr=out)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(120)

    def works(self) -> bool:
        """Whether this engine, not the one before it, has done a batch."""
        try:
            said = json.loads((self.folder / ".headrace" / "status.json").read_text())
        except (FileNotFoundError, ValueError):
            return False
        return bool(said["engine"]["pid"] == self.process.pid and said["flow_list"] and said["flow_list"][0]["batches"])

    def served(self) -> dict[str, tuple[Any, ...]] | None:
        """What the endpoint has; nothing while nobody answers."""
        assert self.process.poll() is None, (self.folder / "run.out").read_text()[-3000:]
        node = read_node(self.folder / ".headrace" / "store")
        try:
            answer = self.client.get(f"{(node or {})['http']}/revenue?$limit=1000")
        except (httpx.HTTPError, KeyError, TypeError):
            return None
        if answer.status_code != 200:
            return None
        return {
            row["region"]: (Decimal(row["total"]), row["orders"], Decimal(row["most"]), row["letters"])
            for row in answer.json()
        }


def truth(url: str) -> dict[str, tuple[Any, ...]]:
    with psycopg.connect(url) as connection:
        return {row[0]: row[1:] for row in connection.execute(QUERY)}


def until(condition: Callable[[], bool], what: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} until {what[:80]}", flush=True)
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.2)


def copies(server: Postgres) -> int:
    """How often rows of a table were read as a whole, as the server's log tells."""
    lines = server.log_file.read_text(errors="replace").splitlines()
    return sum("statement: COPY" in line or "execute <unnamed>: COPY" in line for line in lines)


def test_a_view_of_postgres_equals_its_own_answer_whatever_dies(tmp_path: Path) -> None:
    print(f"seed {SEED}")
    rng = random.Random(SEED)  # repeats a run
    with database() as (server, url):
        writer = Writer(url, SEED)
        writer.start()
        engine = Engine(project(tmp_path, url))
        try:
            until(lambda: bool(engine.served()), "the view is served")
            read = copies(server)
            assert read >= 2, "both tables"
            for death in range(DEATHS):
                time.sleep(rng.uniform(0.2, 3.0))  # any moment will do
                engine.kill()
                engine.start()
                until(engine.works, f"it works again after death {death}")
            server.stop()
            server.start()
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute("ALTER TABLE orders ADD COLUMN rebate numeric(5,2)")
                connection.execute("UPDATE orders SET rebate = 1.5, amount = amount - 1.5 WHERE id % 50 = 0")
            before = writer.transactions
            until(lambda: writer.transactions > before + 100, "it is written on")
            writer.stop()
            wanted = truth(url)
            until(lambda: engine.served() == wanted, f"the view is to be {wanted}")
            assert engine.stop() == 0
        finally:
            writer.stop()
            if engine.process.poll() is None:
                engine.kill()
        assert copies(server) == read, "no rows are read again after a restart"
        print(f"{writer.transactions} transactions, {DEATHS} deaths, no violation")
    loaded = load(tmp_path)
    shapes = table_log(loaded.context, loaded.spec.tables["orders"].source.group).shapes()
    assert "rebate" in shapes["orders"].columns.names
