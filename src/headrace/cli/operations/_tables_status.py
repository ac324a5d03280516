"""What `headrace status` says of the tables that are followed from this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.log.tablestatus import read_groups, tables_folder

if TYPE_CHECKING:
    from headrace.core.context import Context


def tables_of(context: Context) -> list[dict[str, Any]]:
    """The last report of the capture process about each table group."""
    return read_groups(tables_folder(context))


def table_lines(groups: list[dict[str, Any]]) -> list[str]:
    """The same for people."""
    return [line for group in groups for line in _lines(group)]


def _lines(group: dict[str, Any]) -> list[str]:
    state = group["state"] if group["live"] or group["state"] == "stopped" else f"{group['state']}?"
    parts = [f"tables {', '.join(group['tables'])}: {state}"]
    if group["changes_per_s"] is not None:
        parts.append(f"{group['changes_per_s']:,.1f} changes/s")
    if group["lag"]:
        parts.append(f"{group['lag']:,} behind")
    lines = [", ".join(parts)]
    reason = group["reason"]
    if reason is not None:
        lines.append(f"  {reason['text']} [{reason['code']}], since {group['since']}")
        lines += [f"  hint: {reason['hint']}"] if reason["hint"] else []
    return lines
