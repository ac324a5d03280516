"""Output of dead letters, late rows and replays, as text and as JSON."""

from __future__ import annotations

import json as jsonlib
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from headrace.cli.terminal.output import printer, usage_error
from headrace.core.durations import parse_duration
from headrace.core.lazy import lazy_modules

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.engine.letters import dead_letter_index
    from headrace.engine.letters.dead_letter_index import By
    from headrace.engine.replay.replay import ReplayOutcome
    from headrace.engine.replay.replay_folders import FlowReplay
    from headrace.engine.replay.replay_plan import ReplayPlan
else:
    dead_letter_index = lazy_modules("headrace.engine.letters.dead_letter_index")

_DUMP_WIDTH = 16
_SHORT_ID = 8
_LETTER = ("id", "flow", "stream", "generation", "batch", "reason", "detail", "position", "met_at", "status")
_PLAIN = ("id", "flow", "stream", "reason", "status", "met_at", "position", "detail")


def moment(text: str | None) -> datetime | None:
    """Parse a time such as `2026-01-31T12:00:00Z`, or a duration before now such as `2h`."""
    if text is None:
        return None
    try:
        time = datetime.fromisoformat(text)
        return time if time.tzinfo else time.replace(tzinfo=UTC)
    except ValueError:
        pass
    try:
        return datetime.now(UTC) - parse_duration(text)
    except ValueError:
        raise usage_error(
            f"--since: '{text}' is neither a time nor a duration", "2026-01-31T12:00:00Z, or 2h"
        ) from None


def timestamp(value: datetime) -> str:
    """Format a time as all commands do."""
    return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def letter_document(row: dict[str, Any]) -> dict[str, Any]:
    """Return a dead letter as JSON, without its record."""
    document = {name: row[name] for name in _LETTER}
    return document | {"position": jsonlib.loads(row["position"]), "met_at": timestamp(row["met_at"])}


def value_document(value: bytes | None) -> dict[str, Any]:
    """Return a record as JSON, as text if it is text."""
    if value is None:
        return {"value": None, "encoding": None, "size": None}
    text = as_text(value)
    shown = {"value": value.hex(), "encoding": "hex"} if text is None else {"value": text, "encoding": "utf-8"}
    return {**shown, "size": len(value)}


