"""Objects of an S3-compatible store, with the part of pathlib's interface that state files need."""

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
# an engine that cannot reach its store must notice it before its lease expires
_ANSWER, _CONNECT, _RETRY = "10s", "5s", 12.0


class StoreError(OSError):
    """An object store cannot be reached or rejects a request."""


@dataclass(frozen=True)
class ObjectStat:
    """Size, time and tag of an object, with the field names of `os.stat`."""

    st_size: int
    st_mtime: float
    e_tag: str | None = None

    @property
    def st_mtime_ns(self) -> int:
        """The time of the last change in nanoseconds."""
        return round(self.st_mtime * 1_000_000_000)


@dataclass(frozen=True, order=True)
class ObjectPath:
    """The path of an object, or of a folder: all objects whose keys start with this key and a slash.

    An object is written in one step: readers see the old or the new one. Methods raise the errors of local files,
    and StoreError. Paths can be pickled to Spark tasks.
    """

    store: ObjectStore = field(compare=False, repr=False)
    bucket: str
    key: str = ""
    _listed: ObjectStat | None = field(default=None, compare=False, repr=False)

    @staticmethod
    def of(uri: str, store: ObjectStore) -> ObjectPath:
        """Parse `s3://bucket/key`."""
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
        return self.parent / name

    def absolute(self) -> ObjectPath:
        """Return the path itself: every object path is absolute."""
        return self

    def mkdir(self, *, parents: bool = False, exist_ok: bool = False) -> None:
        """Do nothing: a folder exists while it holds objects."""

    def read_bytes(self) -> bytes:
        with self._local_errors():
            return bytes(self._client.get(self.key).bytes())

    def read_text(self, encoding: str = "utf-8") -> str:
        return self.read_bytes().decode(encoding)

    def open(self, mode: str = "rb") -> io.BytesIO:
        """Read the whole object into a file-like buffer."""
        assert mode == "rb", "objects can only be opened for reading"
        return io.BytesIO(self.read_bytes())

    def put(self, content: bytes | os.PathLike[str], *, new: bool = False, instead_of: str | None = None) -> str:
        """Write the whole object and return its tag.

        Raises FileExistsError when `new` is set and the object exists, or when its current tag is not `instead_of`.
        """
        mode: Any = "create" if new else {"e_tag": instead_of} if instead_of else "overwrite"
        with self._local_errors():
            # a multipart upload cannot be conditional
            whole = {"use_multipart": False} if isinstance(content, bytes) else {}
            result = self._client.put(self.key, content, mode=mode, **whole)  # type: ignore[arg-type]
        return result["e_tag"] or ""

    def copy_to(self, target: ObjectPath) -> None:
        """Copy the object within the bucket. The store copies it without a download."""
        with self._local_errors():
            self._client.copy(self.key, target.key)

    def unlink(self, missing_ok: bool = True) -> None:
        """Remove the object. A missing object is not an error: stores do not report it."""
        with self._local_errors():
            self._client.delete(self.key)

    def stat(self) -> ObjectStat:
        """Return size and time; for a listed object, those at the time of the listing."""
        return self._listed or self.look()

    def look(self) -> ObjectStat:
        """Return the current size, time and tag."""
        with self._local_errors():
            return _stat_of(self._client.head(self.key))

    def is_file(self) -> bool:
        try:
            self.stat()
        except FileNotFoundError:
            return False
        return True

    def is_dir(self) -> bool:
        """Return whether it holds objects."""
        return next(self._children(), None) is not None

    def exists(self) -> bool:
        """Return whether it is an object or a folder."""
        return self.is_file() or self.is_dir()

    def iterdir(self) -> Iterator[ObjectPath]:
        """Yield its objects and folders. Raises FileNotFoundError when there are none."""
        children = list(self._children())
        if not children:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self))
        yield from children

    def glob(self, pattern: str) -> Iterator[ObjectPath]:
        """Yield the matching paths. Only matching folders are listed."""
        first, _, rest = pattern.partition("/")
        if not _MAGIC & set(first):
            child = self / first
            if rest:
                yield from child.glob(rest)
            elif child.exists():
                yield child
            return
        for child in self._children():
            if fnmatchcase(child.name, first):
                if not rest:
                    yield child
                elif child._listed is None:
                    yield from child.glob(rest)

    def rglob(self, pattern: str) -> Iterator[ObjectPath]:
        """Yield the objects at any depth whose name matches."""
        with self._local_errors():
            entries = [entry for page in self._client.list(self._prefix) for entry in page]
        for entry in entries:
            path = ObjectPath(self.store, self.bucket, entry["path"], _stat_of(entry))
            if fnmatchcase(path.name, pattern) and not path._marks_folder():
                yield path

    def _marks_folder(self) -> bool:
        """Return whether the listed path is an empty object `name/`, Hadoop's unreadable marker of a folder."""
        if self._listed is None or self._listed.st_size:
            return False
        try:
            self.look()
        except FileNotFoundError:
            return True
        return False

    def _children(self) -> Iterator[ObjectPath]:
        with self._local_errors():
            listing = self._client.list_with_delimiter(self._prefix)
        for prefix in listing["common_prefixes"]:
            yield ObjectPath(self.store, self.bucket, prefix)
        for entry in listing["objects"]:
            if entry["path"] != self.key:  # the marker of this folder
                yield ObjectPath(self.store, self.bucket, entry["path"], _stat_of(entry))

    @property
    def _prefix(self) -> str:
        return f"{self.key}/" if self.key else ""

    @property
    def _client(self) -> S3Store:
        return _client_of(self.store, self.bucket)

    @contextmanager
    def _local_errors(self) -> Iterator[None]:
        """Raise the client's errors as the errors of local files."""
        from obstore import exceptions as store_errors

        try:
            yield
        except FileNotFoundError:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self)) from None
        except store_errors.NotFoundError:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self)) from None
        except (store_errors.AlreadyExistsError, store_errors.PreconditionError):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(self)) from None
        except (store_errors.PermissionDeniedError, store_errors.UnauthenticatedError):
            raise StoreError(errno.EACCES, "the store rejects the access key", str(self)) from None
        except store_errors.BaseError as error:
            raise StoreError(errno.EIO, _first_line(error), str(self)) from None


def _first_line(error: Exception) -> str:
    """Return the first line of a client's error: the lines after it show its inner structure."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else type(error).__name__


def _stat_of(entry: Any) -> ObjectStat:
    return ObjectStat(entry["size"], entry["last_modified"].timestamp(), entry["e_tag"])


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
