"""What every process of a serve node knows: made anew in each of them from the project's files."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from headrace.core.capabilities import endpoint_of, lake_paths, sink_of_flow
from headrace.core.errors import ProjectError
from headrace.core.files.state_files import StatePath, state_path
from headrace.core.log_topics import LogTopics
from headrace.log.folder import LogFolder
from headrace.project import project_ref
from headrace.project.dashboards import DashboardSpec
from headrace.project.loader import Project
from headrace.project.serving import ServeSpec
from headrace.sources.http import HttpSource
from headrace.tables.push import PushTable


@dataclass(frozen=True)
class Settings:
    """One node's view of a project: what it serves, from where, and how."""

    project: str
    """Its name."""
    root: Path
    """The folder of its files."""
    spec: ServeSpec
    log: StatePath
    """Where the logs of all endpoints are."""
    store: Path
    """Where this node keeps its copies."""
    snapshots: StatePath
    lakes: Mapping[str, str] = field(default_factory=dict)
    """Paths of the flows' lake tables, by flow."""
    topics: LogTopics | None = None
    """Where changes are kept if not in files."""
    endpoints: tuple[str, ...] = ()
    """Endpoints that the project's flows write, whether or not anything was written yet."""
    tables: Mapping[str, PushTable] = field(default_factory=dict)
    """Tables that are pushed to."""
    streams: Mapping[str, HttpSource] = field(default_factory=dict)
    """Streams that records are POSTed to."""
    dashboards: Mapping[str, DashboardSpec] = field(default_factory=dict)
    """Pages of charts."""
    redact: Callable[[str], str] = field(default=str, repr=False, compare=False)
    """Hides secrets in what other systems said."""

    @staticmethod
    def of(project: Project) -> Settings:
        """The settings of a loaded project."""
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
        """The logs themselves."""
        return LogFolder(self.log, self.topics)

    @staticmethod
    def here() -> Settings:
        """Those of the node that this process belongs to."""
        return ServeProjectRef.here().settings()


@dataclass(frozen=True)
class ServeProjectRef(project_ref.ProjectRef):
    """Which project a node's processes serve."""

    def settings(self) -> Settings:
        """The settings of that project, as its files are now."""
        return Settings.of(self.project())

    def over(self, **values: object) -> ServeProjectRef:
        """With these values of `serve:` laid over it."""
        laid = (f"serve.{key}={json.dumps(value)}" for key, value in values.items())
        return ServeProjectRef(self.path, self.profile, (*self.overrides, *laid))


def _snapshots(project: Project, log: StatePath) -> StatePath:
    given = project.spec.serve.snapshots.path
    return log.parent / "snapshots" if given is None else state_path(project.context.path(given), project.context.store)


def _local(project: Project, given: str) -> Path:
    if "://" in given:
        raise ProjectError(
            "store-place",
            f"the store cannot be kept in '{given}'",
            where=project.origin("serve", "store"),
            hint="name a folder on a disk of this machine; snapshots and logs may be on an object store",
        )
    return Path(project.context.path(given))


def _lakes(project: Project) -> dict[str, str]:
    found = {}
    for name, flow in project.spec.flows.items():
        path = next(iter(lake_paths(flow.sinks)), None)
        if path is not None:
            found[name] = project.context.path(path)
    return found


def _endpoints(project: Project) -> tuple[str, ...]:
    sinks = (sink_of_flow(sink, name) for name, flow in project.spec.flows.items() for sink in flow.sinks)
    return tuple(name for name in map(endpoint_of, sinks) if name is not None)


def _pushed(project: Project) -> dict[str, PushTable]:
    sources = {name: table.source for name, table in project.spec.tables.items()}
    return {name: source for name, source in sources.items() if isinstance(source, PushTable)}


def _posted(project: Project) -> dict[str, HttpSource]:
    """The streams that are POSTed to; each path means one thing."""
    found: dict[str, HttpSource] = {}
    endpoints, taken = _endpoints(project), dict[str, str]()
    for name, spec in project.spec.streams.items():
        if not isinstance(spec.source, HttpSource):
            continue
        for path, *place in _paths(spec.source):
            first = path.split("/")[1]
            other = f"endpoint '{first}'" if first in endpoints else taken.get(path)
            if other is not None:
                raise ProjectError(
                    "path-taken",
                    f"stream '{name}' has the path {path}, where {other} is",
                    where=project.origin("streams", name, "source", *place),
                    hint="every stream and endpoint needs a path of its own",
                )
            taken[path] = f"stream '{name}'"
        found[name] = spec.source
    return found


def _paths(source: HttpSource) -> Iterator[tuple[str, ...]]:
    """The paths of a stream, each with the keys that say it."""
    yield source.path, "path"
    if source.health is not None:
        yield source.health.path, "health", "path"
