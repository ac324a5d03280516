"""All logs of a project: the endpoints, their versions, and the version that is served.

`<root>/<endpoint>/v<N>/endpoint.json` defines a version; `<root>/<endpoint>/alias.json` names the one that is served.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from headrace.core.context import Context
from headrace.core.endpoints import Endpoint
from headrace.core.errors import Exit, ProjectError, did_you_mean
from headrace.core.files.state_files import StatePath, remove_tree, write_atomically, write_new
from headrace.core.options.log_topics import LogTopics
from headrace.core.runtime.lazy import lazy_modules
from headrace.log.files import FileLog
from headrace.log.log import Log

if TYPE_CHECKING:
    from headrace.log import kafka
else:
    kafka = lazy_modules("headrace.log.kafka")  # loading the client is slow

_DEFINITION, _ALIAS, _DROPPED = "endpoint.json", "alias.json", "dropped"
_VERSION = re.compile(r"v([1-9]\d*)")


@dataclass(frozen=True)
class Version:
    """One version of an endpoint."""

    endpoint: Endpoint
    builder: str | None = None
    """The candidate generation or rewind that builds it in parallel; None for a version that is written directly."""
    ready: bool = True
    """Whether it is complete: then it is, was or will be served."""
    id: str = field(default_factory=lambda: uuid.uuid4().hex[:12], compare=False)
    """The id of its log."""
    kafka: bool = field(default=False, compare=False)
    """Whether its changes are in topics."""

    @property
    def number(self) -> int:
        return self.endpoint.version

    def to_bytes(self) -> bytes:
        """The content of its file."""
        about = {"builder": self.builder, "ready": self.ready, "id": self.id, "kafka": self.kafka}
        return json.dumps({**self.endpoint.to_json(), **about}, indent=1).encode()

    @staticmethod
    def from_bytes(content: bytes) -> Version:
        document: dict[str, Any] = json.loads(content)
        about = {name: document[name] for name in ("builder", "ready", "id", "kafka")}
        return Version(Endpoint.from_json(document), **about)


@dataclass(frozen=True)
class LogFolder:
    """All logs of a project. Any number of processes may use it at the same time."""

    root: StatePath
    topics: LogTopics | None = None
    """Where changes are stored, if not in files."""

    @staticmethod
    def of(context: Context) -> LogFolder:
        return LogFolder(context.log_path, context.log_topics)

    def names(self) -> list[str]:
        """The endpoints that have a log, by name."""
        return sorted(folder.name for folder in _folders(self.root) if self.details(folder.name))

    def versions(self, name: str) -> list[Endpoint]:
        """The versions of an endpoint, oldest first, with one that is still being built."""
        return [version.endpoint for version in self.details(name)]

    def details(self, name: str) -> list[Version]:
        return [version for version in self._numbers(name).values() if version is not None]

    def open(self, name: str, version: int) -> Log:
        match = next((known for known in self.details(name) if known.number == version), None)
        if match is not None:
            return self.log(match)
        numbers = [f"v{endpoint.version}" for endpoint in self.versions(name)]
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

    def log(self, version: Version) -> Log:
        folder = self._folder(version.endpoint.name, version.number)
        if not version.kafka:
            return FileLog(folder, version.endpoint, version.id)
        if self.topics is None:
            raise ProjectError(
                "log-in-kafka",
                f"the changes of version {version.number} of endpoint '{version.endpoint.name}' are in Kafka, and the "
                "project has no `serve.topics`",
                hint="restore `serve.topics`, or fill a new version: headrace run --new-generation FLOW",
            )
        return kafka.KafkaLog(folder, version.endpoint, version.id, self.topics)

    def has(self, version: Version) -> bool:
        """Whether a version still exists."""
        return self._definition(version.endpoint).is_file()

    def newest(self, name: str, builder: str | None = None) -> Version | None:
        """The version that changes are written to: the last one, or with `builder` the one that it builds."""
        return _newest(self.details(name), builder)

    def define(self, endpoint: Endpoint, builder: str | None = None) -> Log:
        """The log that changes of this endpoint are written to."""
        return self.log(self.settle(endpoint, builder))

    def settle(self, endpoint: Endpoint, builder: str | None = None) -> Version:
        """The newest version if its definition is the same, else a new version after it.

        An abandoned version is never resumed: it lacks later changes. The first version is served at once, another
        when it is published.
        """
        while True:
            # a single listing for both: a version of a faster writer must not be followed by another of the same kind
            numbers = self._numbers(endpoint.name)
            newest = _newest([version for version in numbers.values() if version is not None], builder)
            if newest is not None and newest.endpoint.fingerprint == endpoint.fingerprint:
                break
            self._create(replace(endpoint, version=1 + max(numbers, default=0)), builder, first=not numbers)
        now = replace(newest, endpoint=replace(endpoint, version=newest.number))
        if now != newest:  # policies and descriptions may change
            write_atomically(self._definition(now.endpoint), now.to_bytes())
        if now.ready and self.served(endpoint.name) is None:
            self.serve(endpoint.name, now.number)
        return now

    def _create(self, endpoint: Endpoint, builder: str | None, *, first: bool) -> None:
        """Create a version, unless another process is faster."""
        version = Version(endpoint, builder, ready=first and builder is None, kafka=self.topics is not None)
        log = self.log(version)
        log.make()
        if not write_new(self._definition(endpoint), version.to_bytes()):
            log.remove()

    def publish(self, name: str, builder: str | None = None) -> None:
        """Serve the newest version, or the one that `builder` built, if it was not ready. Idempotent."""
        version = self.newest(name, builder)
        if version is not None and not version.ready:
            self.serve(name, version.number)
            write_atomically(self._definition(version.endpoint), replace(version, ready=True).to_bytes())

    def forget(self, name: str, builder: str) -> None:
        """Drop the version that `builder` builds, unless it was published."""
        version = self.newest(name, builder)
        if version is not None:
            self.drop(name, version.number)

    def served(self, name: str) -> int | None:
        try:
            document = json.loads((self.root / name / _ALIAS).read_bytes())
        except FileNotFoundError:
            return None
        return int(document["version"])

    def serve(self, name: str, version: int) -> None:
        self.open(name, version)
        write_atomically(self.root / name / _ALIAS, json.dumps({"version": version}).encode())

    def is_dropped(self, name: str, version: int) -> bool:
        """Whether a version was removed on purpose: one that is missing may be on a disk that is not mounted."""
        return (self._folder(name, version) / _DROPPED).is_file()

    def drop(self, name: str, version: int) -> None:
        """Remove a version. Its number is never used again: a store that holds the version would confuse the two."""
        log = self.open(name, version)
        folder = self._folder(name, version)
        write_atomically(folder / _DROPPED, b"")
        (folder / _DEFINITION).unlink(missing_ok=True)
        log.remove()
        for part in ("commits", "cuts", "parts"):
            remove_tree(folder / part)

    def _numbers(self, name: str) -> dict[int, Version | None]:
        """The versions in order; None for one that was dropped. A version without a definition is left out."""
        versions: dict[int, Version | None] = {}
        for folder in _folders(self.root / name):
            number = _VERSION.fullmatch(folder.name)
            if number is None:
                continue
            with suppress(FileNotFoundError):
                versions[int(number[1])] = _read(folder)
        return dict(sorted(versions.items()))

    def _folder(self, name: str, version: int) -> StatePath:
        return self.root / name / f"v{version}"

    def _definition(self, endpoint: Endpoint) -> StatePath:
        return self._folder(endpoint.name, endpoint.version) / _DEFINITION


def _newest(versions: Sequence[Version], builder: str | None) -> Version | None:
    if builder is None:
        candidates = [version for version in versions if version.builder is None or version.ready]
    else:
        candidates = [version for version in versions if version.builder == builder and not version.ready]
    return candidates[-1] if candidates else None


def _read(folder: StatePath) -> Version | None:
    try:
        return Version.from_bytes((folder / _DEFINITION).read_bytes())
    except FileNotFoundError:
        (folder / _DROPPED).read_bytes()
        return None


def _folders(folder: StatePath) -> Iterator[StatePath]:
    try:
        yield from folder.iterdir()
    except (FileNotFoundError, NotADirectoryError):
        return
