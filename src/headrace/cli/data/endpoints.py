"""List endpoints and their versions; switch and drop versions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.terminal.confirm import confirm
from headrace.cli.terminal.engines import seconds_of
from headrace.cli.terminal.output import printer
from headrace.cli.terminal.positions_output import Yes, aligned
from headrace.cli.terminal.project_args import Json, Name, ProjectTarget, project_options
from headrace.core.errors import Exit, ProjectError, did_you_mean
from headrace.core.files.state_files import remove_tree
from headrace.core.lazy import lazy_modules
from headrace.serve.base.status import read_node, read_status

if TYPE_CHECKING:
    from headrace.core.endpoints import Endpoint
    from headrace.log.folder import LogFolder
    from headrace.serve.base import settings as base_settings
    from headrace.serve.base.settings import Settings
    from headrace.serve.replica import restore, snapshots
else:
    base_settings, restore, snapshots = lazy_modules(
        "headrace.serve.base.settings", "headrace.serve.replica.restore", "headrace.serve.replica.snapshots"
    )

app = typer.Typer(help=__doc__, no_args_is_help=True, rich_markup_mode=None)

_Endpoint = Annotated[str, typer.Argument(metavar="NAME", help="The endpoint.")]
_Version = Annotated[int, typer.Option("--version", metavar="N", min=1, help="Which version of it.")]
_UNKNOWN = "–"


@app.command("list")
@project_options(Name)
def list_(
    target: ProjectTarget,
    json: Json = False,
) -> None:
    """List the endpoints: the state of this machine's copies, and the served version."""
    settings, logs = _open(target)
    documents = [_describe(settings, logs, name) for name in _names(settings, logs)]
    if json:
        printer.document(documents)
        return
    rows = [["endpoint", "state", "version", "versions", "rows", "lag", "refused", "snapshot"]]
    rows += [_cells(document) for document in documents]
    for line in aligned(rows) if documents else ["no endpoints"]:
        printer.data(line)


@app.command()
@project_options()
def show(
    target: ProjectTarget,
    endpoint: _Endpoint,
    json: Json = False,
) -> None:
    """Show one endpoint: its columns, key, indexes and conflict policies, per version, and the state of its copies."""
    settings, logs = _open(target)
    document = _describe(settings, logs, _known(settings, logs, endpoint))
    if json:
        printer.document(document)
        return
    printer.data(f"{endpoint}: {document['state']}, version {document['served'] or _UNKNOWN} is served")
    if document["url"]:
        printer.data(f"  {document['url']}")
    for version in document["versions"]:
        for line in _lines(version):
            printer.data(line)


@app.command()
@project_options()
def use(
    target: ProjectTarget,
    endpoint: _Endpoint,
    version: _Version,
    json: Json = False,
) -> None:
    """Serve this version as the default. A node switches as soon as its copy has caught up."""
    settings, logs = _open(target)
    before = logs.served(_known(settings, logs, endpoint))
    logs.serve(endpoint, version)
    if json:
        printer.document({"endpoint": endpoint, "version": version, "before": before})
    else:
        printer.note(f"endpoint '{endpoint}': version {version} is served (before: {before or 'none'})")


