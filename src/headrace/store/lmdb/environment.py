"""LMDB environments: one per folder and process, as LMDB demands, shared by who reads and writes in it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import lmdb

from headrace.store.lmdb.errors import StoreClosedError, StoreDamagedError

MAP = 64 << 30
"""How much a store may hold before its map must grow. It is a range of addresses, neither disk nor memory."""
_READERS, _DATABASES, _SPARE = 1022, 64, 16
_WAIT = 30.0
DAMAGE = (lmdb.CorruptedError, lmdb.InvalidError, lmdb.PageNotFoundError, lmdb.VersionMismatchError, lmdb.PanicError)

Transaction = Any
"""One of LMDB's. Its own types leave open whether it gives bytes or views; here it is always asked for bytes."""

_open: dict[str, Environment] = {}
_guard = threading.Lock()


class Environment:
    """An open environment. Its map may only grow while no transaction of this process looks at it."""

    def __init__(self, folder: Path, write: bool, size: int) -> None:
        self.folder = folder
        self.path = str(folder.resolve())
        self.write = write
        self.users = 0
        self._active = 0
        # each read takes the bare lock twice; the condition around it only matters to who waits for readers to end
        self._lock = threading.Lock()
        self._change = threading.Condition(self._lock)
        self._awaited = False
        with damage_told():
            self.lmdb: Any = lmdb.open(
                str(folder),
                map_size=size,
                max_dbs=_DATABASES,
                max_readers=_READERS,
                max_spare_txns=_SPARE,
                readonly=not write,
                create=write,
                # the last commit may be lost with the power, whole: its position goes with it, and the log still has it
                metasync=False,
            )

    def open_db(self, name: bytes) -> Any:
        """A database that is there."""
        with damage_told():
            if not self.write:
                return self.lmdb.open_db(name, create=False)
            # without a transaction of ours the library waits for a writer while it keeps Python from running, the
            # writer's thread too: the process would stand still for ever
            with self.lmdb.begin(write=True) as txn:
                return self.lmdb.open_db(name, txn=txn, create=False)

    @contextmanager
    def reading(self) -> Iterator[Transaction]:
        """A transaction to read in: one moment of the store."""
        txn = self.begin()
        try:
            yield txn
        finally:
            self.end(txn)

    def begin(self) -> Transaction:
        """Begin to read; `end` must follow."""
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
        """What stands under a key, in a moment of its own."""
        txn = self.begin()
        try:
            found: bytes | None = txn.get(key, db=database)
        except DAMAGE as error:
            raise StoreDamagedError(str(error)) from error
        finally:
            self.end(txn)
        return found

    def end(self, txn: Transaction) -> None:
        """Be done with reading."""
        txn.abort()
        self._done()

    def grow(self) -> None:
        """Twice the room."""
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
        """Whether nobody looks at it."""
        return self._active == 0


class _DamageTold:
    """As a class, not a generator: it stands around every read."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, DAMAGE):
            raise StoreDamagedError(str(error)) from error


_damage_told = _DamageTold()


def damage_told() -> AbstractContextManager[None]:
    """What LMDB says about a damaged file, as an error of the store."""
    return _damage_told


def acquire(folder: Path, *, write: bool = False, size: int = MAP) -> Environment:
    """The environment of a folder; `release` must follow."""
    path = str(folder.resolve())
    with _guard:
        found = _open.get(path)
        if found is None:
            found = _open[path] = Environment(folder, write, size)
        elif write and not found.write:
            raise RuntimeError(f"{folder} is already open for reading in this process: open it for writing first")
        found.users += 1
        return found


def release(environment: Environment) -> None:
    """Close it if nobody else uses it, and when nobody looks at it any more."""
    with _guard:
        environment.users -= 1
    _close_if_unused(environment)


def _close_if_unused(environment: Environment) -> None:
    with _guard:
        path = environment.path
        if environment.users == 0 and environment.idle and _open.get(path) is environment:
            del _open[path]
            environment.lmdb.close()
