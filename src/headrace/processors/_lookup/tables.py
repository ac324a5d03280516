"""Lookup tables: lake tables and files, read without Spark in the tasks.

A batch reads one version of a lake table. The first task of the batch records the version; the other tasks, and the
batch when it runs again, read the same one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.dataset as ds
from pydantic import Field, model_validator

from headrace.core.component import Options
from headrace.core.errors import Exit, ProjectError
from headrace.core.files.state_files import StatePath, write_if_absent
from headrace.core.processor import PlanContext, StepContext
from headrace.core.schema import from_ddl, to_ddl

Kind = Literal["lake", "parquet", "csv", "json"]
# only the last batches may run again
_PINNED_BATCHES = 20


class TableAt(Options):
    """Where a table is: exactly one of `flow`, `lake` and `files`."""

    flow: str | None = Field(None, description="A flow of the project: its lake table.", examples=["customers"])
    lake: str | None = Field(
        None, description="Folder or URI of a lake table, relative to the project.", examples=["lake/customers"]
    )
    files: str | None = Field(
        None, description="A file, or a folder with files, relative to the project.", examples=["ref/areas.csv"]
    )
    format: Literal["parquet", "csv", "json"] = Field(
        "parquet", description="The format of the files; csv with a header line, json with one object per line."
    )

    @model_validator(mode="after")
    def _one_place(self) -> TableAt:
        if sum(place is not None for place in (self.flow, self.lake, self.files)) != 1:
            raise ValueError("needs exactly one of 'flow', 'lake' and 'files'")
        return self

    @property
    def label(self) -> str:
        return self.flow or self.lake or self.files or ""

    def locate(self, project: PlanContext) -> LookupTable:
        if self.files is not None:
            return LookupTable(self.format, project.context.path(self.files), self.label)
        if self.lake is not None:
            return LookupTable("lake", project.context.path(self.lake), self.label)
        table = project.lake_table(self.flow or "")
        return LookupTable("lake", project.context.path(table.path), self.label, table.columns)


@dataclass(frozen=True)
class LookupTable:
    """A table that may not exist yet."""

    kind: Kind
    path: str
    label: str
    columns: tuple[str, ...] | None = None
    """The names of its columns, if the project declares them."""

    def schema(self) -> pa.Schema | None:
        """Its columns; None while it does not exist."""
        if self.kind == "lake":
            table = self._lake(None)
            return None if table is None else _plain(pa.schema(table.schema().to_arrow()))
        return _plain(self._files().schema) if Path(self.path).exists() else None

    def version(self) -> str:
        """Identifies the content of the table; "" while it does not exist."""
        if self.kind == "lake":
            table = self._lake(None)
            return "" if table is None else str(table.version())
        return _fingerprint(Path(self.path))

    def read(self, version: str, columns: Sequence[str], where: ds.Expression | None = None) -> pa.Table:
        """Rows of a version of a lake table; the current rows of files."""
        data = self._lake(int(version)).to_pyarrow_dataset() if self.kind == "lake" else self._files()
        rows = data.to_table(columns=list(columns), filter=where)
        return rows.cast(_plain(rows.schema))

    def missing(self) -> ProjectError:
        """The error for a table that does not exist but must."""
        return ProjectError(
            "table-missing",
            f"table '{self.label}' does not exist yet (expected in {self.path})",
            hint="run the flow that writes it first, fix the path, or declare its columns with their types",
            exit_code=Exit.NOT_FOUND,
        )

    def _lake(self, version: int | None) -> Any:
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError, TableNotFoundError

        try:
            return DeltaTable(self.path, version=version)
        except TableNotFoundError:
            return None
        except DeltaError as error:
            raise ProjectError("table-unreadable", f"the table '{self.label}' cannot be read: {error}") from error

    def _files(self) -> ds.Dataset:
        try:
            return ds.dataset(self.path, format=self.kind)
        except (OSError, pa.ArrowInvalid) as error:
            message = f"the table '{self.label}' cannot be read as {self.kind}: {str(error).splitlines()[0]}"
            raise ProjectError("table-unreadable", message, hint="check 'format' and the files") from error


def _plain(schema: pa.Schema) -> pa.Schema:
    """The schema in the types that Spark passes to tasks."""
    try:
        return from_ddl(to_ddl(pa.schema([_simple(field) for field in schema])))
    except KeyError as error:
        raise ProjectError("table-unreadable", f"a column is of type {error}, which Spark does not have") from None


def _simple(field: pa.Field) -> pa.Field:
    """Types of other Arrow writers as their Spark equivalents."""
    kind = field.type
    if pa.types.is_string_view(kind):
        kind = pa.string()
    elif pa.types.is_binary_view(kind):
        kind = pa.binary()
    elif pa.types.is_dictionary(kind):
        kind = kind.value_type
    elif pa.types.is_timestamp(kind) and kind.unit != "us":
        kind = pa.timestamp("us", tz=kind.tz)
    return pa.field(field.name, kind)


def _fingerprint(path: Path) -> str:
    """A hash of the names, sizes and times of files."""
    files = [path] if path.is_file() else sorted(one for one in path.rglob("[!._]*") if one.is_file())
    if not files:
        return ""
    lines = [f"{file} {file.stat().st_size} {file.stat().st_mtime_ns}" for file in files]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class PinnedVersions:
    """The version of a table that each batch of a flow reads."""

    folder: StatePath | None
    generation: str

    @staticmethod
    def of(at: StepContext) -> PinnedVersions:
        """Of one step. Rows outside a batch, such as replayed dead letters, read the newest version."""
        folder = at.context.state_path.absolute() / "flows" / at.flow / "lookups" / at.step
        return PinnedVersions(folder if at.streaming else None, at.generation)

    def version(self, batch: int, newest: Callable[[], str]) -> str:
        """The version that this batch reads: the newest one at the first call."""
        if self.folder is None:
            return newest()
        pin = self.folder / f"{self.generation}-{batch:010}"
        if not pin.is_file():
            write_if_absent(pin, newest().encode())
            self._forget(self.folder, batch)
        return pin.read_text(encoding="utf-8")

    def _forget(self, folder: StatePath, batch: int) -> None:
        for old in folder.glob("[!.]*"):
            generation, _, number = old.name.rpartition("-")
            if generation != self.generation or int(number) <= batch - _PINNED_BATCHES:
                old.unlink(missing_ok=True)
