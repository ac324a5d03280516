"""One row per key in a Delta table."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.core.errors import ProjectError
from headrace.core.runtime.lazy import lazy_modules
from headrace.sinks.lake.delta import settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql import functions as sf
else:
    sf = lazy_modules("pyspark.sql.functions")

_TWICE = "headrace: several rows of one batch have one key"


@dataclass(frozen=True)
class Upsert:
    """How rows with one key replace each other."""

    key: tuple[str, ...]
    sequence: str | None = None
    gone: str | None = None
    """The column with whether a row is deleted, if there is one; then the batch has one row per key."""

    def held(self, rows: DataFrame) -> DataFrame:
        """The rows without the column of deletions."""
        return rows if self.gone is None else rows.drop(self.gone)

    def first(self, rows: DataFrame) -> DataFrame:
        """The rows of a new table."""
        if self.gone is None:
            return self._one_row_per_key(rows)
        return self.held(rows.where(f"NOT `{self.gone}`"))

    def _one_row_per_key(self, rows: DataFrame) -> DataFrame:
        """The newest row of each key. Without a sequence there is no newest one, so several fail the batch."""
        row = sf.struct(*(sf.col(f"`{name}`") for name in rows.columns))
        if self.sequence is not None:
            # as a struct, a null sequence is the oldest instead of being left out
            chosen = sf.max_by(row, sf.struct(sf.col(f"`{self.sequence}`")))
        else:
            chosen = sf.when(sf.count(sf.lit(1)) == 1, sf.first(row)).otherwise(sf.raise_error(sf.lit(_TWICE)))
        return rows.groupBy(*(f"`{name}`" for name in self.key)).agg(chosen.alias("__row")).select("__row.*")

    def statement(self, path: str, view: str, may_add: bool, columns: Sequence[str] = ()) -> str:
        """The MERGE of a view's rows into a table. Pure, so a test needs no Spark."""
        on = " AND ".join(f"t.`{name}` <=> s.`{name}`" for name in self.key)
        head = f"MERGE {'WITH SCHEMA EVOLUTION ' if may_add else ''}INTO delta.`{path}` AS t USING {view} AS s ON {on} "
        if self.gone is not None:
            return head + self._with_deletes(columns)
        newer = (
            f" AND (t.`{self.sequence}` IS NULL OR s.`{self.sequence}` >= t.`{self.sequence}`)" if self.sequence else ""
        )
        return head + f"WHEN MATCHED{newer} THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"

    def _with_deletes(self, columns: Sequence[str]) -> str:
        """All columns by name: `*` would add the column with deletions to the table."""
        given = ", ".join(f"`{name}` = s.`{name}`" for name in columns)
        names, values = (", ".join(f"{of}`{name}`" for name in columns) for of in ("", "s."))
        return (
            f"WHEN MATCHED AND s.`{self.gone}` THEN DELETE WHEN MATCHED THEN UPDATE SET {given} "
            f"WHEN NOT MATCHED AND NOT s.`{self.gone}` THEN INSERT ({names}) VALUES ({values})"
        )

    def merge(self, rows: DataFrame, path: str, mark: Mapping[str, str], may_add: bool) -> None:
        spark = rows.sparkSession
        view = f"headrace_{uuid.uuid4().hex}"
        # MERGE reads its source twice, and the rows of a batch may be computed only once
        source = (self._one_row_per_key(rows) if self.gone is None else rows).persist()
        source.createOrReplaceTempView(view)
        try:
            with settings(spark, {f"spark.databricks.delta.write.{name}": value for name, value in mark.items()}):
                spark.sql(self.statement(path, view, may_add, self.held(rows).columns)).collect()
        finally:
            spark.catalog.dropTempView(view)
            source.unpersist()

    @contextmanager
    def explaining(self, path: str) -> Iterator[None]:
        """Turn the failure for several rows with one key into an error with a fix."""
        try:
            yield
        except Exception as error:  # as Spark wraps it: a PySparkException from SQL, a Py4JJavaError from writing
            if _TWICE not in str(error):
                raise
            raise ProjectError(
                "lake-duplicate-key",
                f"several rows of one batch for {path} have the same {', '.join(self.key)}: which one is newest?",
                hint="set sequence to a column that grows with each new version of a row, or GROUP BY the key",
            ) from error
