"""All logs of a project: which endpoints there are, their versions, and which of them requests get.

`<root>/<endpoint>/v<N>/endpoint.json` is what a version is; `<root>/<endpoint>/alias.json` says which one is served.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from headrace.core.endpoints import Endpoint
from headrace.core.errors import Exit, ProjectError, did_you_mean
from headrace.core.statefiles import StatePath, remove_tree, write_atomically, write_new
from headrace.log.files import FileLog

_DEFINITION, _ALIAS, _DROPPED = "endpoint.json", "alias.json", "dropped"
_VERSION = re.compile(r"v([1-9]\d*)")


@dataclass(frozen=True)
class _Held:
    """A version as its file says."""

    endpoint: Endpoint
    beside: str | None = None
    """Who builds it beside the one that is served, until it is published."""

    def to_bytes(self) -> bytes:
        return json.dumps({**self.endpoint.to_json(), "beside": self.beside}, indent=1).encode()

    @staticmethod
    def from_bytes(content: bytes) -> _Held:
        document: dict[str, Any] = json.loads(content)
        return _Held(Endpoint.from_json(document), document.get("beside"))


@dataclass(frozen=True)
class LogFolder:
    """All logs of a project. Any number of processes may use it at the same time."""

    root: StatePath

    def names(self) -> list[str]:
        """The endpoints that have a log, by name."""
        return sorted(folder.name for folder in _folders(self.root) if self._held(folder.name))

    def versions(self, name: str) -> list[Endpoint]:
        """What there is of an endpoint, oldest first; also a version that is being built beside the others."""
        return [held.endpoint for held in self._held(name)]

    def open(self, name: str, version: int) -> FileLog:
        """The log of a version."""
        held = next((one for one in self._held(name) if one.endpoint.version == version), None)
        if held is not None:
            return FileLog(self._folder(name, version), held.endpoint)
        numbers = [f"v{one.version}" for one in self.versions(name)]
        if numbers:
            raise ProjectError(
                "unknown-version",
                f"endpoint '{name}' has no version {version}",
                hint=f"versions: {', '.join(numbers)}",
                exit_code=Exit.NOT_FOUND,
            )
        raise ProjectError(
            "unknown-endpoint",
            f"there is no endpoint '{name}'",
            hint=did_you_mean(name, self.names(), "endpoints"),
            exit_code=Exit.NOT_FOUND,
        )

    def current(self, endpoint: Endpoint, beside: str | None = None) -> FileLog | None:
        """The log that changes of such an endpoint go to; None when that needs a new version.

        It is the newest version, if it is defined so. One that was left is not taken up again: it lacks what came
        since. With `beside`: the version that was begun under this name.
        """
        return self._current(self._held(endpoint.name), endpoint, beside)

    def define(self, endpoint: Endpoint, beside: str | None = None) -> FileLog:
        """The log that changes of such an endpoint go to, of a new version if need be. The first one is served."""
        while True:
            # one look for both: who was faster with a version must not be followed by another of the same kind
            numbers = self._numbers(endpoint.name)
            found = self._current([held for held in numbers.values() if held is not None], endpoint, beside)
            if found is not None:
                break
            made = replace(endpoint, version=1 + max(numbers, default=0))
            write_new(self._definition(made), _Held(made, beside).to_bytes())
        if beside is None and self.served(endpoint.name) is None:
            self.serve(endpoint.name, found.endpoint.version)
        return found

    def publish(self, name: str, beside: str) -> None:
        """Serve what was built beside; twice is as good as once."""
        for held in self._held(name):
            if held.beside == beside:
                self.serve(name, held.endpoint.version)
                write_atomically(self._definition(held.endpoint), _Held(held.endpoint).to_bytes())

    def forget(self, name: str, beside: str) -> None:
        """Drop what was built beside, unless it was published."""
        for held in self._held(name):
            if held.beside == beside:
                self.drop(name, held.endpoint.version)

    def served(self, name: str) -> int | None:
        """The version that requests get."""
        try:
            document = json.loads((self.root / name / _ALIAS).read_bytes())
        except FileNotFoundError:
            return None
        return int(document["version"])

    def serve(self, name: str, version: int) -> None:
        """Let requests get this version."""
        self.open(name, version)
        write_atomically(self.root / name / _ALIAS, json.dumps({"version": version}).encode())

    def drop(self, name: str, version: int) -> None:
        """Remove a version. Its number is not given again: a store that holds it would take the other for it."""
        self.open(name, version)
        folder = self._folder(name, version)
        write_atomically(folder / _DROPPED, b"")
        (folder / _DEFINITION).unlink(missing_ok=True)
        for part in ("commits", "cuts", "parts"):
            remove_tree(folder / part)

    def _current(self, there: Sequence[_Held], endpoint: Endpoint, beside: str | None) -> FileLog | None:
        mine = [held.endpoint for held in there if held.beside == beside]
        if not mine or mine[-1].fingerprint != endpoint.fingerprint:
            return None
        now = replace(endpoint, version=mine[-1].version)
        if now != mine[-1]:  # policies and words may change
            write_atomically(self._definition(now), _Held(now, beside).to_bytes())
        return FileLog(self._folder(now.name, now.version), now)

    def _held(self, name: str) -> list[_Held]:
        return [held for held in self._numbers(name).values() if held is not None]

    def _numbers(self, name: str) -> dict[int, _Held | None]:
        """The versions in order; None stands for one that was dropped. One that is not yet whole does not count."""
        found: dict[int, _Held | None] = {}
        for folder in _folders(self.root / name):
            number = _VERSION.fullmatch(folder.name)
            if number is None:
                continue
            with suppress(FileNotFoundError):
                found[int(number[1])] = _read(folder)
        return dict(sorted(found.items()))

    def _folder(self, name: str, version: int) -> StatePath:
        return self.root / name / f"v{version}"

    def _definition(self, endpoint: Endpoint) -> StatePath:
        return self._folder(endpoint.name, endpoint.version) / _DEFINITION


def _read(folder: StatePath) -> _Held | None:
    try:
        return _Held.from_bytes((folder / _DEFINITION).read_bytes())
    except FileNotFoundError:
        (folder / _DROPPED).read_bytes()
        return None


def _folders(folder: StatePath) -> Iterator[StatePath]:
    try:
        yield from folder.iterdir()
    except (FileNotFoundError, NotADirectoryError):
        return
