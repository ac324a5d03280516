"""All logs of a project: which endpoints there are, their versions, and which of them requests get.

`<root>/<endpoint>/v<N>/endpoint.json` is what a version is; `<root>/<endpoint>/alias.json` says which one is served.
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
from headrace.core.lazy import lazy_modules
from headrace.core.log_topics import LogTopics
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
    """One version of an endpoint, as its file says."""

    endpoint: Endpoint
    builder: str | None = None
    """Who made it beside the others, if anybody did: a candidate, or a rewind."""
    ready: bool = True
    """Whether it has all that it should: then it is, was or will be served."""
    id: str = field(default_factory=lambda: uuid.uuid4().hex[:12], compare=False)
    """Of its log."""
    kafka: bool = field(default=False, compare=False)
    """Whether its changes are in topics."""

    @property
    def number(self) -> int:
        return self.endpoint.version

    def to_bytes(self) -> bytes:
        """As it stands in its file."""
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
    """Where changes are kept if not in files."""

    @staticmethod
    def of(context: Context) -> LogFolder:
        """The logs of a project."""
        return LogFolder(context.log_path, context.log_topics)

    def names(self) -> list[str]:
        """The endpoints that have a log, by name."""
        return sorted(folder.name for folder in _folders(self.root) if self.details(folder.name))

    def versions(self, name: str) -> list[Endpoint]:
        """What there is of an endpoint, oldest first; also a version that is still being built."""
        return [version.endpoint for version in self.details(name)]

    def details(self, name: str) -> list[Version]:
        """The versions with what is known about each."""
        return [version for version in self._numbers(name).values() if version is not None]

    def open(self, name: str, version: int) -> Log:
        """The log of a version."""
        found = next((one for one in self.details(name) if one.number == version), None)
        if found is not None:
            return self.log(found)
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

    def log(self, version: Version) -> Log:
        """The log of a version that is known."""
        folder = self._folder(version.endpoint.name, version.number)
        if not version.kafka:
            return FileLog(folder, version.endpoint, version.id)
        if self.topics is None:
            raise ProjectError(
                "log-in-kafka",
                f"the changes of version {version.number} of endpoint '{version.endpoint.name}' are in Kafka, and the "
                "project does not say where that is",
                hint="put `serve.topics` back, or fill a new version: headrace run --new-generation FLOW",
            )
        return kafka.KafkaLog(folder, version.endpoint, version.id, self.topics)

    def has(self, version: Version) -> bool:
        """Whether a version is still there."""
        return self._definition(version.endpoint).is_file()

    def newest(self, name: str, builder: str | None = None) -> Version | None:
        """The version that changes go to: the last one, or with `builder` that which it is about to build."""
        return _newest(self.details(name), builder)

    def define(self, endpoint: Endpoint, builder: str | None = None) -> Log:
        """The log that changes of such an endpoint go to."""
        return self.log(self.settle(endpoint, builder))

    def settle(self, endpoint: Endpoint, builder: str | None = None) -> Version:
        """The newest version if it is defined like that, or else another one after it.

        A version that was left is not taken up again: it lacks what came since. The first one is served at once,
        another when it is published.
        """
        while True:
            # one look for both: who was faster with a version must not be followed by another of the same kind
            numbers = self._numbers(endpoint.name)
            found = _newest([version for version in numbers.values() if version is not None], builder)
            if found is not None and found.endpoint.fingerprint == endpoint.fingerprint:
                break
            self._begin(replace(endpoint, version=1 + max(numbers, default=0)), builder, first=not numbers)
        now = replace(found, endpoint=replace(endpoint, version=found.number))
        if now != found:  # policies and words may change
            write_atomically(self._definition(now.endpoint), now.to_bytes())
        if now.ready and self.served(endpoint.name) is None:
            self.serve(endpoint.name, now.number)
        return now

    def _begin(self, endpoint: Endpoint, builder: str | None, *, first: bool) -> None:
        """Begin a version, unless somebody else is faster."""
        made = Version(endpoint, builder, ready=first and builder is None, kafka=self.topics is not None)
        log = self.log(made)
        log.make()
        if not write_new(self._definition(endpoint), made.to_bytes()):
            log.remove()

    def publish(self, name: str, builder: str | None = None) -> None:
        """Serve the newest version, or that which was built beside, if it was not ready. Twice is as good as once."""
        version = self.newest(name, builder)
        if version is not None and not version.ready:
            self.serve(name, version.number)
            write_atomically(self._definition(version.endpoint), replace(version, ready=True).to_bytes())

    def forget(self, name: str, builder: str) -> None:
        """Drop what was being built beside, unless it was published."""
        version = self.newest(name, builder)
        if version is not None:
            self.drop(name, version.number)

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

    def is_dropped(self, name: str, version: int) -> bool:
        """Whether a version was removed on purpose: one that just cannot be seen may be on a disk that is away."""
        return (self._folder(name, version) / _DROPPED).is_file()

    def drop(self, name: str, version: int) -> None:
        """Remove a version. Its number is not given again: a store that holds it would take the other for it."""
        log = self.open(name, version)
        folder = self._folder(name, version)
        write_atomically(folder / _DROPPED, b"")
        (folder / _DEFINITION).unlink(missing_ok=True)
        log.remove()
        for part in ("commits", "cuts", "parts"):
            remove_tree(folder / part)

    def _numbers(self, name: str) -> dict[int, Version | None]:
        """The versions in order; None stands for one that was dropped. One that is not yet whole does not count."""
        found: dict[int, Version | None] = {}
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


def _newest(versions: Sequence[Version], builder: str | None) -> Version | None:
    if builder is None:
        mine = [version for version in versions if version.builder is None or version.ready]
    else:
        mine = [version for version in versions if version.builder == builder and not version.ready]
    return mine[-1] if mine else None


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
