"""Removes what a flow wrote to a Delta table by restoring a version. Reads the log of the table, without Spark.

Every batch is marked in the commit that holds its rows, so the log shows which version held which batch.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import DeltaError
from pyarrow.fs import FileSelector, FileSystem, FileType

from headrace.core.capabilities import Rewind, replayed_rows_lost
from headrace.core.errors import Exit, ProjectError

PUBLISHED = ".published"
"""The suffix of a mark for all batches of a generation up to its number: they were published at a switch."""


@dataclass(frozen=True)
class DeltaCommit:
    """One version of a table."""

    version: int
    marks: dict[str, int]
    """The writers, each with the number of its batch."""
    changes: bool
    """Whether rows or columns changed; merging small files does not."""
    rows: bool = False
    """Whether rows changed."""


@dataclass(frozen=True)
class Undo:
    """The version of a table to restore."""

    version: int
    """-1: the table without rows."""
    commits: int
    """How many commits of the flow are undone."""


def read_commits(path: str) -> list[DeltaCommit]:
    """The commits in the log, oldest first; none if the table does not exist."""
    files, folder = FileSystem.from_uri(path)
    log = f"{folder}/_delta_log"
    if files.get_file_info(log).type != FileType.Directory:
        return []
    found = []
    for info in files.get_file_info(FileSelector(log)):
        stem, _, kind = info.base_name.partition(".")
        if kind == "json" and stem.isdecimal():
            with files.open_input_stream(info.path) as stream:
                found.append(_commit(int(stem), stream.read().decode()))
    return sorted(found, key=lambda commit: commit.version)


def _commit(version: int, text: str) -> DeltaCommit:
    marks: dict[str, int] = {}
    rows = columns = False
    for action in _actions(text):
        if "txn" in action:
            marks[action["txn"]["appId"]] = int(action["txn"]["version"])
        for kind in ("add", "remove"):
            rows |= kind in action and bool(action[kind].get("dataChange", True))
        columns |= "metaData" in action or "protocol" in action
    return DeltaCommit(version, marks, rows or columns, rows)


def _actions(text: str) -> Iterator[dict[str, dict[str, Any]]]:
    for line in text.splitlines():
        if line.strip():
            yield json.loads(line)


def plan_undo(path: str, rewind: Rewind) -> Undo | None:
    """The version to restore; None when no row has to be removed. Refused if rows of other writers would be lost."""
    commits = read_commits(path)
    mine = [commit for commit in commits if _marks_of(commit, rewind)]
    _require_whole(mine, rewind, path)
    staying = [commit.version for commit in mine if _stays(commit, rewind)]
    target = max(staying) if staying else mine[0].version - 1 if mine else None
    if target is None or not any(commit.version > target for commit in mine):
        return None
    if not staying and commits[0].version > 0:
        raise _gone(path, f"its log begins with version {commits[0].version}")
    for commit in commits:
        if commit.version > target and commit.changes:
            _require_mine(commit, rewind, path)
    _require_files(path, target)
    return Undo(target, sum(commit.version > target for commit in mine))


def undo(path: str, rewind: Rewind) -> None:
    """Restore the version in one marked commit. Idempotent."""

    mark = f"headrace.{rewind.flow}.{rewind.generation}.{rewind.sink}.rewind"
    if any(mark in commit.marks for commit in read_commits(path)):
        return
    plan = plan_undo(path, rewind)
    if plan is None:
        return
    properties = CommitProperties(app_transactions=[Transaction(app_id=mark, version=0)])
    table = DeltaTable(path)
    try:
        if plan.version < 0:
            table.delete(commit_properties=properties)
        else:
            table.restore(plan.version, commit_properties=properties)
    except DeltaError as error:
        raise _gone(path, str(error).splitlines()[0][:200]) from error


def _marks_of(commit: DeltaCommit, rewind: Rewind) -> dict[str, int]:
    """The marks of this flow in a commit, by generation; those of a rewind come before the first batch."""
    prefix, found = f"headrace.{rewind.flow}.", {}
    for mark, number in commit.marks.items():
        if mark.startswith(prefix):
            generation, _, sink = mark.removeprefix(prefix).partition(".")
            found[generation] = -1 if sink.endswith(".rewind") else number
    return found


def _stays(commit: DeltaCommit, rewind: Rewind) -> bool:
    return all(rewind.keeps(generation, number) for generation, number in _marks_of(commit, rewind).items())


def _require_whole(mine: list[DeltaCommit], rewind: Rewind, path: str) -> None:
    """Batches that were published together must be kept or removed together."""
    kept = rewind.last_kept or ("", 0)
    for mark, number in (pair for commit in mine for pair in commit.marks.items()):
        if mark.startswith(f"headrace.{rewind.flow}.{kept[0]}.") and mark.endswith(PUBLISHED) and kept[1] < number:
            raise _gone(
                path, f"batches up to {number} of generation {kept[0]} were built in parallel and published at once"
            )


def _require_mine(commit: DeltaCommit, rewind: Rewind, path: str) -> None:
    marks = _marks_of(commit, rewind)
    if not marks:
        raise ProjectError(
            "rewind-others-wrote",
            f"version {commit.version} of lake table {path} was not written by flow '{rewind.flow}', "
            "and restoring an earlier version would undo it",
            hint="rewind without --replace, or fix the table manually",
            exit_code=Exit.CONFLICT,
        )
    if rewind.last_kept is not None and any(generation.startswith("replay-") for generation in marks):
        raise replayed_rows_lost(rewind, f"lake table {path}")


def _require_files(path: str, version: int) -> None:
    """Refuse versions whose files were removed after the retention of the table."""

    if version < 0:
        return
    files, _ = FileSystem.from_uri(path)
    try:
        wanted = [uri.removeprefix("file://") for uri in DeltaTable(path, version=version).file_uris()]
    except DeltaError as error:
        raise _gone(path, str(error).splitlines()[0][:200]) from error
    if "://" not in path and any(info.type == FileType.NotFound for info in files.get_file_info(wanted)):
        raise _gone(path, f"files of version {version} were removed")


def _gone(path: str, why: str) -> ProjectError:
    return ProjectError(
        "rewind-history-gone",
        f"lake table {path} can no longer go back so far: {why}",
        hint="rewind without --replace, or to a later position",
        exit_code=Exit.CONFLICT,
    )
