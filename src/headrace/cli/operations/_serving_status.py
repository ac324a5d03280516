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
    """The same for people: nothing when nothing was ever served here."""
    node, endpoints = served["node"], served["endpoints"]
    if node is None:
        return [f"endpoints: no node serves them here: {', '.join(endpoints)}"] if endpoints else []
    where = node["http"] or "starting"
    silence = ", its applier does not report" if served["stale"] else ""
    lines = [f"serve node {node['pid']}, {where}{silence}", *([served["note"]] if served["note"] else [])]
    return [*lines, *(_line(name, one, served["stale"]) for name, one in endpoints.items())]


def _line(name: str, one: dict[str, Any], stale: bool) -> str:
    lag = one["lag"]
    state = f"{one['state']}?" if stale else one["state"]
    parts = [f"{name}: {state}, version {one['version']}", f"{_number(one['rows'])} rows"]
    if lag["segments"]:
        parts.append(f"{lag['segments']:,} segments and {lag['seconds']:.1f}s behind")
    if one["refused"]:
        parts.append(f"{one['refused']:,} changes refused")
    if one["error"]:
        parts.append(f"{one['error']['message']} [{one['error']['code']}]")
    return ", ".join(parts)


def _number(value: int | None) -> str:
    return "–" if value is None else f"{value:,}"
