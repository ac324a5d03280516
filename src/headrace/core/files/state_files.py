"""Files of a state folder, whether it is local or on an object store: there whole or not at all.

A local file appears by a rename. An object is put in one step; a folder of them, which nothing can rename, counts from
the moment when the one file is there that makes it what it is, and that is written last and removed first.
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
    """The folder that `state:` of a project means."""
    if "://" not in state:
        return Path(state)
    if not state.startswith(SCHEME) or not state.removeprefix(SCHEME).partition("/")[0]:
        raise ProjectError(
            "state-place",
            f"state cannot be kept in '{state}'",
            hint="name a folder (on a cluster, one that all nodes have mounted), or s3://BUCKET/PATH for an "
            "S3-compatible object store",
        )
    return ObjectPath.of(state, store)


def spark_path(path: StatePath) -> str:
    """How Spark is told of a path. Not as a URI proper: Hadoop takes `%20` for just that."""
    return f"s3a://{path.bucket}/{path.key}" if isinstance(path, ObjectPath) else f"file://{path.absolute()}"


def in_order(paths: Iterable[StatePath]) -> list[StatePath]:
    """Sorted by their names."""
    return sorted(paths, key=str)


def names_in(folder: StatePath) -> list[str]:
    """The names of all files in a folder; none if it does not exist."""
    try:
        return [path.name for path in folder.iterdir()]
    except FileNotFoundError:
        return []


def write_atomically(file: StatePath, content: bytes, *, durable: bool = True, private: bool = False) -> None:
    """Write a small file so that readers see all of it or nothing, also after a crash when it is to be durable.

    No other user of the machine can read one that is private; who may read a bucket is said there.
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
        with suppress(OSError):  # on a full disk even half a file is too much
            scratch.unlink(missing_ok=True)
        raise


def write_first(file: StatePath, content: bytes) -> None:
    """Write a small file unless it is there already: of several writers only the first has its way."""
    write_new(file, content, durable=False)


def write_new(file: StatePath, content: bytes, *, durable: bool = True) -> bool:
    """Write a small file unless it is there already; whether it was this writer that had its way."""
    if isinstance(file, ObjectPath):
        with suppress(FileExistsError):
            file.put(content, new=True)
            return True
        return False
    file.parent.mkdir(parents=True, exist_ok=True)
    scratch = _scratch(file)
    try:
        _write_out(scratch, content, durable)
        os.link(scratch, file)  # unlike a rename it fails when another was faster
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
def appearing(folder: StatePath) -> Iterator[StatePath]:
    """A folder to fill that is there when the block ends, or not at all.

    What tells that it is there must be written last: on an object store the others are there before.
    """
    if isinstance(folder, ObjectPath):
        remove_tree(folder)  # of one that was begun and not finished
        yield folder
        return
    draft = folder.with_name(f".{folder.name}.{uuid.uuid4().hex[:8]}")
    draft.mkdir(parents=True)
    yield draft
    _make_durable(draft)
    os.replace(draft, folder)


def vanish(folder: StatePath, told_by: str) -> None:
    """Remove a folder in one step; `told_by` is the file in it that tells that it is there."""
    if isinstance(folder, ObjectPath):
        (folder / told_by).unlink()
        remove_tree(folder)
        return
    gone = folder.with_name(f".{folder.name}.{uuid.uuid4().hex[:8]}")
    os.replace(folder, gone)
    shutil.rmtree(gone)


def remove_tree(folder: StatePath) -> None:
    """Remove all that is in a folder, and the folder; it may be gone already."""
    if not isinstance(folder, ObjectPath):
        shutil.rmtree(folder, ignore_errors=True)
        return
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(ObjectPath.unlink, list(folder.rglob("*"))))


def copy_tree(source: StatePath, target: StatePath) -> None:
    """A copy of a checkpoint: Spark never changes a file, it only adds and removes some.

    It costs no room on a local file system that has hard links; an object store copies by itself.
    """
    if isinstance(source, ObjectPath):
        assert isinstance(target, ObjectPath), "both are parts of one state folder"
        found = list(source.rglob("*"))
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            list(pool.map(lambda one: one.copy_to(target / one.key.removeprefix(f"{source.key}/")), found))
        return
    assert isinstance(target, Path), "both are parts of one state folder"
    shutil.copytree(source, target, copy_function=_link_or_copy)


def copy_file(source: StatePath, target: StatePath) -> None:
    """A copy of a file that is never changed, unless it is there; as cheap as that of a tree."""
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
    """Make sure that all that is in a folder survives a crash. Objects do from the start."""
    if isinstance(folder, Path):
        _make_durable(folder)


def _make_durable(folder: Path) -> None:
    for path in (*folder.rglob("*"), folder):
        sync(path)


def sync(path: StatePath) -> None:
    """Make sure that a file's content, or the names in a folder, survive a crash. Objects do from the start."""
    if isinstance(path, ObjectPath):
        return
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
