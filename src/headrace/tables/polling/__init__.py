"""`type: polling`: a table or query of an SQL database, polled repeatedly."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, SecretStr, model_validator

from headrace.core.context import Context
from headrace.core.durations import Duration
from headrace.core.errors import ProjectError, did_you_mean
from headrace.core.lazy import lazy_modules
from headrace.core.positions import Position
from headrace.core.schema import from_ddl
from headrace.core.tables import TableReader, TableShape, TableSource
from headrace.systems.tls import ServiceTls
from headrace.tables._options import Columns

if TYPE_CHECKING:
    from headrace.tables.polling import mysql, postgres, reader, sqlite
    from headrace.tables.polling.database import Database
else:
    mysql, postgres, reader, sqlite = lazy_modules(
        "headrace.tables.polling.mysql",
        "headrace.tables.polling.postgres",
        "headrace.tables.polling.reader",
        "headrace.tables.polling.sqlite",
    )

_SCHEMES = ("postgresql", "postgres", "mysql", "mariadb", "sqlite")


def _check_url(url: SecretStr) -> SecretStr:
    parts = urlsplit(url.get_secret_value())
    if parts.scheme not in _SCHEMES or not (parts.path.strip("/") if parts.scheme == "sqlite" else parts.hostname):
        raise ValueError(
            "not the address of a database; write postgresql://host:port/database, mysql://host:port/database or "
            "sqlite:///file.db"
        )
    return url


class PollingTable(TableSource):
    """A table or query of PostgreSQL, MySQL, MariaDB or SQLite that is polled repeatedly.

    With a `cursor`, a poll reads only rows whose cursor is at least the greatest one seen (less `lookback`): deleted
    rows are detected by `deleted` alone, and a row that changes without its cursor is not detected. Without a `cursor`,
    each poll reads all rows, and rows that are missing are deleted. States between two polls are not captured.

    Delivery: each row that a poll reads is applied once. Order: none between rows. Tables of one database that are due
    are read in one transaction, and change together up to 10,000 rows. Scale: with an indexed cursor, the number of
    changes; without one, the whole table each time, so some hundred thousand rows.
    """

    type: Literal["polling"] = "polling"
    url: Annotated[SecretStr, AfterValidator(_check_url)] = Field(
        description="Address of the database. A file of SQLite is relative to the project, with four slashes absolute.",
        examples=["postgresql://127.0.0.1:5432/shop", "mysql://127.0.0.1:3306/shop", "sqlite:///data/shop.db"],
    )
    username: str | None = Field(None, description="The name to log in with, unless it is in `url`.")
    password: SecretStr | None = Field(
        None,
        description="The password to log in with, unless it is in `url`.",
        examples=["${secret:SHOP_PASSWORD}"],
    )
    tls: ServiceTls | None = Field(
        None, description="Insist on TLS and check whom we talk to.", examples=[{"ca": "tls/ca.pem"}]
    )
    table: str | None = Field(
        None, description="The table or view, with its schema if need be.", examples=["orders", "shop.orders"]
    )
    query: str | None = Field(
        None,
        description="Instead of `table`: a query that gives the rows.",
        examples=["SELECT id, status, updated_at FROM orders WHERE tenant = 7"],
    )
    columns: Columns | None = Field(
        None,
        description="The columns to read, as DDL. Left out: all, with the types that the database reports; SQLite "
        "reports none for a query.",
        examples=["id bigint, status string, updated_at timestamp"],
    )
    cursor: str | None = Field(
        None,
        description="Column that rises with every change of a row: a time of change, or a number. Never null.",
        examples=["updated_at", "version"],
    )
    lookback: Annotated[int, Field(gt=0)] | Duration | None = Field(
        None,
        description="How far before the greatest cursor a poll begins, for transactions that are committed late: a "
        "duration if the cursor is a time, else a number.",
        examples=["1min", 1000],
    )
    deleted: str | None = Field(
        None,
        description="Column that marks deleted rows: true, a number other than 0, or any text or time.",
        examples=["deleted_at"],
    )
    every: Duration = Field(timedelta(seconds=5), description="How long to wait between two polls.")
    timeout: Duration = Field(timedelta(seconds=10), description="How long to wait for a connection.")

    @model_validator(mode="after")
    def _check_options(self) -> Self:
        if (self.table is None) == (self.query is None):
            raise ValueError("write either `table` or `query`")
        if self.lookback is not None and self.cursor is None:
            raise ValueError("`lookback` needs a `cursor`")
        return self

    @property
    def scheme(self) -> str:
        return urlsplit(self.url.get_secret_value()).scheme

    @property
    def place(self) -> str:
        """The database, without user, password and parameters."""
        parts = urlsplit(self.url.get_secret_value())
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"

    @property
    def label(self) -> str:
        return f"polling {self.table or 'a query'} at {self.place}"

    @property
    def group(self) -> str:
        return f"polling {self.place}"

    def connect(self, context: Context) -> Database:
        match self.scheme:
            case "sqlite":
                return sqlite.SqliteDatabase(self, context)
            case "mysql" | "mariadb":
                return mysql.MysqlDatabase(self, context)
        return postgres.PostgresDatabase(self, context)

    def check(self, context: Context) -> None:
        """The database answers and has the table and its columns."""
        self.shape(context)

    def shape(self, context: Context) -> TableShape:
        """The columns that are declared or that the database reports, and the primary key of a table."""
        database = self.connect(context)
        try:
            return self.shape_in(database)
        finally:
            database.close()

    def shape_in(self, database: Database) -> TableShape:
        """The same with an open connection."""
        declared = None if self.columns is None else from_ddl(self.columns)
        columns = database.columns(self, declared)
        for option, name in (("cursor", self.cursor), ("deleted", self.deleted)):
            if name is not None and name not in columns.names:
                raise ProjectError(
                    "unknown-column",
                    f"{self.label} has no column '{name}', which `{option}` names",
                    hint=did_you_mean(name, columns.names, "columns"),
                )
        key = database.primary_key(self.table) if self.table is not None else ()
        return TableShape(columns, key if set(key) <= set(columns.names) else ())

    @classmethod
    def reader(
        cls,
        tables: Mapping[str, TableSource],
        shapes: Mapping[str, TableShape],
        after: Position | None,
        context: Context,
    ) -> TableReader:
        """One connection for all of them."""
        own = {name: table for name, table in tables.items() if isinstance(table, cls)}
        first = next(iter(own))
        for name, table in own.items():
            if table._login != own[first]._login:
                raise ProjectError(
                    "connections-differ",
                    f"tables '{first}' and '{name}' reach {table.place} as different users or with different `tls`",
                    hint="tables of one database are read on one connection: write the same for both",
                )
        return reader.PollingReader(own, shapes, after, context)

    @property
    def _login(self) -> tuple[object, ...]:
        return self.url, self.username, self.password, self.tls
