"""The copy of a table group: it catches up with the log after a crash, and is built again when it is lost."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pyarrow as pa

from headrace.log.log import LogCutError
from headrace.log.tables import TableLog
from headrace.store.lmdb.errors import StoreDamagedError
from headrace.store.tables.copy import TableCopy

_AT_ONCE = 64


@contextmanager
def copy_of(folder: Path, log: TableLog) -> Iterator[TableCopy]:
    """The copy in a folder while it is used. A copy that turns out to be damaged is removed, to be built again."""
    copy = open_copy(folder, log)
    try:
        with closing(copy):
            yield copy
    except StoreDamagedError:
        shutil.rmtree(folder)
        raise


def open_copy(folder: Path, log: TableLog) -> TableCopy:
    """The copy in a folder as of the newest commit of the log. A damaged or foreign copy is built again."""
    try:
        copy = TableCopy.open(folder)
    except StoreDamagedError:
        shutil.rmtree(folder)
        copy = TableCopy.open(folder)
    try:
        catch_up(copy, log)
    except BaseException:
        copy.close()
        raise
    return copy


def catch_up(copy: TableCopy, log: TableLog) -> None:
    """Apply the commits of the log that a copy lacks."""
    if copy.log != (log.id() or "") or copy.sequence > log.end():
        build_copy(copy, log)
        return
    try:
        _follow(copy, log)
    except LogCutError:
        build_copy(copy, log)


def build_copy(copy: TableCopy, log: TableLog) -> None:
    copy.begin_again()
    sequence, shapes = log.end(), log.shapes()
    for table, shape in shapes.items():
        for rows in log.rows(table, sequence, shape):
            copy.follow(sequence, {table: rows}, shapes)
    if sequence:
        copy.finish(log.id() or "", sequence)


def _follow(copy: TableCopy, log: TableLog) -> None:
    shapes = log.shapes()
    while segments := log.after(copy.sequence, _AT_ONCE):
        for segment in segments:
            # a table that was removed from the group has no shape
            named = {table: parts for table, parts in segment.parts.items() if table in shapes}
            rows = {table: [log.read(part, shapes[table]) for part in parts] for table, parts in named.items()}
            copy.follow(segment.sequence, {table: pa.concat_tables(found) for table, found in rows.items()}, shapes)
