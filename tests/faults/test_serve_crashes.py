"""A serve node under attack: its applier killed with -9 at any moment, its files damaged, on and off.

Whatever happens, the store ends up as the log says, row for row and index entry for index entry, and nobody is ever
told anything else. `HEADRACE_SEED=n` repeats a run, `HEADRACE_FAULTS=full` makes it a long one.
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
from pathlib import Path
from typing import Any

import httpx
import lmdb
import pytest
from tests.serve.nodekit import ORDERS, PROJECT, Rows, changes, commit, defined, order, recomputed, until

from headrace.core.endpoints import OLD, OP, Op
from headrace.log.log import Log
from headrace.project.loader import load
from headrace.serve.base.settings import ServeProjectRef, Settings
from headrace.serve.base.status import read_status
from headrace.serve.replica.pointers import read_pointer
from headrace.store.endpoint.writer import StoreWriter
from headrace.store.rows.layout import KeyMaker, index_name

pytestmark = pytest.mark.service

FULL = os.environ.get("HEADRACE_FAULTS") == "full"
SEED = int(os.environ.get("HEADRACE_SEED", time.time_ns() % 10_000))
SEGMENTS, CHANGES = 100, 1000
DEATHS = 20 if FULL else 4
PATIENCE = 300.0


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "headrace.yaml").write_text(PROJECT)
    return tmp_path


@pytest.fixture
def settings(project: Path) -> Settings:
    return Settings.of(load(project))


def differences(log: Log, folder: Path) -> list[str]:
    """What a store has otherwise than a recompute of its log: rows, entries of indexes, number of changes, position."""
    rows, effects = expected(log)
    maker = KeyMaker(ORDERS)
    found: list[str] = []
    with lmdb.open(str(folder), readonly=True, max_dbs=64, lock=False) as env:
        databases = {name: env.open_db(name, create=False) for name in (b"rows", b"ix0", b"ix1", b"meta")}
        with env.begin() as txn:
            stored = {bytes(key): value for key, value in txn.cursor(databases[b"rows"])}
            wanted = {maker.row_key([key]): row for key, row in rows.items()}
            found += [f"row {key.hex()} is missing" for key in wanted.keys() - stored.keys()]
            found += [f"row {key.hex()} should not be there" for key in stored.keys() - wanted.keys()]
            for key in wanted.keys() & stored.keys():
                if json.loads(stored[key][12:]) != wanted[key]:
                    found.append(f"row {key.hex()} is {stored[key][12:]!r}")
            for number, columns in enumerate(ORDERS.indexes):
                entries = {bytes(entry) for entry, _ in txn.cursor(databases[index_name(number)])}
                right = {maker.value_key(number, [row[one] for one in columns]) + k for k, row in wanted.items()}
                if entries != right:
                    found.append(f"index {number}: {len(right - entries)} missing, {len(entries - right)} left over")
    try:
        writer = StoreWriter.open(folder, ORDERS)
    except Exception as error:  # whatever it is, it is a finding
        return [*found, str(error)]
    try:
        found += [] if writer.version == effects else [f"{writer.version} changes instead of {effects}"]
        found += [] if writer.position == log.end() else [f"position {writer.position} instead of {log.end()}"]
        writer.verify()
    except Exception as error:
        found.append(str(error))
    finally:
        writer.close()
    return found


def expected(log: Log) -> tuple[Rows, int]:
    """The rows that the log makes, and how many of its changes have an effect."""
    rows: Rows = {}
    effects = 0
    for segment in log.after(0, 1_000_000):
        for batch in log.changes(segment):
            for row in batch.to_pylist():
                op, key = row.pop(OP), row["id"]
                row.pop(OLD)
                if op == Op.DELETE:
                    effects += rows.pop(key, None) is not None
                elif rows.get(key) != row:
                    rows[key] = row
                    effects += 1
    return rows, effects


@contextmanager
def applier(project: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The applier of a node, as the node starts it."""
    environment = {**os.environ, **ServeProjectRef(project).environment()}
    command = [sys.executable, "-m", "headrace.serve.replica.applier"]
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def position(settings: Settings) -> int:
    found = read_status(settings.store).endpoints.get("orders", {}).get("position")
    return int(found or 0)


def served_folder(settings: Settings) -> Path:
    home = settings.store / "orders"
    return home / str(read_pointer(home).folder(None))


