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
    """List the endpoints: what this machine's copies of them are like, and which version is served."""
    settings, logs = _opened(target)
    found = [_described(settings, logs, one) for one in _names(settings, logs)]
    if json:
        printer.document(found)
        return
    rows = [["endpoint", "state", "version", "versions", "rows", "lag", "refused", "snapshot"]]
    rows += [_cells(one) for one in found]
    for line in aligned(rows) if found else ["no endpoints"]:
        printer.data(line)


@app.command()
@project_options()
def show(
    target: ProjectTarget,
    endpoint: _Endpoint,
    json: Json = False,
) -> None:
    """Show one endpoint: its columns, key, indexes and conflict policies, per version, and how its copies are."""
    settings, logs = _opened(target)
    found = _described(settings, logs, _known(settings, logs, endpoint))
    if json:
        printer.document(found)
        return
    printer.data(f"{endpoint}: {found['state']}, version {found['served'] or _UNKNOWN} is served")
    if found["url"]:
        printer.data(f"  {found['url']}")
    for one in found["versions"]:
        for line in _lines(one):
            printer.data(line)


@app.command()
@project_options()
def use(
    target: ProjectTarget,
    endpoint: _Endpoint,
    version: _Version,
    json: Json = False,
) -> None:
    """Serve this version to those who name none. A node switches as soon as its copy of it has caught up."""
    settings, logs = _opened(target)
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
    settings, logs = _opened(target)
    log = logs.open(_known(settings, logs, endpoint), version)
    if logs.served(endpoint) == version and len(logs.versions(endpoint)) > 1:
        raise ProjectError(
            "endpoint-served",
            f"version {version} of endpoint '{endpoint}' is the one that is served",
            hint=f"serve another first: headrace endpoints use {endpoint} --version N",
            exit_code=Exit.CONFLICT,
        )
    if endpoint in settings.endpoints and max(one.version for one in logs.versions(endpoint)) == version:
        raise ProjectError(
            "endpoint-written",
            f"version {version} of endpoint '{endpoint}' is the one that a flow of the project writes",
            hint="take the sink out of the flow first",
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
    """Have this machine's node make a snapshot of an endpoint now: what a new node begins with."""
    settings, logs = _opened(target)
    version = logs.served(_known(settings, logs, endpoint)) or 1
    if read_node(settings.store) is None:
        raise ProjectError(
            "no-node",
            f"no node keeps the store in {settings.store}",
            hint="start a serve node, which makes snapshots: headrace serve",
            exit_code=Exit.NOT_FOUND,
        )
    position = snapshots.request_snapshot(settings.store, endpoint, version, seconds_of("--timeout", timeout))
    if json:
        printer.document({"endpoint": endpoint, "version": version, "position": position})
    else:
        printer.note(f"the newest snapshot of endpoint '{endpoint}' v{version} is at position {position:,}")


def _opened(target: ProjectTarget) -> tuple[Settings, LogFolder]:
    settings = base_settings.Settings.of(target.load())
    return settings, settings.logs


def _names(settings: Settings, logs: LogFolder) -> list[str]:
    return sorted({*logs.names(), *settings.endpoints})


def _known(settings: Settings, logs: LogFolder, name: str) -> str:
    names = _names(settings, logs)
    if name in names:
        return name
    hint = did_you_mean(name, names, "endpoints")
    raise ProjectError("unknown-endpoint", f"there is no endpoint '{name}'", hint=hint, exit_code=Exit.NOT_FOUND)


def _described(settings: Settings, logs: LogFolder, name: str) -> dict[str, Any]:
    """The endpoint as its logs define it, with what this machine's node says of its copies."""
    status, node = read_status(settings.store), read_node(settings.store)
    said = status.endpoints.get(name, {}) if node is not None and not status.stale else {}
    versions = logs.versions(name)
    url = None if node is None or node["http"] is None else f"{node['http']}/{name}"
    state = said.get("state") or ("not served here" if versions else "nothing written yet")
    return {
        "name": name,
        "state": state,
        "url": url,
        "served": logs.served(name),
        "here": said.get("version"),
        "versions": [_version(one, said.get("versions", {}).get(str(one.version))) for one in versions],
    }


def _version(endpoint: Endpoint, copy: dict[str, Any] | None) -> dict[str, Any]:
    return {**endpoint.to_json(), "copy": copy}


def _cells(one: dict[str, Any]) -> list[str]:
    here = one["here"] or one["served"]
    copy = next((version["copy"] for version in one["versions"] if version["version"] == here), None) or {}
    lag = copy.get("lag")
    age = copy.get("snapshot_age_s")
    return [
        one["name"],
        one["state"],
        _number(here),
        ",".join(str(version["version"]) for version in one["versions"]) or _UNKNOWN,
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
        lines.append(f"  words of: {', '.join(version['text'])}")
    lines.append("  " + ", ".join(f"{name} {value}" for name, value in version["conflicts"].items()))
    if copy is not None:
        lines.append(f"  copy: {copy['state']}, {_number(copy['rows'])} rows, position {copy['position']}")
        if copy["error"]:
            lines.append(f"  {copy['error']['message']} [{copy['error']['code']}]")
    return lines