@app.command()
@project_options()
def drop(
    target: ProjectTarget,
    endpoint: _Endpoint,
    version: _Version,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Delete a version that is no longer served, with its log and snapshots; nodes remove their copies of it."""
    settings, logs = _open(target)
    log = logs.open(_known(settings, logs, endpoint), version)
    if logs.served(endpoint) == version and len(logs.versions(endpoint)) > 1:
        raise ProjectError(
            "endpoint-served",
            f"version {version} of endpoint '{endpoint}' is the served version",
            hint=f"serve another first: headrace endpoints use {endpoint} --version N",
            exit_code=Exit.CONFLICT,
        )
    if endpoint in settings.endpoints and max(definition.version for definition in logs.versions(endpoint)) == version:
        raise ProjectError(
            "endpoint-written",
            f"version {version} of endpoint '{endpoint}' is written by a flow of the project",
            hint="remove the sink from the flow first",
            exit_code=Exit.CONFLICT,
        )
    confirm(f"Delete version {version} of endpoint '{endpoint}' with all its rows?", yes)
    logs.drop(endpoint, version)
    remove_tree(restore.snapshots_root(settings, log))
    if json:
        printer.document({"endpoint": endpoint, "version": version, "done": True})
    else:
        printer.note(f"version {version} of endpoint '{endpoint}' is deleted")


@app.command()
@project_options()
def snapshot(
    target: ProjectTarget,
    endpoint: _Endpoint,
    timeout: Annotated[str, typer.Option("--timeout", metavar="TIME", help="How long to wait for it.")] = "5m",
    json: Json = False,
) -> None:
    """Let this machine's node create a snapshot of an endpoint now. A new node starts from the newest snapshot."""
    settings, logs = _open(target)
    version = logs.served(_known(settings, logs, endpoint)) or 1
    if read_node(settings.store) is None:
        raise ProjectError(
            "no-node",
            f"no serve node uses the store in {settings.store}",
            hint="start a serve node, which creates snapshots: headrace serve",
            exit_code=Exit.NOT_FOUND,
        )
    position = snapshots.request_snapshot(settings.store, endpoint, version, seconds_of("--timeout", timeout))
    if json:
        printer.document({"endpoint": endpoint, "version": version, "position": position})
    else:
        printer.note(f"the newest snapshot of endpoint '{endpoint}' v{version} is at position {position:,}")


def _open(target: ProjectTarget) -> tuple[Settings, LogFolder]:
    settings = base_settings.Settings.of(target.load())
    return settings, settings.logs


def _names(settings: Settings, logs: LogFolder) -> list[str]:
    return sorted({*logs.names(), *settings.endpoints})


def _known(settings: Settings, logs: LogFolder, name: str) -> str:
    names = _names(settings, logs)
    if name in names:
        return name
    hint = did_you_mean(name, names, "endpoints")
    raise ProjectError("unknown-endpoint", f"endpoint '{name}' does not exist", hint=hint, exit_code=Exit.NOT_FOUND)


def _describe(settings: Settings, logs: LogFolder, name: str) -> dict[str, Any]:
    """Describe an endpoint: the definition from its logs, and the copies that this machine's node reports."""
    status, node = read_status(settings.store), read_node(settings.store)
    reported = status.endpoints.get(name, {}) if node is not None and not status.stale else {}
    versions = logs.versions(name)
    url = None if node is None or node["http"] is None else f"{node['http']}/{name}"
    state = reported.get("state") or ("not served here" if versions else "nothing written yet")
    return {
        "name": name,
        "state": state,
        "url": url,
        "served": logs.served(name),
        "here": reported.get("version"),
        "versions": [_version(version, reported.get("versions", {}).get(str(version.version))) for version in versions],
    }


def _version(endpoint: Endpoint, copy: dict[str, Any] | None) -> dict[str, Any]:
    return {**endpoint.to_json(), "copy": copy}


def _cells(document: dict[str, Any]) -> list[str]:
    here = document["here"] or document["served"]
    copy = next((version["copy"] for version in document["versions"] if version["version"] == here), None) or {}
    lag = copy.get("lag")
    age = copy.get("snapshot_age_s")
    return [
        document["name"],
        document["state"],
        _number(here),
        ",".join(str(version["version"]) for version in document["versions"]) or _UNKNOWN,
        _number(copy.get("rows")),
        _UNKNOWN if lag is None else f"{lag['seconds']:.1f}s / {lag['segments']:,}",
        _number(copy.get("refused")),
        _UNKNOWN if not copy.get("snapshot") or age is None else f"{age:,.0f}s ago",
    ]


def _number(value: int | None) -> str:
    return _UNKNOWN if value is None else f"{value:,}"


def _lines(version: dict[str, Any]) -> list[str]:
    copy = version["copy"]
    lines = [f"version {version['version']}: {version['columns']}"]
    if version["description"]:
        lines.append(f"  {version['description']}")
    lines.append(f"  key: {', '.join(version['key']) or 'none'}")
    lines += [f"  index: {', '.join(index)}" for index in version["indexes"]]
    if version["text"]:
        lines.append(f"  full-text search: {', '.join(version['text'])}")
    lines.append("  " + ", ".join(f"{name} {value}" for name, value in version["conflicts"].items()))
    if copy is not None:
        lines.append(f"  copy: {copy['state']}, {_number(copy['rows'])} rows, position {copy['position']}")
        if copy["error"]:
            lines.append(f"  {copy['error']['message']} [{copy['error']['code']}]")
    return lines
