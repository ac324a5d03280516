"""What `headrace status` says of the endpoints that are served from this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headrace.serve.base.status import read_node, read_status


def serving_of(store: Path) -> dict[str, Any]:
    """The node that keeps a store, None when none runs, and what is known of its endpoints."""
    node, status = read_node(store), read_status(store)
    return {"node": node, "stale": node is None or status.stale, "note": status.note, "endpoints": status.endpoints}


def serving_lines(served: dict[str, Any]) -> list[str]:
    """Return the status as text lines; none if no node was ever started here."""
    node, endpoints = served["node"], served["endpoints"]
    if node is None:
        return [f"endpoints: no node serves them here: {', '.join(endpoints)}"] if endpoints else []
    where = node["http"] or "starting"
    silence = ", its applier does not report" if served["stale"] else ""
    lines = [f"serve node {node['pid']}, {where}{silence}", *([served["note"]] if served["note"] else [])]
    return [*lines, *(_line(name, endpoint, served["stale"]) for name, endpoint in endpoints.items())]


def _line(name: str, endpoint: dict[str, Any], stale: bool) -> str:
    lag = endpoint["lag"]
    state = f"{endpoint['state']}?" if stale else endpoint["state"]
    parts = [f"{name}: {state}, version {endpoint['version']}", f"{_number(endpoint['rows'])} rows"]
    if lag["segments"]:
        parts.append(f"{lag['segments']:,} segments and {lag['seconds']:.1f}s behind")
    if endpoint["refused"]:
        parts.append(f"{endpoint['refused']:,} changes refused")
    if endpoint["error"]:
        parts.append(f"{endpoint['error']['message']} [{endpoint['error']['code']}]")
    return ", ".join(parts)


def _number(value: int | None) -> str:
    return "–" if value is None else f"{value:,}"