def as_text(value: bytes) -> str | None:
    """Return the record as text; None when it is not UTF-8 or has control characters."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return None
    return text if all(char.isprintable() or char in "\n\r\t" for char in text) else None


def hex_dump(value: bytes) -> list[str]:
    """Return one line per sixteen bytes: offset, hex and printable characters."""
    lines = []
    for start in range(0, len(value), _DUMP_WIDTH):
        part = value[start : start + _DUMP_WIDTH]
        readable = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        lines.append(f"{start:08x}  {part.hex(' '):<{3 * _DUMP_WIDTH - 1}}  {readable}")
    return lines


def print_counts(index: pa.Table, by: By, json: bool) -> None:
    groups = [group | {"newest": timestamp(group["newest"])} for group in dead_letter_index.count(index, by)]
    if json:
        printer.document({"by": by, "items": groups, "total": index.num_rows})
        return
    for group in groups:
        printer.data(f"{group['count']:>12,}  {group[by]}")
    printer.data(f"{index.num_rows:>12,}  in all")


def print_letters(rows: Sequence[dict[str, Any]], groups: Sequence[dict[str, Any]]) -> None:
    """Print dead letters: on a terminal below their reasons, else one per line, separated by tabs."""
    if not printer.on_terminal():
        for row in rows:
            shown = {**row, "met_at": timestamp(row["met_at"])}
            printer.data("\t".join(_one_line(str(shown[name])) for name in _PLAIN))
        return
    from rich.table import Table
    from rich.text import Text

    for group in groups:
        printer.render(Text.assemble((group["reason"], "bold"), f"  {group['count']:,}"))
        table = Table("id", "flow", "stream", "met", "position", "detail", box=None, pad_edge=True)
        for row in rows:
            if row["reason"] == group["reason"]:
                position = ", ".join(f"{key} {value}" for key, value in jsonlib.loads(row["position"]).items())
                cells = (
                    row["id"][:_SHORT_ID],
                    row["flow"],
                    row["stream"],
                    timestamp(row["met_at"]),
                    position,
                    row["detail"],
                )
                table.add_row(*(Text(printer.redact(_one_line(str(cell)))) for cell in cells))
        printer.render(table)


def _one_line(text: str) -> str:
    return text.replace("\t", " ").replace("\r", " ").replace("\n", " ")


def print_letter(row: dict[str, Any], events: Sequence[dict[str, Any]]) -> None:
    """Print one dead letter with its history and its record."""
    for name, value in letter_document(row).items():
        shown = jsonlib.dumps(value, ensure_ascii=False) if isinstance(value, dict) else value
        printer.data(f"{name:<10}  {shown}")
    if row["metadata"]:
        printer.data(f"{'metadata':<10}  {row['metadata']}")
    printer.data("history")
    for event in events:
        parts = [
            event["at"],
            event["what"],
            event.get("by"),
            event.get("replay"),
            event.get("reason"),
            event.get("detail"),
        ]
        printer.data("  " + "  ".join(str(part) for part in parts if part))
    value = row["value"]
    if value is None:
        printer.data("value       (the bytes were not stored)")
        return
    printer.data(f"value       {len(value):,} bytes")
    text = as_text(value)
    for line in hex_dump(value) if text is None else text.splitlines():
        printer.data(f"  {line}")


def letter_count(number: int) -> str:
    return f"{number:,} dead letter{'' if number == 1 else 's'}"


def print_plan(plan: ReplayPlan) -> None:
    """Print the plan of a replay on stderr, because it is not the result."""
    for replay in plan.replays:
        unfinished = f" of the unfinished replay {replay.id}" if replay.chosen is None else ""
        sinks = ", ".join(f"{step.sink.label} ({step.sink.guarantee})" for step in replay.flow.sinks)
        printer.note(f"{replay.flow.name}: {letter_count(replay.letters)}{unfinished} → {sinks}")
    for refusal in plan.refused:
        printer.note(f"{refusal.flow}: {letter_count(refusal.letters)} cannot be replayed")
        printer.warning(refusal.why)


def outcome_text(outcome: ReplayOutcome) -> str:
    """Describe the outcome of a replay in one line."""
    bad = f", {outcome.still_bad:,} still bad" if outcome.still_bad else ""
    bad += f", {outcome.new:,} new from later steps" if outcome.new else ""
    name = outcome.replay.flow.name
    return f"{name}: {letter_count(outcome.replayed)} replayed ({outcome.rows:,} rows){bad}"


def replay_document(plan: ReplayPlan, outcomes: Sequence[ReplayOutcome], dry_run: bool) -> dict[str, Any]:
    by_id = {outcome.replay.id: outcome for outcome in outcomes}
    return {
        "dry_run": dry_run,
        "replays": [_replay_document(replay, by_id.get(replay.id)) for replay in plan.replays],
        "refused": [
            {"flow": refusal.flow, "letters": refusal.letters, "code": refusal.why.code}
            | {"message": refusal.why.message, "hint": refusal.why.hint}
            for refusal in plan.refused
        ],
    }


def _replay_document(replay: FlowReplay, outcome: ReplayOutcome | None) -> dict[str, Any]:
    return {
        "id": replay.id,
        "flow": replay.flow.name,
        "letters": replay.letters,
        "begun_before": replay.chosen is None,
        "sinks": [{"label": step.sink.label, "guarantee": step.sink.guarantee} for step in replay.flow.sinks],
        "replayed": None if outcome is None else outcome.replayed,
        "still_bad": None if outcome is None else outcome.still_bad,
        "rows": None if outcome is None else outcome.rows,
        "new_letters": None if outcome is None else outcome.new,
    }
