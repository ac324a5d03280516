"""LMDB environments: one per folder and process, as LMDB requires, shared by its readers and writers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import lmdb

from headrace.store.lmdb.errors import StoreClosedError, StoreDamagedError

MAP = 64 << 30
"""Size of the map before it must grow. The map reserves addresses, not disk or memory."""
_READERS, _DATABASES, _SPARE = 1022, 64, 16
_WAIT = 30.0
DAMAGE = (lmdb.CorruptedError, lmdb.InvalidError, lmdb.PageNotFoundError, lmdb.VersionMismatchError, lmdb.PanicError)

Transaction = Any
"""An LMDB transaction. LMDB's types leave open whether it returns bytes or buffers; here it always returns bytes."""

_open: dict[str, Environment] = {}
_guard = threading.Lock()


class Environment:
    """An open environment. Its map can grow only while this process has no open transaction."""

    def __init__(self, folder: Path, write: bool, size: int) -> None:
        self.folder = folder
        self.path = str(folder.resolve())
        self.write = write
        self.users = 0
        self._active = 0
        # each read takes the bare lock twice; only a thread that waits for readers to end uses the condition around it
        self._lock = threading.Lock()
        self._change = threading.Condition(self._lock)
        self._awaited = False
        with translate_damage():
            self.lmdb: Any = lmdb.open(
                str(folder),
                map_size=size,
                max_dbs=_DATABASES,
                max_readers=_READERS,
                max_spare_txns=_SPARE,
                readonly=not write,
                create=write,
                # a power failure can lose the whole last commit, with its position: the log still has it
                metasync=False,
            )

    def open_db(self, name: bytes) -> Any:
        """An existing database."""
        with translate_damage():
            if not self.write:
                return self.lmdb.open_db(name, create=False)
            # without a transaction the library waits for a writer while it holds the GIL, which blocks the writer's
            # thread too: a deadlock
            with self.lmdb.begin(write=True) as txn:
                return self.lmdb.open_db(name, txn=txn, create=False)

    @contextmanager
    def reading(self) -> Iterator[Transaction]:
        """A read transaction: a consistent snapshot of the store."""
        txn = self.begin()
        try:
            yield txn
        finally:
            self.end(txn)

    def begin(self) -> Transaction:
        """Begin a read transaction; the caller must call `end`."""
        while True:
            with self._lock:
                self._active += 1
            try:
                return self.lmdb.begin()
            except lmdb.MapResizedError:
                self._done()
                self._remap(0)
            except DAMAGE as error:
                self._done()
                raise StoreDamagedError(str(error)) from error
            except BaseException as error:
                closed = _open.get(self.path) is not self
                self._done()
                if closed:
                    raise StoreClosedError(f"{self.folder} is closed") from error
                raise

    def get(self, key: bytes, database: Any) -> bytes | None:
        """The value of a key, read in a transaction that covers this read only."""
        txn = self.begin()
        try:
            value: bytes | None = txn.get(key, db=database)
        except DAMAGE as error:
            raise StoreDamagedError(str(error)) from error
        finally:
            self.end(txn)
        return value

    def end(self, txn: Transaction) -> None:
        txn.abort()
        self._done()

    def grow(self) -> None:
        """Double the size of the map."""
        self._remap(2 * self.lmdb.info()["map_size"])

    def _remap(self, size: int) -> None:
        with self._change:
            self._awaited = True
            if not self._change.wait_for(lambda: self._active == 0, _WAIT):
                raise TimeoutError(f"the map of {self.folder} cannot grow while it is being read")
            self.lmdb.set_mapsize(size)

    def _done(self) -> None:
        with self._lock:
            self._active -= 1
            if self._awaited and self._active == 0:
                self._change.notify_all()
        if self.users == 0:
            _close_if_unused(self)

    @property
    def idle(self) -> bool:
        """Whether this process has no open transaction."""
        return self._active == 0


class _DamageTranslation:
    """A class instead of a generator because it is entered on every read."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, DAMAGE):
            raise StoreDamagedError(str(error)) from error


_translation = _DamageTranslation()


def translate_damage() -> AbstractContextManager[None]:
    """Raise LMDB's errors about a damaged file as StoreDamagedError."""
    return _translation


def acquire(folder: Path, *, write: bool = False, size: int = MAP) -> Environment:
    """The environment of a folder; the caller must call `release`."""
    path = str(folder.resolve())
    with _guard:
        environment = _open.get(path)
        if environment is None:
            environment = _open[path] = Environment(folder, write, size)
        elif write and not environment.write:
            raise RuntimeError(f"{folder} is already open for reading in this process: open it for writing first")
        environment.users += 1
        return environment


def release(environment: Environment) -> None:
    """Close the environment once it has no users and no open transactions."""
    with _guard:
        environment.users -= 1
    _close_if_unused(environment)


def _close_if_unused(environment: Environment) -> None:
    with _guard:
        path = environment.path
        if environment.users == 0 and environment.idle and _open.get(path) is environment:
            del _open[path]
            environment.lmdb.close()
