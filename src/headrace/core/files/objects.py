"""Objects of an S3-compatible store, with as much of pathlib's interface as state needs."""

from __future__ import annotations

import errno
import io
import os
import posixpath
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from obstore.store import S3Store

    from headrace.core.files.object_store import ObjectStore

SCHEME = "s3://"
_MAGIC = frozenset("*?[")
# an engine that cannot reach its store must know it before its lease is over
_ANSWER, _CONNECT, _RETRY = "10s", "5s", 12.0


class StoreError(OSError):
    """An object store that cannot be reached, or refuses to answer."""


@dataclass(frozen=True)
class About:
    """What is known about an object, under the names that `os.stat` uses."""

    st_size: int
    st_mtime: float
    e_tag: str | None = None

    @property
    def st_mtime_ns(self) -> int:
        """The time of its last change."""
        return round(self.st_mtime * 1_000_000_000)


@dataclass(frozen=True, order=True)
class ObjectPath:
    """An object, or all objects whose names begin with this one and a slash. Pickled to tasks with its store.

    Each object is written whole, in one step: readers see the old or the new one. Errors are those of local files.
    """

    store: ObjectStore = field(compare=False, repr=False)
    bucket: str
    key: str = ""
    _listed: About | None = field(default=None, compare=False, repr=False)

    @staticmethod
    def of(uri: str, store: ObjectStore) -> ObjectPath:
        """The path that `s3://bucket/key` means."""
        bucket, _, key = uri.removeprefix(SCHEME).partition("/")
        return ObjectPath(store, bucket, posixpath.normpath(key) if key.strip("/") else "")

    def __str__(self) -> str:
        return f"{SCHEME}{self.bucket}/{self.key}"

    def __truediv__(self, name: str) -> ObjectPath:
        return ObjectPath(self.store, self.bucket, f"{self.key}/{name}" if self.key else name)

    @property
    def name(self) -> str:
        """The last part."""
        return self.key.rpartition("/")[2]

    @property
    def parent(self) -> ObjectPath:
        """All but the last part."""
        return ObjectPath(self.store, self.bucket, self.key.rpartition("/")[0])

    def with_name(self, name: str) -> ObjectPath:
        """A neighbour."""
        return self.parent / name

    def absolute(self) -> ObjectPath:
        """Every object path is."""
        return self

    def mkdir(self, *, parents: bool = False, exist_ok: bool = False) -> None:
        """Nothing: a folder is there as long as something is in it."""

    def read_bytes(self) -> bytes:
        """The whole object."""
        with self._translated():
            return bytes(self._client.get(self.key).bytes())

    def read_text(self, encoding: str = "utf-8") -> str:
        """The whole object as text."""
        return self.read_bytes().decode(encoding)

    def open(self, mode: str = "rb") -> io.BytesIO:
        """The whole object, for reading."""
        assert mode == "rb", "objects are written whole"
        return io.BytesIO(self.read_bytes())

    def put(self, content: bytes | os.PathLike[str], *, new: bool = False, instead_of: str | None = None) -> str:
        """Write the whole object; gives its tag. FileExistsError when it was to be `new` and is not, or when the one
        that is there has another tag than `instead_of`."""
        mode: Any = "create" if new else {"e_tag": instead_of} if instead_of else "overwrite"
        with self._translated():
            # parts cannot be put under a condition
            whole = {"use_multipart": False} if isinstance(content, bytes) else {}
            done = self._client.put(self.key, content, mode=mode, **whole)  # type: ignore[arg-type]
        return done["e_tag"] or ""

    def copy_to(self, target: ObjectPath) -> None:
        """A copy made by the store itself, in the same bucket."""
        with self._translated():
            self._client.copy(self.key, target.key)

    def unlink(self, missing_ok: bool = True) -> None:
        """Remove the object. A store does not tell whether there was one."""
        with self._translated():
            self._client.delete(self.key)

    def stat(self) -> About:
        """Size and time; for one that was listed, as they were then."""
        return self._listed or self.look()

    def look(self) -> About:
        """Size, time and tag as they are now."""
        with self._translated():
            return _about(self._client.head(self.key))

    def is_file(self) -> bool:
        """Whether there is such an object."""
        try:
            self.stat()
        except FileNotFoundError:
            return False
        return True

    def is_dir(self) -> bool:
        """Whether anything is in it."""
        return next(self._children(), None) is not None

    def exists(self) -> bool:
        """Whether it is an object, or something is in it."""
        return self.is_file() or self.is_dir()

    def iterdir(self) -> Iterator[ObjectPath]:
        """What is in it; FileNotFoundError when nothing is."""
        found = list(self._children())
        if not found:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self))
        yield from found

    def glob(self, pattern: str) -> Iterator[ObjectPath]:
        """What matches, level by level: other branches are not listed."""
        first, _, rest = pattern.partition("/")
        if not _MAGIC & set(first):
            one = self / first
            if rest:
                yield from one.glob(rest)
            elif one.exists():
                yield one
            return
        for one in self._children():
            if fnmatchcase(one.name, first):
                if not rest:
                    yield one
                elif one._listed is None:
                    yield from one.glob(rest)

    def rglob(self, pattern: str) -> Iterator[ObjectPath]:
        """Objects at any depth whose last part matches."""
        with self._translated():
            entries = [entry for page in self._client.list(self._prefix) for entry in page]
        for entry in entries:
            one = ObjectPath(self.store, self.bucket, entry["path"], _about(entry))
            if fnmatchcase(one.name, pattern) and not one._marks_folder():
                yield one

    def _marks_folder(self) -> bool:
        """Whether it was listed for an empty object `name/`, which Hadoop puts for a folder and nobody can read."""
        if self._listed is None or self._listed.st_size:
            return False
        try:
            self.look()
        except FileNotFoundError:
            return True
        return False

    def _children(self) -> Iterator[ObjectPath]:
        with self._translated():
            found = self._client.list_with_delimiter(self._prefix)
        for prefix in found["common_prefixes"]:
            yield ObjectPath(self.store, self.bucket, prefix)
        for entry in found["objects"]:
            if entry["path"] != self.key:  # the mark of this very folder
                yield ObjectPath(self.store, self.bucket, entry["path"], _about(entry))

    @property
    def _prefix(self) -> str:
        return f"{self.key}/" if self.key else ""

    @property
    def _client(self) -> S3Store:
        return _client_of(self.store, self.bucket)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """What the client raises, as the error that a local file would give."""
        from obstore import exceptions as of_store

        try:
            yield
        except FileNotFoundError:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self)) from None
        except of_store.NotFoundError:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self)) from None
        except (of_store.AlreadyExistsError, of_store.PreconditionError):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(self)) from None
        except (of_store.PermissionDeniedError, of_store.UnauthenticatedError):
            raise StoreError(errno.EACCES, "the store refuses the access key", str(self)) from None
        except of_store.BaseError as error:
            raise StoreError(errno.EIO, _said(error), str(self)) from None


def _said(error: Exception) -> str:
    """What a client's error says, in one line: it goes on with its whole inner structure."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else type(error).__name__


def _about(entry: Any) -> About:
    return About(entry["size"], entry["last_modified"].timestamp(), entry["e_tag"])


@lru_cache(maxsize=16)
def _client_of(store: ObjectStore, bucket: str) -> S3Store:
    from datetime import timedelta

    from obstore.store import S3Store

    config: dict[str, Any] = {"region": store.place, "virtual_hosted_style_request": not store.in_path}
    if store.address is not None:
        config["endpoint"] = store.address
    if store.access_key is not None and store.secret_key is not None:
        config["access_key_id"] = store.access_key.get_secret_value()
        config["secret_access_key"] = store.secret_key.get_secret_value()
    return S3Store(
        bucket,
        config=config,  # type: ignore[arg-type]
        client_options={
            "timeout": _ANSWER,
            "connect_timeout": _CONNECT,
            "allow_http": (store.address or "").startswith("http://"),
        },
        retry_config={"max_retries": 4, "retry_timeout": timedelta(seconds=_RETRY)},
    )
