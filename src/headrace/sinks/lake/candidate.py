"""The Delta table of a candidate generation, whose rows replace those of another table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyarrow.fs import FileSystem, FileType

from headrace.core.capabilities import Candidate
from headrace.core.errors import Exit, ProjectError
from headrace.sinks.lake.delta import table_state
from headrace.sinks.lake.undo import PUBLISHED, read_commits

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import SparkSession


def require_alone(path: str, candidate: Candidate) -> None:
    """Refuse a table with other writers: their rows would be lost at the switch."""
    for commit in read_commits(path):
        if commit.rows and not any(mark.startswith(f"headrace.{candidate.flow}.") for mark in commit.marks):
            raise ProjectError(
                "beside-others-wrote",
                f"version {commit.version} of lake table {path} was not written by flow '{candidate.flow}': "
                "its rows would be lost",
                hint=f"give the flow its own table, or leave out --beside (run --new-generation {candidate.flow})",
                exit_code=Exit.CONFLICT,
            )


def replace_rows(
    spark: SparkSession,
    source: str,
    target: str,
    candidate: Candidate,
    partition_by: Sequence[str],
    options: Mapping[str, str],
) -> None:
    """Replace the rows and columns of a table with those of another one, in one marked commit.

    Readers see the old rows or the new ones. Their files stay as long as the table's retention says.
    """
    mark = f"headrace.{candidate.flow}.{candidate.generation}.{candidate.sink}{PUBLISHED}"
    held = table_state(spark, target, mark)
    if held.last_batch >= 0:
        return
    new_columns = table_state(spark, source, mark).columns
    if new_columns is None and held.columns is None:
        return  # neither of the two has a row
    rows = spark.read.format("delta").load(source if new_columns is not None else target)
    if new_columns is None:
        rows = rows.limit(0)
    marked = {**options, "txnAppId": mark, "txnVersion": str(candidate.batch), "overwriteSchema": "true"}
    writer = rows.write.format("delta").mode("overwrite").options(**marked)
    (writer.partitionBy(*partition_by) if partition_by else writer).save(target)


def remove_table(path: str) -> None:
    """Delete a table, if it exists."""
    files, folder = FileSystem.from_uri(path)
    if files.get_file_info(folder).type == FileType.Directory:
        files.delete_dir(folder)
