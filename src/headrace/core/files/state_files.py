"""Atomic files and folders of the state folder, on a local disk or an object store.

A local file or folder appears by a rename. An object is written in one step. A folder of objects cannot be renamed: it
exists while its marker file exists, which is written last and removed first.
"""

from __future__ import annotations

import os
import shutil
import threading
import uuid
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.core.errors import ProjectError
from headrace.core.files.objects import SCHEME, ObjectPath

if TYPE_CHECKING:
    from headrace.core.files.object_store import ObjectStore

StatePath = Path | ObjectPath
_AT_ONCE = 16
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC


def state_path(state: str, store: ObjectStore) -> StatePath:
    """Return the folder of `state:` in a project. Raises ProjectError `state-place` for an unsupported URL."""
    if "://" not in state:
        return Path(state)
    if not state.startswith(SCHEME) or not state.removeprefix(SCHEME).partition("/")[0]:
        raise ProjectError(
            "state-place",
            f"'{state}' is not a supported location for state",
            hint="use a folder (on a cluster, one that all nodes mount), or s3://BUCKET/PATH for an "
            "S3-compatible object store",
        )
    return ObjectPath.of(state, store)


def spark_path(path: StatePath) -> str:
    """Return a path for Spark. It is not percent-encoded, because Hadoop reads `%20` literally."""
    return f"s3a://{path.bucket}/{path.key}" if isinstance(path, ObjectPath) else f"file://{path.absolute()}"


def in_order(paths: Iterable[StatePath]) -> list[StatePath]:
    """Return the paths sorted by name."""
    return sorted(paths, key=str)


def names_in(folder: StatePath) -> list[str]:
    """The names of all files in a folder; none if it does not exist."""
    try:
        return [path.name for path in folder.iterdir()]
    except FileNotFoundError:
        return []


def write_atomically(file: StatePath, content: bytes, *, durable: bool = True, private: bool = False) -> None:
    """Write a small file so that readers see all of it or nothing; with `durable`, also after a crash.

    With `private`, other users of the machine cannot read the file. Objects follow the policy of their bucket.
    """
    if isinstance(file, ObjectPath):
        file.put(content)
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    scratch = _scratch(file)
    try:
        _write_out(scratch, content, durable, 0o600 if private else 0o666)
        os.replace(scratch, file)
    except OSError:
        with suppress(OSError):  # a full disk needs the space of the incomplete file
            scratch.unlink(missing_ok=True)
        raise


def write_if_absent(file: StatePath, content: bytes) -> None:
    """Write a small file unless it exists: of several writers, only the first writes."""
    write_new(file, content, durable=False)


def write_new(file: StatePath, content: bytes, *, durable: bool = True) -> bool:
    """Write a small file unless it exists; return whether this call wrote it."""
    if isinstance(file, ObjectPath):
        with suppress(FileExistsError):
            file.put(content, new=True)
            return True
        return False
    file.parent.mkdir(parents=True, exist_ok=True)
    scratch = _scratch(file)
    try:
        _write_out(scratch, content, durable)
        os.link(scratch, file)  # unlike a rename, it fails when another writer was faster
    except FileExistsError:
        return False
    finally:
        scratch.unlink(missing_ok=True)
    if durable:
        sync(file.parent)
    return True


def _scratch(file: Path) -> Path:
    return file.with_name(f".{file.name}.{os.getpid()}.{threading.get_ident()}")


def _write_out(file: Path, content: bytes, durable: bool, mode: int = 0o666) -> None:
    with os.fdopen(os.open(file, _WRITE, mode), "wb") as out:
        out.write(content)
        out.flush()
        if durable:
            os.fsync(out.fileno())


@contextmanager
def atomic_folder(folder: StatePath) -> Iterator[StatePath]:
    """Give a folder to fill, which appears when the block ends without an error.

    Write the marker file last: on an object store the other files are visible before the block ends.
    """
    if isinstance(folder, ObjectPath):
        remove_tree(folder)  # the rest of an unfinished attempt
        yield folder
        return
    draft = folder.with_name(f".{folder.name}.{uuid.uuid4().hex[:8]}")
    draft.mkdir(parents=True)
    yield draft
    _make_durable(draft)
    os.replace(draft, folder)


def remove_atomically(folder: StatePath, marker: str) -> None:
    """Remove a folder in one step. `marker` is the file in it that makes it exist on an object store."""
    if isinstance(folder, ObjectPath):
        (folder / marker).unlink()
        remove_tree(folder)
        return
    removed = folder.with_name(f".{folder.name}.{uuid.uuid4().hex[:8]}")
    os.replace(folder, removed)
    shutil.rmtree(removed)


def remove_tree(folder: StatePath) -> None:
    """Remove a folder and its content. A missing folder is not an error."""
    if not isinstance(folder, ObjectPath):
        shutil.rmtree(folder, ignore_errors=True)
        return
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(ObjectPath.unlink, list(folder.rglob("*"))))


def copy_tree(source: StatePath, target: StatePath) -> None:
    """Copy a folder of files that are never changed, such as a checkpoint.

    A local file system with hard links needs no further disk space; an object store copies without a download.
    """
    if isinstance(source, ObjectPath):
        assert isinstance(target, ObjectPath), "both are parts of one state folder"
        objects = list(source.rglob("*"))
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            list(pool.map(lambda path: path.copy_to(target / path.key.removeprefix(f"{source.key}/")), objects))
        return
    assert isinstance(target, Path), "both are parts of one state folder"
    shutil.copytree(source, target, copy_function=_link_or_copy)


def copy_file(source: StatePath, target: StatePath) -> None:
    """Copy a file that is never changed, unless the target exists; as cheap as `copy_tree`."""
    if isinstance(source, ObjectPath):
        assert isinstance(target, ObjectPath), "both are on one store"
        source.copy_to(target)
        return
    assert isinstance(target, Path), "both are on one disk"
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.exists():
        _link_or_copy(str(source), str(target))


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def make_durable(folder: StatePath) -> None:
    """Make sure that a folder and its content survive a crash. Objects always do."""
    if isinstance(folder, Path):
        _make_durable(folder)


def _make_durable(folder: Path) -> None:
    for path in (*folder.rglob("*"), folder):
        sync(path)


def sync(path: StatePath) -> None:
    """Make sure that the content of a file, or the names in a folder, survive a crash. Objects always do."""
    if isinstance(path, ObjectPath):
        return
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
