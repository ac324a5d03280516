"""The audit log of dead letters: who replayed or discarded which of them, and when.

It is append-only. A line names up to a thousand dead letters, so that a million of them take a thousand lines. It is
read with Arrow, without a Python object per dead letter.
"""

from __future__ import annotations

import getpass
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from headrace.core.errors import Exit, ProjectError
from headrace.core.files.objects import ObjectPath
from headrace.core.files.state_files import StatePath
from headrace.engine.state.locks import Fence, HeldError, holding
from headrace.engine.state.utc import utc_now

What = Literal["replay-begun", "replayed", "still-bad", "discarded"]
CLOSING: tuple[What, ...] = ("replayed", "discarded")

_SCHEMA = pa.schema(
    [
        ("at", pa.string()),
        ("by", pa.string()),
        ("what", pa.string()),
        ("flow", pa.string()),
        ("generation", pa.string()),
        ("replay", pa.string()),
        ("ids", pa.list_(pa.string())),
        ("reasons", pa.list_(pa.string())),
        ("details", pa.list_(pa.string())),
    ]
)
_IDS_PER_LINE = 1000
_LONGEST_DETAIL = 300
# a line must fit into a block of the reader
_BLOCK_BYTES = 8 << 20


@dataclass(frozen=True)
class AuditLog:
    """The log of one state folder."""

    folder: StatePath

    @property
    def file(self) -> StatePath:
        return self.folder / "history.jsonl"

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Exclude other commands that change the status of dead letters: two replays at once would duplicate rows.

        The engine does not need the lock, as it only adds dead letters.
        """
        with ExitStack() as lock:
            try:
                lock.enter_context(holding(self.folder / "replay.lock", Fence()))
            except HeldError as error:
                raise ProjectError(
                    "replay-running",
                    f"another command ({error.owner}) is replaying or discarding dead letters",
                    hint="wait until it has ended",
                    exit_code=Exit.CONFLICT,
                ) from error
            except OSError as error:
                raise ProjectError(
                    "state-unwritable",
                    f"the folder of dead letters {self.folder} cannot be written: {error.strerror}",
                    hint="make it writable, or choose another state folder with 'state:' in headrace.yaml",
                ) from error
            yield

    def append(self, what: What, letters: pa.Table, *, replay: str | None = None) -> None:
        """Record what happened to dead letters; returns when it is on disk. Needs the lock.

        `letters` has flow, generation and id, and for "still-bad" the columns reason and detail.
        """
        entry = {"at": utc_now("milliseconds", "+00:00"), "by": _user(), "what": what}
        if replay is not None:
            entry["replay"] = replay
        lines = (json.dumps(entry | line, ensure_ascii=False) for line in _lines(letters, what == "still-bad"))
        _append(self.file, (f"{line}\n".encode() for line in lines))

    def read(self) -> pa.Table:
        """All complete lines, oldest first."""
        try:
            content = self.file.read_bytes()
        except FileNotFoundError:
            return _SCHEMA.empty_table()
        complete = content[: content.rfind(b"\n") + 1]
        if not complete:
            return _SCHEMA.empty_table()
        options = pj.ParseOptions(explicit_schema=_SCHEMA, unexpected_field_behavior="ignore")
        try:
            table = pj.read_json(
                pa.BufferReader(complete), read_options=pj.ReadOptions(block_size=_BLOCK_BYTES), parse_options=options
            )
        except pa.ArrowInvalid as error:
            raise ProjectError(
                "letters-history",
                f"the history of dead letters {self.file} cannot be read: {str(error).splitlines()[0]}",
                hint="fix or remove the line; without it the dead letters that it names are open again",
            ) from error
        return table.select(_SCHEMA.names)

    def closed(self) -> tuple[pa.Array, pa.Array]:
        """The keys of dead letters that are not open, and their status; the newest entry of each comes first."""
        lines = self.read()
        lines = lines.filter(pc.is_in(lines["what"], pa.array(CLOSING)))
        lines = lines.take(pa.array(range(lines.num_rows - 1, -1, -1), pa.int64())).combine_chunks()
        ids = lines["ids"].combine_chunks()
        line_of = pc.list_parent_indices(ids)
        keys = keys_of(lines["flow"].take(line_of), lines["generation"].take(line_of), pc.list_flatten(ids))
        return keys, lines["what"].combine_chunks().take(line_of)

    def of(self, flow: str, letter: str) -> list[dict[str, Any]]:
        """The entries of one dead letter, oldest first."""
        lines = self.read()
        lines = lines.filter(pc.equal(lines["flow"], flow))
        events = []
        for batch in lines.to_batches():
            ids = batch.column("ids")
            hits = pc.indices_nonzero(pc.equal(pc.list_flatten(ids), letter)).to_pylist()
            for line in dict.fromkeys(pc.list_parent_indices(ids).take(pa.array(hits, pa.int64())).to_pylist()):
                events.append(_event(batch.slice(line, 1).to_pylist()[0], letter))
        return events


def keys_of(flow: Any, generation: Any, letter: Any) -> pa.Array:
    """The key of a dead letter includes its generation: when a later generation meets the record, it is open again."""
    joined = pc.binary_join_element_wise(flow, generation, letter, "/")
    return joined.combine_chunks() if isinstance(joined, pa.ChunkedArray) else joined


def _event(line: dict[str, Any], letter: str) -> dict[str, Any]:
    place = line["ids"].index(letter)
    event = {key: line[key] for key in ("at", "by", "what", "generation", "replay")}
    for name, column in (("reason", "reasons"), ("detail", "details")):
        event[name] = line[column][place] if line[column] else None
    return event


def _lines(letters: pa.Table, with_reasons: bool) -> Iterator[dict[str, Any]]:
    pairs = letters.group_by(["flow", "generation"]).aggregate([]).sort_by([("flow", "ascending")])
    for pair in pairs.to_pylist():
        same = pc.and_(pc.equal(letters["flow"], pair["flow"]), pc.equal(letters["generation"], pair["generation"]))
        chosen = letters.filter(same)
        for start in range(0, chosen.num_rows, _IDS_PER_LINE):
            part = chosen.slice(start, _IDS_PER_LINE)
            line: dict[str, Any] = {**pair, "ids": part["id"].to_pylist()}
            if with_reasons:
                line["reasons"] = part["reason"].to_pylist()
                line["details"] = [str(detail)[:_LONGEST_DETAIL] for detail in part["detail"].to_pylist()]
            yield line


def _append(file: StatePath, lines: Iterable[bytes]) -> None:
    if isinstance(file, ObjectPath):
        before = file.read_bytes() if file.is_file() else b""
        file.put(before + b"".join(lines))
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("ab") as out:
        _cut_torn_line(out.fileno(), file)
        out.writelines(lines)
        out.flush()
        os.fsync(out.fileno())


def _cut_torn_line(number: int, file: Path) -> None:
    """A crash during a write leaves an incomplete line; the next line must not be appended to it."""
    size = os.fstat(number).st_size
    with file.open("rb") as content:
        content.seek(max(0, size - _BLOCK_BYTES))
        tail = content.read()
    if tail and not tail.endswith(b"\n"):
        os.ftruncate(number, size - len(tail) + tail.rfind(b"\n") + 1)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may run with a user that has no name
        return str(os.getuid())
