"""Snapshots: saved while the store goes on, restored from the newest good one, pruned."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from headrace.core.endpoints import Endpoint
from headrace.core.files.objects import ObjectPath
from headrace.core.schema import from_ddl
from headrace.store.endpoint import snapshot
from headrace.store.endpoint.reader import StoreReader
from headrace.store.endpoint.snapshot import MANIFEST, Snapshots
from headrace.store.endpoint.writer import StoreWriter
from headrace.testing.services import S3

THINGS = Endpoint("things", from_ddl("id bigint, name string"), key=("id",), indexes=(("name",),))


def batch(turn: int) -> pa.RecordBatch:
    rows = [{"__op": 0, "id": at, "name": f"{at} {turn}"} for at in range(200)]
    return pa.RecordBatch.from_pylist(rows, THINGS.changes)


@pytest.fixture
def writer(tmp_path: Path) -> StoreWriter:
    return StoreWriter.open(tmp_path / "store", THINGS)


def saved(writer: StoreWriter, snapshots: Snapshots, times: int) -> list[snapshot.StoreSnapshot]:
    found = []
    for turn in range(times):
        writer.apply(turn + 1, [batch(turn)])
        found.append(snapshots.save(writer))
    return found


def test_a_snapshot_is_the_store_as_it_was(
    tmp_path: Path, writer: StoreWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "_PIECE", 10_000)
    snapshots = Snapshots(tmp_path / "snapshots")
    assert snapshots.restore(THINGS, tmp_path / "new") is None
    (one,) = saved(writer, snapshots, 1)
    assert len(one.manifest.pieces) > 3
    writer.apply(2, [batch(5)])
    restored = snapshots.restore(THINGS, tmp_path / "new")
    assert restored is not None
    assert (restored.position, restored.manifest.rows) == (1, 200)
    second = StoreWriter.open(tmp_path / "new", THINGS)
    second.verify()
    assert (second.position, second.version) == (1, 200)
    # and goes on from there as the first did
    second.apply(2, [batch(5)])
    first_reader, second_reader = StoreReader.open(tmp_path / "store"), StoreReader.open(tmp_path / "new")
    with first_reader.transaction() as first, second_reader.transaction() as other:
        assert list(first.scan()) == list(other.scan())
        assert first.events(0) == other.events(0)
    first_reader.close()
    second_reader.close()
    second.close()
    writer.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "snapshots", "store"]


def test_a_damaged_one_is_passed_over(tmp_path: Path, writer: StoreWriter) -> None:
    snapshots = Snapshots(tmp_path / "snapshots")
    first, second, third, fourth, fifth = saved(writer, snapshots, 5)
    writer.close()
    assert isinstance(fifth.folder, Path)
    (fifth.folder / MANIFEST).unlink()
    assert isinstance(fourth.folder, Path)
    (fourth.folder / MANIFEST).write_text("{")
    assert isinstance(third.folder, Path)
    piece = third.folder / third.manifest.pieces[0].name
    piece.write_bytes(piece.read_bytes()[:-1] + b"?")
    assert isinstance(second.folder, Path)
    (second.folder / second.manifest.pieces[0].name).unlink()
    newest, restored = snapshots.newest(THINGS), snapshots.restore(THINGS, tmp_path / "new")
    assert newest is not None
    assert restored is not None
    assert (newest.position, restored.position) == (3, first.position)


def test_the_newest_are_kept(tmp_path: Path, writer: StoreWriter) -> None:
    snapshots = Snapshots(tmp_path / "snapshots")
    saved(writer, snapshots, 4)
    writer.close()
    assert snapshots.prune(THINGS, 2) == 2
    assert [one.position for one in snapshots.newest_first(THINGS)] == [4, 3]
    assert snapshots.prune(THINGS, 2) == 0


def test_of_another_definition_none_is_taken(tmp_path: Path, writer: StoreWriter) -> None:
    snapshots = Snapshots(tmp_path / "snapshots")
    saved(writer, snapshots, 1)
    writer.close()
    other = Endpoint("things", from_ddl("id bigint, name string, more int"), key=("id",), indexes=(("name",),))
    assert snapshots.restore(other, tmp_path / "new") is None


@pytest.mark.service
def test_snapshots_on_an_object_store(tmp_path: Path, writer: StoreWriter, s3: S3) -> None:
    s3.make_bucket("snapshots")
    snapshots = Snapshots(ObjectPath.of("s3://snapshots/of/project", s3.store))
    assert snapshots.newest(THINGS) is None
    *_, third = saved(writer, snapshots, 3)
    writer.close()
    assert snapshots.prune(THINGS, 2) == 1
    assert isinstance(third.folder, ObjectPath)
    (third.folder / third.manifest.pieces[0].name).put(b"damaged")
    restored = snapshots.restore(THINGS, tmp_path / "new")
    assert restored is not None
    assert restored.position == 2
    second = StoreWriter.open(tmp_path / "new", THINGS)
    second.verify()
    second.close()
