"""`type: archive`: the records of any topics as lines of compressed files, by topic and day."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as StillAtWork
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from time import time as now
from typing import TYPE_CHECKING, Literal
from zoneinfo import ZoneInfo

import pyarrow as pa
from pydantic import Field, PrivateAttr, field_validator, model_validator

from headrace.core.capabilities import (
    AppendsAfterSwitch,
    PublishesWhenCaughtUp,
    ReadableAsStream,
    ReadsAllRows,
    Rewind,
    Rewindable,
    SingleWriter,
)
from headrace.core.context import Batch, Context
from headrace.core.durations import Duration
from headrace.core.errors import ProjectError, did_you_mean
from headrace.core.files.state_files import StatePath, names_in, write_if_absent
from headrace.core.places import ANY, Location
from headrace.core.rows import drain
from headrace.core.sink import Delivery
from headrace.sinks._publish import safe_name
from headrace.sinks._refused import ON_ERROR_DESCRIPTION, OnRefusal, Report, count_up
from headrace.sinks.archive.batch import ArchiveBatch, Staged, withdraw_mark
from headrace.sinks.archive.files import WORKSHOP, archive_root, ends
from headrace.sinks.archive.rows import placed
from headrace.sinks.archive.task import FILE, SUMMARY, ArchiveWrite
from headrace.sinks.archive.upkeep import drop_drafts, finish_folder, withdraw, withdrawn

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_EXTENSIONS = {"gzip": ".gz", "zstd": ".zst", "none": ""}
_TIMES = (
    pa.types.is_temporal,
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_decimal,
    pa.types.is_string,
)
_MEGABYTE = 1_000_000
# the supervisor of flows must not wait until a large day is merged
_LONGEST_WAIT = 5.0


@dataclass
class _OpenFolders:
    """The folders that are not finished. Shared by the thread of the flow and the one that finishes folders."""

    root: StatePath | None = None
    writer: str = ""
    due: dict[str, float] = field(default_factory=dict)
    """Open folders, with the time when each can be finished."""
    opened: set[str] = field(default_factory=set)
    """Folders that this process has opened, so that they have no mark."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held while the files of a batch are moved or a folder is finished."""
    working: threading.Lock = field(default_factory=threading.Lock)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _OpenFolders)


