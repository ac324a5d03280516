"""Lookups in lists and maps that are JSON files and change now and then.

Every worker reads a file on first use and again when it is older than its refresh time. So a batch that runs again may
read newer files: results are not fixed for a batch. A file must fit into the memory of a worker.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.core.errors import ProjectError
from headrace.functions.function import Arrow, Function, FunctionCall
from headrace.functions.resources import Resources


@dataclass
class LookupFiles:
    """The files of one folder, each read again when it is too old."""

    path: str
    clock: Callable[[], float] = time.monotonic
    _read: dict[str, tuple[float, Any]] = field(default_factory=dict)

    def get(self, name: str, refresh: float) -> Any:
        """The content of a file. If it cannot be read again, the earlier content stays in use."""
        known = self._read.get(name)
        if known is not None and self.clock() - known[0] < refresh:
            return known[1]
        try:
            held = _contents(self.path, name)
        except ProjectError:
            if known is None:
                raise
            held = known[1]
        self._read[name] = (self.clock(), held)
        return held


@cache
def _lookup_files(path: str) -> LookupFiles:
    """The files that all functions of a worker process share."""
    return LookupFiles(path)


def _contents(folder: str, name: str) -> Any:
    import msgspec
    from pyarrow import fs

    kind = name.partition("/")[0]
    try:
        system, root = fs.FileSystem.from_uri(folder) if "://" in folder else (fs.LocalFileSystem(), folder)
        with system.open_input_stream(f"{root}/{name}") as stream:
            document = msgspec.json.decode(stream.read())
    except (OSError, pa.ArrowInvalid) as error:
        raise ProjectError(
            "lookup-missing", f"cannot read the lookup '{name}' in {folder}: {str(error).splitlines()[0][:200]}"
        ) from None
    except msgspec.DecodeError as error:
        raise ProjectError("lookup-invalid", f"the lookup '{name}' is not JSON: {error}") from None
    if kind == "dart-get" and isinstance(document, dict):
        return {key: _text(value) for key, value in document.items()}
    if kind == "dart-contains" and isinstance(document, dict) and isinstance(document.get("data"), list):
        return [_text(value) for value in document["data"]]
    wanted = "a JSON object" if kind == "dart-get" else '{"data": […]}'
    raise ProjectError("lookup-invalid", f"the lookup '{name}' must be {wanted}")


def _text(value: Any) -> str | None:
    import msgspec

    if value is None or isinstance(value, str):
        return value
    return msgspec.json.encode(value).decode()


def lookups_missing() -> ProjectError:
    """The error of a project that does not configure its lookups."""
    return ProjectError(
        "lookups-missing",
        "DartGet and DartContains need the folder of their files",
        hint="set it in headrace.yaml, e.g. functions: {lookups: {path: lookups}}",
    )


@dataclass(frozen=True)
class _Lookup:
    """A function over lookups in one folder. Pickled to the workers without the files."""

    path: str | None
    refresh: timedelta

    def _files(self) -> LookupFiles:
        if self.path is None:
            raise lookups_missing()
        return _lookup_files(self.path)

    def _by_name(
        self, names: pa.Array, hours: pa.Array | None, compute: Callable[[str, float, pa.Array], pa.Array], rows: int
    ) -> pa.Array:
        """The results of `compute` for the rows of each name, in the order of the rows."""
        refreshes = [None] * rows if hours is None else hours.to_pylist()
        keys = [(name, age) for name, age in zip(names.to_pylist(), refreshes, strict=True)]
        result: list[Any] = [None] * rows
        for key in dict.fromkeys(keys):
            name, age = key
            if name is None:
                continue
            places = [place for place, candidate in enumerate(keys) if candidate == key]
            seconds = self.refresh.total_seconds() if age is None else float(age) * 3600
            if len(places) == rows:
                return compute(name, seconds, pa.array(places, pa.int64()))
            values = compute(name, seconds, pa.array(places, pa.int64())).to_pylist()
            for place, value in zip(places, values, strict=True):
                result[place] = value
        return pa.array(result)


class Get(_Lookup):
    """DartGet over columns."""

    def __call__(
        self, names: pa.Array, keys: pa.Array, hours: pa.Array | None = None, default: pa.Array | None = None
    ) -> pa.Array:
        """The values of keys in maps; the default for a missing key."""
        files = self._files()
        without = pa.nulls(len(keys), pa.string()) if default is None else default.cast(pa.string())

        def compute(name: str, refresh: float, rows: pa.Array) -> pa.Array:
            held = files.get(f"dart-get/{_checked(name)}", refresh)
            wanted = zip(keys.cast(pa.string()).take(rows).to_pylist(), without.take(rows).to_pylist(), strict=True)
            return pa.array([held.get(key, other) for key, other in wanted], pa.string())

        return self._by_name(names, hours, compute, len(keys)).cast(pa.string())


class Contains(_Lookup):
    """DartContains over columns."""

    def __call__(self, names: pa.Array, values: pa.Array, *more: pa.Array) -> pa.Array:
        """Whether values are in lists, or match a pattern with one of their members."""
        patterns = next(
            (one for one in more if pa.types.is_string(one.type) or pa.types.is_large_string(one.type)), None
        )
        hours = next((one for one in more if one is not patterns), None)
        files = self._files()
        texts = values.cast(pa.string())

        def compute(name: str, refresh: float, rows: pa.Array) -> pa.Array:
            held = [value for value in files.get(f"dart-contains/{_checked(name)}", refresh) if value is not None]
            wanted = texts.take(rows)
            if patterns is None:
                found = pc.is_in(wanted, value_set=pa.array(held, pa.string()))
            else:
                found = _matches(wanted, patterns.take(rows), held)
            return pc.if_else(pc.is_valid(wanted), found, pa.scalar(None, pa.bool_()))

        return self._by_name(names, hours, compute, len(values)).cast(pa.bool_())


def _checked(name: str) -> str:
    """Refuse a name that leaves the folder."""
    if name.startswith("/") or ".." in name.split("/") or not name:
        raise ProjectError("function-argument", f"'{name}' is not the name of a lookup")
    return name


def _matches(texts: pa.Array, patterns: pa.Array, members: Sequence[str]) -> pa.Array:
    """Whether the whole text matches the pattern with any of the members for %s."""
    found = pa.array([False] * len(texts))
    for pattern in patterns.unique().to_pylist():
        if pattern is None or not members:
            continue
        try:
            each = "|".join(f"(?:{pattern.replace('%s', member)})" for member in members)
            fits = pc.match_substring_regex(texts, f"^(?:{each})$")
        except pa.ArrowInvalid as error:
            message = f"DartContains: '{pattern}' is not a pattern: {str(error).splitlines()[0]}"
            raise ProjectError("function-argument", message) from None
        found = pc.or_(found, pc.and_(pc.equal(patterns, pattern), pc.fill_null(fits, False)))
    return found


def _check(call: FunctionCall) -> None:
    name = call.text(0)
    if name is not None and (name.startswith("/") or ".." in name.split("/") or not name):
        raise call.error(f"'{name}' is not the name of a lookup")
    pattern = call.text(2) if call.function.name == "DartContains" and len(call.args) > 2 else None
    if pattern is not None:
        try:
            re.compile(pattern)
        except re.error as error:
            raise call.error(f"'{pattern}' is not a pattern: {error}") from None


def _get(resources: Resources) -> Arrow:
    return Arrow(Get(resources.lookups, resources.refresh), "string")


def _contains(resources: Resources) -> Arrow:
    return Arrow(Contains(resources.lookups, resources.refresh), "boolean")


_WHERE = (
    "The files are below `functions.lookups.path` of the project and are read again every "
    "`functions.lookups.refresh`, or after the number of hours in an argument. A missing file fails the flow; if a "
    "file cannot be read again, its earlier content stays in use."
)

FUNCTIONS = (
    Function(
        "DartGet",
        (
            "lookup STRING, key STRING -> STRING",
            "lookup STRING, key STRING, hours INT -> STRING",
            "lookup STRING, key STRING, hours INT, default STRING -> STRING",
        ),
        "The value of a key in the JSON object of the file `dart-get/<lookup>`; the default, or NULL, when it has no "
        "such key. "
        f"{_WHERE}",
        "DartGet('cities', city_id, 24)",
        "Paris",
        _check,
        build=_get,
    ),
    Function(
        "DartContains",
        (
            "lookup STRING, value STRING -> BOOLEAN",
            "lookup STRING, value STRING, hours INT -> BOOLEAN",
            "lookup STRING, value STRING, pattern STRING -> BOOLEAN",
            "lookup STRING, value STRING, pattern STRING, hours INT -> BOOLEAN",
        ),
        'Whether a value is in the list of the file `dart-contains/<lookup>`, which is `{"data": […]}`; NULL for NULL. '
        "With a pattern, whether the whole value matches the pattern with a member of the list for %s. "
        f"{_WHERE}",
        "DartContains('blocked', customer_id)",
        "true",
        _check,
        build=_contains,
    ),
)
