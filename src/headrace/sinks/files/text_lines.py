"""Documents as lines of text files, in folders that a column names.

Spark writes a batch once, each row below the folder that it belongs to, and rows that cannot be a line, or whose folder
cannot be one, into a folder of their own. From there a task makes them dead letters before the batch is published.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from headrace.core.context import Batch
from headrace.core.lazy import lazy_modules
from headrace.core.schema import quoted
from headrace.sinks._refused import Report, write_counted
from headrace.sinks._routed import row_for_each

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql import functions as F
else:
    F = lazy_modules("pyspark.sql.functions")

VALUE = "value"
_FOLDER = "folder"
_REFUSED = "refused"
_WRITTEN = "to."
# a name that is the same on every file system, and that no glob takes for anything else
_NAME = "^[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}$"
_DETAILS = {
    "no-value": "`value` is null",
    "line-break": "`value` has a line break in it",
    "bad-folder-name": "a folder has letters, digits, `_`, `.` and `-` in its name, and neither of the last two first",
}


def staged(rows: DataFrame, folder_column: str | None) -> DataFrame:
    """One line of each row, and the folder in which it is to be staged."""
    if folder_column is not None:
        rows = row_for_each(rows, folder_column)
    value = F.col(VALUE)
    place = F.lit("") if folder_column is None else F.col(quoted(folder_column))
    reason = F.when(value.isNull(), "no-value").when(value.rlike("[\r\n]"), "line-break")
    if folder_column is not None:
        reason = reason.when(~F.coalesce(place.rlike(_NAME), F.lit(False)), "bad-folder-name")
    refused = F.to_json(F.struct(reason.alias("reason"), F.to_json(F.struct("*")).alias("row")))
    return rows.select(
        F.when(reason.isNull(), value).otherwise(refused).alias(VALUE),
        F.when(reason.isNull(), F.concat(F.lit(_WRITTEN), place)).otherwise(F.lit(_REFUSED)).alias(_FOLDER),
    )


def write(rows: DataFrame, folder_column: str | None, options: dict[str, str], staging: Path) -> None:
    writer = staged(rows, folder_column).write.format("text").options(**options)
    writer.partitionBy(_FOLDER).save(staging.as_uri())


def final_folder(staged_in: Path) -> Path | None:
    """Where the files of a staged folder belong; None: they are not for publishing."""
    name = staged_in.name.removeprefix(f"{_FOLDER}=")
    return Path(name.removeprefix(_WRITTEN)) if name.startswith(_WRITTEN) else None


def refuse(rows: DataFrame, staging: Path, batch: Batch, label: str) -> None:
    """Make dead letters of the rows that are not for publishing."""
    folder = staging / f"{_FOLDER}={_REFUSED}"
    if folder.exists():
        work = _Refuse(str(folder), Report.of(batch, label, "dead_letter"))
        write_counted(rows.sparkSession.range(0, 1, 1, 1), work, batch)


@dataclass(frozen=True)
class _Refuse:
    """What a task does. Files and lines are taken in their order, so a batch that runs again makes the same letters."""

    folder: str
    report: Report

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            for number, line in enumerate(self._lines()):
                refused = msgspec.json.decode(line)
                reason = refused["reason"]
                self.report.refused(number, reason, _DETAILS[reason], refused["row"].encode())
        yield from self.report.batches()

    def _lines(self) -> Iterator[bytes]:
        for file in sorted(Path(self.folder).glob("part-*")):
            with pa.input_stream(str(file), compression="detect") as stream:
                yield from _split(stream)


def _split(stream: pa.NativeFile) -> Iterator[bytes]:
    rest = b""
    while data := stream.read(1 << 20):
        *lines, rest = (rest + data).split(b"\n")
        yield from lines