class ArchiveSink(Rewindable, AppendsAfterSwitch, ReadableAsStream, PublishesWhenCaughtUp, SingleWriter, ReadsAllRows):
    """Values as lines of files `<path>/<topic>/dt=2026-01-31/<flow>-<sink>-<generation>-<batch>-<n>.json.gz`.

    A file is complete when it appears; a hidden `_<name>.json` next to it describes its lines and their positions.

    Delivery: exactly once per generation of the flow; files are staged, listed in a manifest and renamed, and a
    repeated batch completes the renames. A rewound flow writes its rows again under new names, unless the old files are
    removed. Order: that of the input within a task, so that of a Kafka partition within a folder.
    A day (or hour) is finished when the flow has caught up and the day has been over for `finish_after`: its
    small files are merged, and `_SUCCESS` names all files, their lines and how many were late. A file that was named
    there stays as it is. Late records are still written: the mark becomes `_LATE` and comes back with them in it.
    A reader of a day without a mark skips files that are part of a merged one, as their names show.
    Scale: one file per task, folder and batch, so seconds between batches; on object stores each is copied once.
    One flow per folder of a topic. The folder is one that all workers and the driver share, or on an S3-compatible
    store. A value with a line break, or none, is no line, and a topic that no folder can be named after has no place.
    """

    type: Literal["archive"] = "archive"
    path: str = Field(
        description="The folder, relative to the project, or s3://BUCKET/PATH. Made when missing.",
        examples=["archive", "s3://backups/telemetry"],
    )
    topic: str = Field("topic", description="Column that names the topic, which is the first folder.")
    value: str = Field("value", description="Column with the text or the bytes that become a line.")
    time: str | list[str] = Field(
        description="Column, or columns in the order of preference, that say when a record is from: a time, "
        "milliseconds since 1970, or a text of either. The first that can be read counts; without any a record is in "
        "`dt=unknown`, which is never finished.",
        examples=["_timestamp", ["syncts", "_timestamp"]],
    )
    zone: str = Field("UTC", description="Time zone of days and hours.", examples=["Asia/Kolkata"])
    hours: bool = Field(False, description="A folder for each hour, `dt=2026-01-31/hr=07`, instead of each day.")
    position: list[str] = Field(
        default=[],
        description="Columns with partition and offset of a record. They are stored next to the files, so that readers "
        "can count the records.",
        examples=[["_partition", "_offset"]],
    )
    compression: Literal["gzip", "zstd", "none"] = Field("gzip", description="How files are compressed.")
    level: int | None = Field(None, ge=1, le=19, description="How hard it tries. Default: 6 for gzip, 3 for zstd.")
    extension: str = Field(
        "json", description="Ending of the names, before that of the compression.", pattern=r"^[A-Za-z0-9]+$"
    )
    finish_after: Duration = Field(
        timedelta(hours=1), description="How long after its end a day is finished, when the flow has caught up."
    )
    merge_to: int = Field(256, ge=1, description="Size of merged files in megabytes, about.")
    on_error: OnRefusal = Field("dead_letter", description=ON_ERROR_DESCRIPTION)

    _place: _OpenFolders = PrivateAttr(default_factory=_OpenFolders)

    @field_validator("zone")
    @classmethod
    def _is_a_zone(cls, zone: str) -> str:
        try:
            ZoneInfo(zone)
        except (KeyError, ValueError, OSError):
            raise ValueError(f"'{zone}' is no time zone; write e.g. UTC or Asia/Kolkata") from None
        return zone

    @model_validator(mode="after")
    def _fits_together(self) -> ArchiveSink:
        if self.position and len(self.position) != 2:
            raise ValueError("'position' is two columns: partition and offset")
        if not self.times:
            raise ValueError("'time' names no column")
        if self.level is not None and (self.compression == "none" or (self.compression == "gzip" and self.level > 9)):
            raise ValueError("'level' is 1 to 9 for gzip and 1 to 19 for zstd")
        return self

    @property
    def times(self) -> list[str]:
        """The columns of the time, the preferred first."""
        return [self.time] if isinstance(self.time, str) else self.time

    @property
    def guarantee(self) -> Delivery:
        """Staged, then published by a manifest."""
        return "exactly_once"

    @property
    def single_writer(self) -> bool:
        """The process that finishes a day must know all writers."""
        return True

    @property
    def target(self) -> str:
        return self.path

    @property
    def label(self) -> str:
        return f"archive {self.path}"

    def places(self, context: Context, texts: Mapping[str, Sequence[str]]) -> tuple[Location, ...]:
        root = archive_root(context.path(self.path), context.store)
        return tuple(Location("files", f"{root}/{name}/*") for name in texts.get(self.topic, (ANY,)))

    @property
    def has_unpublished(self) -> bool:
        """Whether a day is ready to be finished."""
        return any(due <= now() for due in list(self._place.due.values()))

    def check(self, context: Context) -> None:
        """The folder can be written, or the store answers."""
        root = archive_root(context.path(self.path), context.store)
        if not isinstance(root, Path):
            names_in(root)
            return
        if root.exists() and not root.is_dir():
            raise ProjectError("not-a-folder", f"{root} is a file, and a folder is wanted", hint="choose another path")
        present = next(parent for parent in (root, *root.parents) if parent.exists())
        if not os.access(present, os.W_OK):
            raise ProjectError("folder-not-writable", f"{present} may not be written", hint=f"chmod u+w {present}")

    def check_rows(self, context: Context, columns: Sequence[str], output: str, schema: pa.Schema | None) -> None:
        """Refuse missing columns, and output that replaces earlier rows."""
        if output == "update":
            raise ProjectError(
                "files-append-only",
                "an archive cannot replace rows, and the flow's output is 'update'",
                hint="set output: append on the flow, or use a lake sink with a key",
            )
        named = [("topic", [self.topic]), ("value", [self.value]), ("time", self.times), ("position", self.position)]
        for option, names in named:
            for name in names:
                if name not in columns:
                    raise ProjectError(
                        "unknown-column", f"{option} names '{name}'", hint=did_you_mean(name, columns, "columns")
                    )
        if schema is not None:
            self._check_times(schema)

    def write_batch(self, rows: DataFrame, batch: Batch) -> None:
        root = self._opened(batch)
        extension = f".{self.extension}{_EXTENSIONS[self.compression]}"
        staged = ArchiveBatch(root, self._place.writer, safe_name(batch.generation), batch.batch_id, extension)
        if staged.is_written():
            drain(rows)
        else:
            files = staged.write(lambda staging: self._stage(rows, staging, batch))
            batch.tally.add_bytes(batch.flow, batch.sink, sum(file.bytes for file in files))
        with self._place.lock:
            late = staged.finish(self._open)
        if late:
            batch.tally.add(batch.flow, batch.sink, "late", late)

    def publish_caught_up(self, context: Context) -> None:
        """Finish the days that are over. A large one is slow, so the caller does not wait for it."""
        pool = ThreadPoolExecutor(1, "headrace archive")
        try:
            pool.submit(self._finish_due).result(_LONGEST_WAIT)
        except StillAtWork:
            pass  # later calls do nothing until it is done; the process waits for it before it ends
        finally:
            pool.shutdown(wait=False)

    def rewind_effect(self, rewind: Rewind, replace: bool) -> str:
        if not replace:
            return f"{rewind.read_again}: their lines are written to new files, next to the existing ones"
        count = len(withdrawn(archive_root(rewind.context.path(self.path), rewind.context.store), rewind))
        return f"what later batches wrote goes, from {count:,} file{'' if count == 1 else 's'}; {rewind.read_again}"

    def take_back(self, rewind: Rewind) -> None:
        """Remove the lines of later batches; the days they wrote to are open again."""
        root = archive_root(rewind.context.path(self.path), rewind.context.store)
        withdraw(root, rewind, lambda folder: write_if_absent(_open_mark(root, folder), b""))

    def _check_times(self, schema: pa.Schema) -> None:
        for name in self.times:
            kind = schema.field(name).type
            if not any(able(kind) for able in _TIMES):
                raise ProjectError(
                    "wrong-column-type",
                    f"time names '{name}', which is {kind}",
                    hint="a timestamp, a date, milliseconds since 1970 or a text",
                )

    def _opened(self, batch: Batch) -> StatePath:
        """The root of the archive; the first call also reads which folders earlier processes left open."""
        place = self._place
        if place.root is None:
            root = archive_root(batch.context.path(self.path), batch.context.store)
            place.writer = safe_name(batch.flow, batch.sink)
            drop_drafts(root, place.writer)
            for name in names_in(root / WORKSHOP / "open"):
                self._know(name.replace(",", "/"))
            place.root = root
        return place.root

    def _know(self, folder: str) -> None:
        end = ends(folder, self.zone)
        if end is not None:
            self._place.due[folder] = end + self.finish_after.total_seconds()

    def _open(self, folder: str) -> bool:
        """Record that a folder is open, before it gets a file; returns whether it was finished."""
        place = self._place
        if folder in place.opened:
            return False
        assert place.root is not None, "a batch is being written"
        write_if_absent(_open_mark(place.root, folder), b"")
        withdrawn_mark = withdraw_mark(place.root / folder)
        place.opened.add(folder)
        self._know(folder)
        return withdrawn_mark

    def _stage(self, rows: DataFrame, staging: StatePath, batch: Batch) -> list[Staged]:
        lines = placed(rows, self.topic, self.value, self.times, self.zone, self.hours, self.position)
        report = Report.of(batch, self.label, self.on_error)
        work = ArchiveWrite(staging, self.compression, self.level, report)
        outcomes = lines.mapInArrow(work, SUMMARY).collect()
        files = [row for row in outcomes if row.outcome == FILE]
        summary = [(row.outcome, row.rows) for row in outcomes if row.outcome != FILE]
        count_up(batch, [*summary, ("written", sum(row.rows for row in files))])
        return [Staged(row.folder, row.staged, row.rows, row.bytes, json.loads(row.positions)) for row in files]

    def _finish_due(self) -> None:
        place = self._place
        if place.root is None or not place.working.acquire(blocking=False):
            return
        try:
            due = sorted(folder for folder, at in list(place.due.items()) if at <= now())
            for folder in due:
                with place.lock:
                    finish_folder(place.root, folder, place.writer, self.merge_to * _MEGABYTE)
                    _open_mark(place.root, folder).unlink(missing_ok=True)
                    place.opened.discard(folder)
                    place.due.pop(folder, None)
        finally:
            place.working.release()


def _open_mark(root: StatePath, folder: str) -> StatePath:
    """A file that exists while a folder is open."""
    return root / WORKSHOP / "open" / folder.replace("/", ",")
