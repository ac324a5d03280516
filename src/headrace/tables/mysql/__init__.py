"""`type: mysql`: tables of MySQL and MariaDB, captured from the binlog."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Literal

from pydantic import Field, SecretStr, field_validator

from headrace.core.context import Context
from headrace.core.errors import ProjectError, did_you_mean
from headrace.core.positions import Position
from headrace.core.tables import TableReader, TableShape, TableSource
from headrace.tables.mysql.reader import MyReader
from headrace.tables.mysql.server import MyServer


class MySqlTable(TableSource):
    """A table of MySQL (8.0.14 or later) or MariaDB (10.5 or later): a snapshot, then the changes in the binlog.

    Delivery: exactly once, in whole transactions of the server; all tables of a server with the same user are read
    together. The snapshot is consistent over all new tables, and the changes continue exactly after it; MySQL needs a
    short global lock for it, MariaDB none. After a restart the table resumes without a snapshot, as long as the server
    has kept the binlog. Order: as committed. Scale: one connection reads the binlog, about
    7,000 updated rows per second of one core; a transaction is held in memory. The server needs `binlog_format=ROW`,
    `binlog_row_image=FULL` and `binlog_row_metadata=FULL`, the user SELECT, RELOAD, REPLICATION SLAVE and REPLICATION
    CLIENT. TRUNCATE and added columns are captured; a DDL statement that may change rows without events leads to a new
    snapshot of the table. Zero dates become null, TIME a text, decimals of more than 38 digits a text.
    """

    type: Literal["mysql"] = "mysql"
    url: SecretStr = Field(
        description="The server and database; `?ssl-ca=FILE` for TLS with that authority.",
        examples=["mysql://reader:${secret:MYSQL_PASSWORD}@db.example:3306/shop"],
    )
    table: str = Field(description="The table; `database.table` for another database.", examples=["orders"])
    server_id: int | None = Field(
        None,
        ge=1,
        le=4_294_967_295,
        description="The server id of the reader, which must differ from that of every replica and other reader; "
        "default: derived from the project's folder and the address.",
    )

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: SecretStr) -> SecretStr:
        if not url.get_secret_value().startswith(("mysql://", "mariadb://")):
            raise ValueError("must begin with mysql:// or mariadb://")
        return url

    @property
    def server(self) -> MyServer:
        return MyServer(self.url.get_secret_value())

    @property
    def place(self) -> tuple[str, str]:
        database, dot, table = self.table.rpartition(".")
        return (database if dot else self.server.database), table

    @property
    def group(self) -> str:
        """All tables of one server and user are read together."""
        return f"mysql {self.server.address}" + (f" {self.server_id}" if self.server_id else "")

    @property
    def label(self) -> str:
        return f"mysql {self.server.address}/{'.'.join(self.place)}"

    def check(self, context: Context) -> None:
        """The server has the settings that the binlog needs, and the table."""
        with self.server.session() as session:
            session.check(self.server.address)
        self.shape(context)

    def shape(self, context: Context) -> TableShape:
        schema, table = self.place
        with self.server.session() as session:
            description = session.describe(schema, table)
            if description is not None:
                return description.shape
            known = [
                str(row[0])
                for row in session.query(
                    "SELECT table_name FROM information_schema.tables WHERE table_schema = %s", (schema,)
                )
            ]
        raise ProjectError(
            "mysql-table-missing",
            f"there is no table '{table}' in database '{schema}' of {self.server.address}, or this user may not see it",
            hint=did_you_mean(table, known[:100], "tables"),
        )

    @classmethod
    def reader(
        cls,
        tables: Mapping[str, TableSource],
        shapes: Mapping[str, TableShape],
        after: Position | None,
        context: Context,
    ) -> TableReader:
        """Takes a snapshot of the tables that are not in the position, then reads the binlog."""
        own = {name: source for name, source in tables.items() if isinstance(source, MySqlTable)}
        first = next(iter(own.values()))
        number = first.server_id or _own_id(first.group, str(context.root))
        places = {name: source.place for name, source in own.items()}
        return MyReader(first.server, number, places, shapes, after)


def _own_id(group: str, root: str) -> int:
    digest = hashlib.blake2b(f"{group}\0{root}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") | 1 << 30
