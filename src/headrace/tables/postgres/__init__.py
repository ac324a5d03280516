"""`type: postgres`: a table of a PostgreSQL database and all its changes."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Literal, cast
from urllib.parse import urlsplit

from pydantic import Field

from headrace.core.context import Context
from headrace.core.errors import ProjectError
from headrace.core.options.durations import Duration
from headrace.core.positions import Position
from headrace.core.runtime.lazy import lazy_modules
from headrace.core.tables import TableReader, TableShape, TableSource
from headrace.systems.postgres.connection import PostgresConnection, PostgresUrl
from headrace.systems.services import access_denied

if TYPE_CHECKING:
    from headrace.systems.postgres import tables as pg_tables
    from headrace.systems.postgres.tables import TableServer
    from headrace.tables.postgres import catalog, publication, reader
else:
    pg_tables, catalog, publication, reader = lazy_modules(
        "headrace.systems.postgres.tables",
        "headrace.tables.postgres.catalog",
        "headrace.tables.postgres.publication",
        "headrace.tables.postgres.reader",
    )

_SLOT = r"[a-z0-9_]{1,63}"
_DATABASE_LETTERS = 40


class PostgresTable(PostgresConnection, TableSource):
    """A table of a PostgreSQL database (12 or later) by logical replication: its rows once, then every change.

    Delivery: exactly once. Rows are read under the snapshot at which the replication slot starts, so no change is lost
    or repeated; after a restart the table resumes where its log ends, without reading rows again. The slot advances
    only when changes are durable in the log. Order: as committed. Tables of one database and `slot` change together,
    transaction by transaction; a transaction of more than 10,000 changes is split. Scale: one connection and process
    of the server per slot; some ten thousand changes and more than a hundred thousand rows of a snapshot per second.
    Columns: an added column is captured, with null in unchanged rows; a dropped column is null from then on; a changed
    type is refused. Generated columns are left out. Types: `numeric` without precision is decimal(38,18), its NaN is
    null; infinite dates become the last and first possible ones; types that Spark does not have are texts.
    """

    type: Literal["postgres"] = "postgres"
    url: PostgresUrl = Field(
        description="Address of the database, with further parameters of libpq if need be. The role needs REPLICATION "
        "and SELECT on the table.",
        examples=["postgresql://127.0.0.1:5432/shop", "${secret:POSTGRES_URL}"],
    )
    table: str = Field(
        description="The table, with its schema if that is not in the search path.", examples=["orders", "shop.orders"]
    )
    slot: str | None = Field(
        None,
        pattern=f"^{_SLOT}$",
        description="Replication slot, created when it is missing; one per project. Tables of one database with the "
        "same slot are read together. Left out: headrace_ and the database.",
        examples=["headrace_shop"],
    )
    publication: str | None = Field(
        None,
        description="A publication that has these tables; left out: one is created, named as the slot.",
        examples=["shop_changes"],
    )
    texts: list[str] = Field(
        default=[],
        description="Columns to read as texts, as PostgreSQL writes them: numbers and dates that Spark cannot hold.",
        examples=[["amount"]],
    )
    timeout: Duration = Field(timedelta(seconds=10), description="How long to wait for a connection.")

    @property
    def group(self) -> str:
        """Server, database and slot."""
        return f"postgres {self.address} {self.slot_name}"

    @property
    def label(self) -> str:
        """Table and server, without user and password."""
        return f"postgres {self.table} at {self.address}"

    @property
    def slot_name(self) -> str:
        """The given slot, or a stable default."""
        if self.slot is not None:
            return self.slot
        database = re.sub(r"[^a-z0-9_]", "_", urlsplit(self.url.get_secret_value()).path.strip("/").lower())[
            :_DATABASE_LETTERS
        ]
        return f"headrace_{database}_{hashlib.sha256(self.address.encode()).hexdigest()[:8]}"

    def server(self, context: Context, label: str | None = None) -> TableServer:
        return pg_tables.TableServer(label or self.label, **self.server_parameters(context, self.timeout))

    def check(self, context: Context) -> None:
        """The server supports replication, the role has the rights, a slot is free, and the table can be captured."""
        with pg_tables.explained(self.label), self.server(context).connect() as connection:
            catalog.require_server(connection, self.label, self.slot_name)
            table = catalog.find_table(connection, catalog.types_of(connection), self.table, self.texts)
            lacking = publication.lacking_rights(connection, table, self.publication)
            if lacking:
                raise access_denied(self.label, f"this role lacks {', '.join(lacking)}")
            if self.publication is not None:
                publication.require_publication(connection, self.publication, [table])

    def shape(self, context: Context) -> TableShape:
        with pg_tables.explained(self.label), self.server(context).connect() as connection:
            return catalog.find_table(connection, catalog.types_of(connection), self.table, self.texts).shape

    @classmethod
    def reader(
        cls,
        tables: Mapping[str, TableSource],
        shapes: Mapping[str, TableShape],
        after: Position | None,
        context: Context,
    ) -> TableReader:
        """One slot for all of them."""
        own = cast(Mapping[str, PostgresTable], tables)
        first = next(iter(own.values()))
        publications = {str(table.publication) for table in own.values()}
        if len(publications) > 1:
            raise ProjectError(
                "publication-unfit",
                f"the tables of slot {first.slot_name} have several publications: {', '.join(sorted(publications))}",
                hint="write one publication for all of them, or a `slot` for each",
            )
        followed = {name: reader.FollowedTable(table.table, tuple(table.texts)) for name, table in own.items()}
        server = first.server(context, label=first.group)
        return reader.PostgresReader(server, followed, shapes, first.slot_name, first.publication, after)
