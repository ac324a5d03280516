"""How dead letters, late rows and replays are shown, for people and as JSON."""

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
    """The time that `2026-01-31T12:00:00Z` or, counted back from now, `2h` means."""
    if text is None:
        return None
    try:
        given = datetime.fromisoformat(text)
        return given if given.tzinfo else given.replace(tzinfo=UTC)
    except ValueError:
        pass
    try:
        return datetime.now(UTC) - parse_duration(text)
    except ValueError:
        raise usage_error(
            f"--since: '{text}' is neither a time nor a duration", "2026-01-31T12:00:00Z, or 2h"
        ) from None


def timestamp(value: datetime) -> str:
    """A time in the format of all commands."""
    return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def letter_document(row: dict[str, Any]) -> dict[str, Any]:
    """A dead letter as JSON, without its record."""
    document = {name: row[name] for name in _LETTER}
    return document | {"position": jsonlib.loads(row["position"]), "met_at": timestamp(row["met_at"])}


def value_document(value: bytes | None) -> dict[str, Any]:
    """A record as JSON: as text where it is text."""
    if value is None:
        return {"value": None, "encoding": None, "size": None}
    text = as_text(value)
    shown = {"value": value.hex(), "encoding": "hex"} if text is None else {"value": text, "encoding": "utf-8"}
    return {**shown, "size": len(value)}


def as_text(value: bytes) -> str | None:
    """The record as text, None when it is not UTF-8 or has characters that a terminal would obey."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return None
    return text if all(char.isprintable() or char in "\n\r\t" for char in text) else None


def hex_dump(value: bytes) -> list[str]:
    """Sixteen bytes a line: where they are, what they are, and what is readable of them."""
    lines = []
    for start in range(0, len(value), _DUMP_WIDTH):
        part = value[start : start + _DUMP_WIDTH]
        readable = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        lines.append(f"{start:08x}  {part.hex(' '):<{3 * _DUMP_WIDTH - 1}}  {readable}")
    return lines


def print_counts(index: pa.Table, by: By, json: bool) -> None:
    """Counts by group."""
    groups = [group | {"newest": timestamp(group["newest"])} for group in dead_letter_index.count(index, by)]
    if json:
        printer.document({"by": by, "items": groups, "total": index.num_rows})
        return
    for group in groups:
        printer.data(f"{group['count']:>12,}  {group[by]}")
    printer.data(f"{index.num_rows:>12,}  in all")


def print_letters(rows: Sequence[dict[str, Any]], groups: Sequence[dict[str, Any]]) -> None:
    """Letters below their reasons on a terminal; else one a line, the parts separated by tabs."""
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
                place = ", ".join(f"{key} {value}" for key, value in jsonlib.loads(row["position"]).items())
                cells = (
                    row["id"][:_SHORT_ID],
                    row["flow"],
                    row["stream"],
                    timestamp(row["met_at"]),
                    place,
                    row["detail"],
                )
                table.add_row(*(Text(printer.redact(_one_line(str(cell)))) for cell in cells))
        printer.render(table)


def _one_line(text: str) -> str:
    return text.replace("\t", " ").replace("\r", " ").replace("\n", " ")


def print_letter(row: dict[str, Any], events: Sequence[dict[str, Any]]) -> None:
    """One dead letter with its history and its record."""
    for name, value in letter_document(row).items():
        shown = jsonlib.dumps(value, ensure_ascii=False) if isinstance(value, dict) else value
        printer.data(f"{name:<10}  {shown}")
    if row["metadata"]:
        printer.data(f"{'metadata':<10}  {row['metadata']}")
    printer.data("history")
    for event in events:
        said = [
            event["at"],
            event["what"],
            event.get("by"),
            event.get("replay"),
            event.get("reason"),
            event.get("detail"),
        ]
        printer.data("  " + "  ".join(str(part) for part in said if part))
    value = row["value"]
    if value is None:
        printer.data("value       (its bytes were not kept)")
        return
    printer.data(f"value       {len(value):,} bytes")
    text = as_text(value)
    for line in hex_dump(value) if text is None else text.splitlines():
        printer.data(f"  {line}")


def letters(number: int) -> str:
    """The number, with its noun."""
    return f"{number:,} dead letter{'' if number == 1 else 's'}"


def print_plan(plan: ReplayPlan) -> None:
    """What a replay would do. It goes to stderr because it is not the result."""
    for one in plan.replays:
        begun = f", which replay {one.id} began with and did not finish" if one.chosen is None else ""
        sinks = ", ".join(f"{step.sink.label} ({step.sink.guarantee})" for step in one.flow.sinks)
        printer.note(f"{one.flow.name}: {letters(one.letters)}{begun} → {sinks}")
    for refusal in plan.refused:
        printer.note(f"{refusal.flow}: {letters(refusal.letters)} cannot be replayed")
        printer.warning(refusal.why)


def outcome_text(outcome: ReplayOutcome) -> str:
    """The outcome of a replay as one line."""
    bad = f", {outcome.still_bad:,} still bad" if outcome.still_bad else ""
    bad += f", {outcome.new:,} new from later steps" if outcome.new else ""
    name = outcome.replay.flow.name
    return f"{name}: {letters(outcome.replayed)} replayed ({outcome.rows:,} rows){bad}"


def replay_document(plan: ReplayPlan, outcomes: Sequence[ReplayOutcome], dry_run: bool) -> dict[str, Any]:
    """The plan and its outcomes, as JSON."""
    done = {outcome.replay.id: outcome for outcome in outcomes}
    return {
        "dry_run": dry_run,
        "replays": [_replay_document(one, done.get(one.id)) for one in plan.replays],
        "refused": [
            {"flow": one.flow, "letters": one.letters, "code": one.why.code, "message": one.why.message}
            | {"hint": one.why.hint}
            for one in plan.refused
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
