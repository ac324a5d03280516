"""A file that was damaged while nobody looked is found out: what is read is right, or it is told that it is not."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import lmdb
import pyarrow as pa
import pytest

from headrace.core.endpoints import Endpoint
from headrace.core.schema import from_ddl
from headrace.store.endpoint.reader import StoreReader
from headrace.store.endpoint.writer import StoreWriter
from headrace.store.lmdb.errors import StoreDamagedError
from headrace.store.lmdb.pages import check_pages
from headrace.store.rows.layout import FILE, sum_of_entries

THINGS = Endpoint(
    "things",
    from_ddl("id bigint, name string, note string, size int"),
    key=("id",),
    indexes=(("name",), ("size", "name")),
    text=("name",),
)
ROWS = 120
PAGE = 4096


def batch(turn: int) -> pa.RecordBatch:
    """Some notes are so long that they get pages of their own."""
    rows = [
        {
            "__op": 0,
            "id": at,
            "name": f"thing {at % 40} {turn}",
            "note": "long " * (600 if at % 50 == 0 else 4),
            "size": at % 11,
        }
        for at in range(turn % 3, ROWS, turn % 3 + 1)
    ]
    gone = [{"__op": 3, "id": at} for at in range(turn, ROWS, 17)]
    return pa.RecordBatch.from_pylist(rows + gone, THINGS.changes)


def fill(folder: Path, turns: int = 4) -> Path:
    writer = StoreWriter.open(folder, THINGS, events=50)
    for turn in range(turns):
        writer.apply(turn + 1, [batch(turn)])
    writer.verify()
    writer.close()
    return folder


def contents(folder: Path) -> list[Any]:
    """All that is in a store, read in every way that there is."""
    reader = StoreReader.open(folder)
    try:
        with reader.transaction() as transaction:
            found: list[Any] = [
                transaction.position,
                transaction.version,
                transaction.rows,
                list(transaction.scan()),
                transaction.events(0),
            ]
            found += [transaction.get([at]) for at in range(ROWS)]
            for name in (b"ix0", b"ix1", b"text"):
                entries = list(transaction.txn.cursor(db=transaction.databases[name]))
                found.append(
                    [(entry, transaction.txn.get(entry, db=transaction.databases[name])) for entry, _ in entries]
                )
    finally:
        reader.close()
    return found


def open_and_read(folder: Path) -> list[Any]:
    writer = StoreWriter.open(folder, THINGS, events=50)
    try:
        return contents(folder)
    finally:
        writer.close()


def damage_and_read(folder: Path, scratch: Path, seed: int, times: int) -> dict[str, int]:
    """Open copies with a few bytes changed: each gives what the sound one does, or is told to be damaged.

    Or what it gave before its last transaction, when it is the file's head that makes that look like the newest: with
    its position, from which the log goes on.
    """
    draw = random.Random(seed)
    sound = {4: open_and_read(folder), 3: open_and_read(fill(scratch, 3))}
    data = (folder / FILE).read_bytes()
    seen = {"sound": 0, "damaged": 0}
    for _ in range(times):
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
        broken = bytearray(data)
        for _ in range(draw.choice((1, 1, 1, 8))):
            anywhere, in_head = (
                draw.randrange(len(data)),
                draw.randrange(len(data) // PAGE) * PAGE + draw.randrange(160),
            )
            at = draw.choice((anywhere, in_head, draw.randrange(2 * PAGE) % 160, PAGE + draw.randrange(160)))
            broken[at] ^= draw.choice((1, 2, 4, 8, 16, 32, 64, 128, 255))
        if draw.random() < 0.1:
            del broken[draw.randrange(len(data)) :]
        (scratch / FILE).write_bytes(broken)
        try:
            found = open_and_read(scratch)
            assert found == sound[found[0]]
            seen["sound"] += 1
        except StoreDamagedError:
            seen["damaged"] += 1
    return seen


@pytest.mark.service
def test_a_changed_byte_is_found_out_or_does_no_harm(tmp_path: Path) -> None:
    fill(tmp_path / "sound")
    code = (
        "import sys; from pathlib import Path; from tests.store.endpoint.test_damage import damage_and_read as run;"
        "found = run(Path(sys.argv[1]), Path(sys.argv[2]), 7, 40); print(found); assert found['damaged'] > 12"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "sound"), str(tmp_path / "scratch")]
    # in a process of its own: LMDB that falls over a damaged page takes its process with it
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, cwd=Path.cwd())
    assert done.returncode == 0, done.stderr[-2000:]


def test_a_file_that_is_none_or_was_cut_off_is_told(tmp_path: Path) -> None:
    for content in (b"", b"no store at all" * 1000, (fill(tmp_path / "sound") / FILE).read_bytes()[:20_000]):
        (tmp_path / FILE).write_bytes(content)
        with pytest.raises(StoreDamagedError):
            check_pages(tmp_path / FILE)
        with pytest.raises(StoreDamagedError):
            StoreWriter.open(tmp_path, THINGS)
    with pytest.raises(StoreDamagedError):
        StoreReader.open(tmp_path / "nothing")


@pytest.mark.parametrize(
    ("name", "told"), [(b"ix0", "index 0"), (b"text", "words"), (b"rows", "rows"), (b"events", "numbers")]
)
def test_what_is_missing_is_found(tmp_path: Path, name: bytes, told: str) -> None:
    fill(tmp_path)
    with lmdb.open(str(tmp_path), max_dbs=16, map_size=1 << 30) as env, env.begin(write=True) as txn:
        cursor = txn.cursor(db=env.open_db(name, txn=txn))
        cursor.first()
        cursor.next()
        cursor.delete()
    with pytest.raises(StoreDamagedError, match=told):
        StoreWriter.open(tmp_path, THINGS)


def test_an_entry_that_is_not_of_a_row_is_found(tmp_path: Path) -> None:
    """Also when all sums fit, as if it had been written by mistake."""
    fill(tmp_path)
    writer = StoreWriter.open(tmp_path, THINGS)
    env, state = writer._environment.lmdb, writer._state
    with env.begin(write=True) as txn, txn.cursor(db=writer._databases[b"ix0"]) as cursor:
        cursor.first()
        entry, length = cursor.item()
        cursor.delete()
        cursor.put(b"\xff" + entry, length)
        state.sums[b"ix0"] += sum_of_entries([(b"\xff" + entry, length)]) - sum_of_entries([(entry, length)])
        txn.put(b"state", state.pack(), db=writer._databases[b"meta"])
    with pytest.raises(StoreDamagedError, match="do not fit the rows"):
        writer.verify()
    writer.close()


def test_a_row_whose_sum_does_not_fit_is_not_served(tmp_path: Path) -> None:
    fill(tmp_path)
    writer = StoreWriter.open(tmp_path, THINGS)
    reader = StoreReader.open(tmp_path)
    with reader.transaction() as transaction:
        row = next(transaction.scan())
    with writer._environment.lmdb.begin(write=True) as txn:
        packed = bytearray(txn.get(row.key, db=writer._databases[b"rows"]))
        packed[-3] ^= 1
        txn.put(row.key, bytes(packed), db=writer._databases[b"rows"])
    with reader.transaction() as transaction:
        with pytest.raises(StoreDamagedError):
            transaction.row(row.key)
        with pytest.raises(StoreDamagedError):
            next(transaction.scan())
    with pytest.raises(StoreDamagedError):
        writer.verify()
    reader.close()
    writer.close()