def test_killed_while_100_000_changes_flow_in(project: Path, settings: Settings) -> None:
    print(f"seed {SEED}")
    chance = random.Random(SEED)
    log = defined(settings)
    writing = threading.Thread(target=write, args=(log, random.Random(SEED + 1)))
    writing.start()
    for _ in range(DEATHS):
        goal = position(settings) + chance.randrange(1, SEGMENTS // DEATHS)
        with applier(project) as process:
            until(lambda goal=goal: position(settings) >= min(goal, log.end()) > 0, PATIENCE)
            time.sleep(chance.random() * 0.05)  # at any point of a segment, not just after one
            process.kill()
    writing.join()
    assert log.end() == SEGMENTS
    with applier(project) as process:
        until(lambda: position(settings) == SEGMENTS, PATIENCE)
        process.terminate()
        process.wait(30)
    assert differences(log, served_folder(settings)) == []


def write(log: Log, chance: random.Random) -> None:
    """Many keys, inserted, changed, set to what they are, deleted and inserted again."""
    for number in range(SEGMENTS):
        batch = [order(chance.randrange(5000), chance.choice("abc"), chance.randrange(50)) for _ in range(CHANGES)]
        keep, gone = batch[: CHANGES * 9 // 10], batch[CHANGES * 9 // 10 :]
        commit(log, number, changes(keep), changes(gone, Op.DELETE))


def test_the_checker_sees_what_it_should(settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Two faults that a store could have: entries that stay, and a position that is there before its rows."""
    log = defined(settings)
    commit(log, 0, changes([order(number, "new") for number in range(100)]))
    commit(log, 1, changes([order(number, "paid") for number in range(100)]))
    segments = log.after(0)

    def applied(folder: str, *, of: Callable[[StoreWriter, int], None]) -> list[str]:
        writer = StoreWriter.open(tmp_path / folder, ORDERS)
        for segment in segments:
            of(writer, segment.position)
        writer.close()
        return differences(log, tmp_path / folder)

    def rightly(writer: StoreWriter, number: int) -> None:
        writer.apply(number, log.changes(segments[number - 1]))

    def position_first(writer: StoreWriter, number: int) -> None:
        if number == 1:  # as if it had died between the two
            writer.apply(number, [])
        rightly(writer, number)

    assert applied("right", of=rightly) == []
    assert any("missing" in one or "changes" in one for one in applied("ahead", of=position_first))
    forget_nothing(monkeypatch)
    assert any("left over" in one for one in applied("stale", of=rightly))


def forget_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries of indexes are put in and never taken out."""
    from headrace.store.endpoint import fill

    delete = fill.Fill._delete

    def only_rows(self: Any, name: bytes, keys: Any) -> None:
        if not name.startswith(b"ix"):
            delete(self, name, keys)

    monkeypatch.setattr(fill.Fill, "_delete", only_rows)


def random_bytes(data: bytearray, chance: random.Random) -> None:
    for _ in range(200):
        data[chance.randrange(8192, len(data))] = chance.randrange(256)


def truncated(data: bytearray, chance: random.Random) -> None:
    del data[len(data) // 2 :]


def zeroed_page(data: bytearray, chance: random.Random) -> None:
    """The page with a row that is asked for."""
    start = data.index(b'{"id":1234,') // 4096 * 4096
    data[start : start + 4096] = bytes(4096)


@contextmanager
def node(project: Path) -> Iterator[str]:
    """The address of a running node."""
    command = [sys.executable, "-m", "headrace", "serve", str(project), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())["http"]
        finally:
            process.send_signal(signal.SIGTERM)


def all_right(address: str, rows: Rows) -> bool:
    """Whether every row is answered; one that is answered otherwise than it is must never be."""
    complete = True
    with httpx.Client(base_url=address, timeout=60) as client:
        for key in range(0, 2000, 7):
            answer = patiently(client, f"/orders/{key}")
            if answer is None or answer.status_code == 503:
                complete = False
                continue
            assert (answer.status_code, answer.json()) == (200, rows[key])
    return complete


def patiently(client: httpx.Client, path: str) -> httpx.Response | None:
    try:
        return client.get(path)
    except httpx.TransportError:  # a worker that read damaged pages has died of it; another takes its place
        time.sleep(0.05)
        return None


def test_a_damaged_store_is_found_and_built_anew_and_nothing_wrong_is_served(project: Path, settings: Settings) -> None:
    print(f"seed {SEED}")
    chance = random.Random(SEED)
    log = defined(settings)
    commit(log, 0, changes([order(number, f"state {number}", number) for number in range(2000)]))
    rows = recomputed(log)
    with node(project) as address:
        until(lambda: all_right(address, rows), PATIENCE)
    for harm in (random_bytes, truncated, zeroed_page):
        folder = max((settings.store / "orders").glob("v1-*"), key=lambda one: one.stat().st_mtime)
        data = bytearray((folder / "data.mdb").read_bytes())
        harm(data, chance)
        (folder / "data.mdb").write_bytes(data)
        with node(project) as address:
            until(lambda address=address: all_right(address, rows), PATIENCE)
            assert served_folder(settings) != folder, harm.__name__
    assert differences(log, served_folder_of(settings)) == []


def served_folder_of(settings: Settings) -> Path:
    """The only copy that is left of a node that has ended."""
    (found,) = (settings.store / "orders").glob("v1-*")
    return found
