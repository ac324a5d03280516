"""The settings of a serve node. Each of its processes builds them from the project's files."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from headrace.core.capabilities import endpoint_of, lake_paths, sink_of_flow
from headrace.core.errors import ProjectError
from headrace.core.files.state_files import StatePath, state_path
from headrace.core.options.log_topics import LogTopics
from headrace.log.folder import LogFolder
from headrace.project import project_ref
from headrace.project.dashboards import DashboardSpec
from headrace.project.loader import Project
from headrace.project.serving import ServeSpec
from headrace.sources.http import HttpSource
from headrace.tables.push import PushTable


@dataclass(frozen=True)
class Settings:
    """What a node serves, from where, and how."""

    project: str
    """The name of the project."""
    root: Path
    """The folder of the project's files."""
    spec: ServeSpec
    log: StatePath
    """The folder of the logs of all endpoints."""
    store: Path
    """The folder of this node's stores."""
    snapshots: StatePath
    lakes: Mapping[str, str] = field(default_factory=dict)
    """Paths of the flows' lake tables, by flow."""
    topics: LogTopics | None = None
    """The topics of the logs, if they are not in files."""
    endpoints: tuple[str, ...] = ()
    """Endpoints of the project's flows, including those without data."""
    tables: Mapping[str, PushTable] = field(default_factory=dict)
    """Tables that callers push changes to."""
    streams: Mapping[str, HttpSource] = field(default_factory=dict)
    """Streams that callers POST records to."""
    dashboards: Mapping[str, DashboardSpec] = field(default_factory=dict)
    redact: Callable[[str], str] = field(default=str, repr=False, compare=False)
    """Hides secrets in messages of other systems."""

    @staticmethod
    def of(project: Project) -> Settings:
        spec, context = project.spec.serve, project.context
        log = context.log_path
        return Settings(
            project=project.spec.project,
            root=project.root,
            spec=spec,
            log=log,
            store=_local(project, spec.store),
            snapshots=_snapshots(project, log),
            lakes=_lakes(project),
            topics=context.log_topics,
            endpoints=_endpoints(project),
            tables=_pushed(project),
            streams=_posted(project),
            dashboards=project.spec.dashboards,
            redact=project.secrets.redact,
        )

    @property
    def logs(self) -> LogFolder:
        return LogFolder(self.log, self.topics)

    @staticmethod
    def here() -> Settings:
        """The settings of the node that this process belongs to."""
        return ServeProjectRef.here().settings()


@dataclass(frozen=True)
class ServeProjectRef(project_ref.ProjectRef):
    """The project that a node's processes serve."""

    def settings(self) -> Settings:
        """The settings of the project, from the current files."""
        return Settings.of(self.project())

    def over(self, **values: object) -> ServeProjectRef:
        """With these values of `serve:` as overrides."""
        overrides = (f"serve.{key}={json.dumps(value)}" for key, value in values.items())
        return ServeProjectRef(self.path, self.profile, (*self.overrides, *overrides))


def _snapshots(project: Project, log: StatePath) -> StatePath:
    path = project.spec.serve.snapshots.path
    return log.parent / "snapshots" if path is None else state_path(project.context.path(path), project.context.store)


def _local(project: Project, folder: str) -> Path:
    if "://" in folder:
        raise ProjectError(
            "store-place",
            f"the store cannot be on an object store: '{folder}'",
            where=project.origin("serve", "store"),
            hint="name a folder on a disk of this machine; snapshots and logs can be on an object store",
        )
    return Path(project.context.path(folder))


def _lakes(project: Project) -> dict[str, str]:
    lakes = {}
    for name, flow in project.spec.flows.items():
        path = next(iter(lake_paths(flow.sinks)), None)
        if path is not None:
            lakes[name] = project.context.path(path)
    return lakes


def _endpoints(project: Project) -> tuple[str, ...]:
    sinks = (sink_of_flow(sink, name) for name, flow in project.spec.flows.items() for sink in flow.sinks)
    return tuple(name for name in map(endpoint_of, sinks) if name is not None)


def _pushed(project: Project) -> dict[str, PushTable]:
    sources = {name: table.source for name, table in project.spec.tables.items()}
    return {name: source for name, source in sources.items() if isinstance(source, PushTable)}


def _posted(project: Project) -> dict[str, HttpSource]:
    """The streams with an HTTP source; each path must be unique."""
    streams: dict[str, HttpSource] = {}
    endpoints, used = _endpoints(project), dict[str, str]()
    for name, spec in project.spec.streams.items():
        if not isinstance(spec.source, HttpSource):
            continue
        for path, *place in _paths(spec.source):
            first = path.split("/")[1]
            owner = f"endpoint '{first}'" if first in endpoints else used.get(path)
            if owner is not None:
                raise ProjectError(
                    "path-taken",
                    f"stream '{name}' has the path {path}, which {owner} already uses",
                    where=project.origin("streams", name, "source", *place),
                    hint="every stream and endpoint needs its own path",
                )
            used[path] = f"stream '{name}'"
        streams[name] = spec.source
    return streams


def _paths(source: HttpSource) -> Iterator[tuple[str, ...]]:
    """The paths of a stream, each with the keys of its option."""
    yield source.path, "path"
    if source.health is not None:
        yield source.health.path, "health", "path"
