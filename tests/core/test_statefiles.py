"""Files of a state folder behave alike on a disk and on an object store."""

from __future__ import annotations

import pickle
from contextlib import suppress
from pathlib import Path

import pytest
from obstore.store import MemoryStore
from pydantic import ValidationError

from headrace.core.context import Context
from headrace.core.errors import ProjectError
from headrace.core.files import objects
from headrace.core.files.object_store import ObjectStore
from headrace.core.files.objects import ObjectPath
from headrace.core.files.state_files import (
    StatePath,
    atomic_folder,
    copy_tree,
    in_order,
    remove_atomically,
    remove_tree,
    spark_path,
    state_path,
    write_atomically,
    write_if_absent,
)


@pytest.fixture(params=["disk", "objects"])
def folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StatePath:
    """A folder of each kind. The second is the client's own store in memory."""
    if request.param == "disk":
        return tmp_path / "state"
    store = MemoryStore()
    monkeypatch.setattr(objects, "_client_of", lambda _store, _bucket: store)
    return state_path("s3://bucket/a/state", ObjectStore())


def names(paths: object) -> list[str]:
    return [path.name for path in in_order(paths)]  # type: ignore[arg-type]


def test_a_file_is_written_whole_and_read_again(folder: StatePath) -> None:
    file = folder / "a" / "b.json"
    assert not file.exists()
    with pytest.raises(FileNotFoundError):
        file.read_bytes()
    write_atomically(file, b"one")
    write_atomically(file, "zwei ü".encode())
    assert file.read_text(encoding="utf-8") == "zwei ü"
    assert file.is_file()
    assert not file.is_dir()
    assert (folder / "a").is_dir()
    assert not (folder / "a").is_file()
    assert file.stat().st_size == 7
    assert names((folder / "a").iterdir()) == ["b.json"]
    with file.open("rb") as opened:
        opened.seek(-2, 2)
        assert opened.read().decode() == "ü"


def test_only_the_first_of_several_writers_has_its_way(folder: StatePath) -> None:
    pin = folder / "pins" / "1"
    write_if_absent(pin, b"first")
    write_if_absent(pin, b"second")
    assert pin.read_bytes() == b"first"
    assert names((folder / "pins").iterdir()) == ["1"]


def test_what_is_looked_for_is_found_level_by_level(folder: StatePath) -> None:
    for name in ("g1/manifest.json", "g2/manifest.json", "g2/deep/x.parquet", "g2/deep/.hidden.parquet", "current"):
        write_atomically(folder / "flow" / name, b"x")
    flow = folder / "flow"
    assert [file.parent.name for file in in_order(flow.glob("*/manifest.json"))] == ["g1", "g2"]
    assert names(flow.glob("*/*/[!.]*.parquet")) == ["x.parquet"]
    assert names(flow.rglob("[!.]*.parquet")) == ["x.parquet"]
    assert names(one for one in flow.glob("*") if one.is_dir()) == ["g1", "g2"]
    assert names((folder / "nothing").glob("*/x")) == []
    assert names((folder / "nothing").rglob("*")) == []
    with pytest.raises(FileNotFoundError):
        list((folder / "nothing").iterdir())


def test_a_folder_appears_whole_and_vanishes(folder: StatePath) -> None:
    saved = folder / "savepoints" / "s1"
    with suppress(ZeroDivisionError), atomic_folder(saved) as draft:
        write_atomically(draft / "data", b"half")
        raise ZeroDivisionError
    assert not (saved / "note.json").exists()
    with atomic_folder(saved) as draft:
        write_atomically(draft / "checkpoint" / "offsets" / "0", b"v1")
        write_atomically(draft / "note.json", b"{}")
    assert names((folder / "savepoints").glob("[!.]*/note.json")) == ["note.json"]
    assert names(one for one in saved.rglob("*") if one.is_file()) == ["0", "note.json"]  # nothing of the half one
    remove_atomically(saved, "note.json")
    assert not saved.exists()
    assert names((folder / "savepoints").glob("[!.]*")) == []


def test_a_copy_stands_by_itself(folder: StatePath) -> None:
    for name in ("offsets/0", "state/0/1.changelog", "metadata"):
        write_atomically(folder / "checkpoint" / name, name.encode())
    copy_tree(folder / "checkpoint", folder / "copy" / "checkpoint")
    remove_tree(folder / "checkpoint")
    remove_tree(folder / "checkpoint")  # gone already
    assert not (folder / "checkpoint").exists()
    copied = folder / "copy" / "checkpoint"
    assert (copied / "state" / "0" / "1.changelog").read_bytes() == b"state/0/1.changelog"
    (copied / "metadata").unlink()
    assert not (copied / "metadata").is_file()


def test_a_path_goes_to_tasks_and_comes_back(folder: StatePath) -> None:
    write_atomically(folder / "x", b"1")
    there: StatePath = pickle.loads(pickle.dumps(folder / "x"))  # noqa: S301
    assert there == folder / "x"
    assert there.read_bytes() == b"1"


def test_spark_is_told_in_its_own_words(tmp_path: Path) -> None:
    assert spark_path(state_path("s3://bucket/a b/c/", ObjectStore())) == "s3a://bucket/a b/c"
    assert spark_path(tmp_path / "a b") == f"file://{tmp_path}/a b"


@pytest.mark.parametrize("state", ["gs://bucket/path", "s3a://bucket/path", "hdfs://host/path", "s3://", "s3:///x/"])
def test_other_places_are_refused_with_what_works(state: str) -> None:
    with pytest.raises(ProjectError) as refused:
        _ = Context(Path("/p"), state).state_path
    assert refused.value.code == "state-place"
    assert "s3://BUCKET/PATH" in str(refused.value.hint)


def test_keys_are_in_no_text() -> None:
    store = ObjectStore.model_validate({"access_key": "AKIAKEY", "secret_key": "topsecret", "endpoint": "http://h:1"})
    path = ObjectPath.of("s3://b/k", store)
    for text in (repr(store), str(path), repr(path), repr(Context(Path("/p"), "s3://b/k", store=store))):
        assert "topsecret" not in text
        assert "AKIAKEY" not in text
    assert store.hadoop_settings()["fs.s3a.secret.key"] == "topsecret"
    assert store.hadoop_settings()["fs.s3a.path.style.access"] == "true"
    with pytest.raises(ValidationError, match="belong together"):
        ObjectStore.model_validate({"access_key": "only"})


def test_what_is_not_said_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    plain = ObjectStore().hadoop_settings()
    assert (plain["fs.s3a.endpoint.region"], plain["fs.s3a.path.style.access"]) == ("us-east-1", "false")
    assert not {"fs.s3a.endpoint", "fs.s3a.access.key"} & plain.keys()
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    there = ObjectStore().hadoop_settings()
    assert (there["fs.s3a.endpoint"], there["fs.s3a.endpoint.region"]) == ("http://127.0.0.1:9", "eu-west-1")
