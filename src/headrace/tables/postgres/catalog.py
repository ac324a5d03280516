"""Tables, slots and settings of a PostgreSQL server, and checks whether changes can be captured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from psycopg import sql

from headrace.core.errors import ProjectError, did_you_mean
from headrace.core.tables import TableShape
from headrace.systems.postgres.tables import Connection, no_replication
from headrace.tables.postgres.types import TEXT, PgType, PostgresTypes, TypeRow

_TABLE = """
SELECT c.oid::int8, n.nspname, c.relname, c.relkind::text, c.relreplident::text
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = to_regclass(%s) AND c.relkind IN ('r', 'p')
"""
# generated columns are not sent
_COLUMNS = """
SELECT attname, atttypid::int8, atttypmod, attndims FROM pg_attribute
WHERE attrelid = %s::oid AND attnum > 0 AND NOT attisdropped AND attgenerated = '' ORDER BY attnum
"""
_IDENTITY = """
SELECT a.attname FROM pg_index i
CROSS JOIN unnest(i.indkey::int2[]) WITH ORDINALITY AS k (number, place)
JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.number
WHERE i.indrelid = %s::oid AND k.place <= i.indnkeyatts AND i.indimmediate
  AND CASE WHEN %s = 'i' THEN i.indisreplident ELSE i.indisprimary END
ORDER BY k.place
"""
_TYPES = """
SELECT t.oid::int8, t.typname, n.nspname = 'pg_catalog', t.typbasetype::int8, t.typtypmod,
       CASE WHEN t.typcategory = 'A' AND t.typlen = -1 THEN t.typelem::int8 ELSE 0 END
FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace WHERE t.oid = ANY(%s::oid[])
"""
_NAMES = """
SELECT n.nspname || '.' || c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast')
"""
_SLOT = """
SELECT confirmed_flush_lsn::text, coalesce(to_jsonb(s) ->> 'wal_status', '') = 'lost'
FROM pg_replication_slots s WHERE slot_name = %s
"""


@dataclass(frozen=True)
class PgTable:
    """A table as the server has it now."""

    number: int
    schema: str
    name: str
    partitioned: bool
    identity: str
    """Its replica identity: d (primary key), i (an index), f (all columns), n (nothing)."""
    columns: Mapping[str, PgType]
    key: tuple[str, ...]
    """The columns that identify its rows and are logged with every change; empty when there are none."""

    @property
    def shown(self) -> str:
        return f"{self.schema}.{self.name}"

    @property
    def relation(self) -> sql.Composed:
        """The table in SQL: with its partitions, but without tables that inherit from it."""
        return sql.SQL("{}{}").format(
            sql.SQL("" if self.partitioned else "ONLY "), sql.Identifier(self.schema, self.name)
        )

    @property
    def shape(self) -> TableShape:
        """Its columns and key."""
        return TableShape(pa.schema([(name, kind.arrow) for name, kind in self.columns.items()]), self.key)


def types_of(connection: Connection) -> PostgresTypes:
    def lookup(numbers: Sequence[int]) -> dict[int, TypeRow]:
        return {row[0]: TypeRow(*row[1:]) for row in connection.execute(_TYPES, (list(numbers),)).fetchall()}

    return PostgresTypes(lookup)


def find_table(connection: Connection, types: PostgresTypes, table: str, texts: Sequence[str]) -> PgTable:
    """A table whose changes can be captured; `texts` are columns to read as texts."""
    schema, dot, name = table.rpartition(".")
    quoted = (sql.Identifier(schema, name) if dot else sql.Identifier(name)).as_string(connection)
    row = connection.execute(_TABLE, (quoted,)).fetchone()
    if row is None:
        known = [one for (one,) in connection.execute(_NAMES).fetchall()]
        raise ProjectError("postgres-missing", f"there is no table {table}", hint=did_you_mean(table, known, "tables"))
    number, schema, name, kind, identity = row
    columns = connection.execute(_COLUMNS, (number,)).fetchall()
    types.know([column[1] for column in columns])
    kinds = {column: TEXT if column in texts else types.of(*about) for column, *about in columns}
    for column in texts:
        if column not in kinds:
            hint = did_you_mean(column, kinds, "columns")
            raise ProjectError("unknown-column", f"table {table} has no column '{column}' (texts)", hint=hint)
    key = tuple(column for (column,) in connection.execute(_IDENTITY, (number, identity)).fetchall())
    described = PgTable(number, schema, name, kind == "p", identity, kinds, key)
    _require_identity(described)
    return described


def dimensions(connection: Connection, number: int) -> dict[str, int]:
    """The declared number of dimensions of each column."""
    return {column[0]: column[3] for column in connection.execute(_COLUMNS, (number,)).fetchall()}


def _require_identity(table: PgTable) -> None:
    """Without an identity the server would refuse every update and delete of a table that is published."""
    if table.identity == "n" or (table.identity == "d" and not table.key):
        quoted = f'"{table.schema}"."{table.name}"'
        why = "REPLICA IDENTITY NOTHING" if table.identity == "n" else "no primary key"
        identity = "DEFAULT" if table.identity == "n" else "FULL"
        raise ProjectError(
            "table-identity",
            f"table {table.shown} has {why}: its log does not identify changed rows",
            hint=f"give it a primary key, or run: ALTER TABLE {quoted} REPLICA IDENTITY {identity} "
            "(with FULL and no primary key, also write `key` under the table)",
        )


def require_key(table: PgTable, key: Sequence[str]) -> None:
    """Refuse a key whose values the server does not send with every delete."""
    if not key:
        raise ProjectError(
            "table-needs-key",
            f"table {table.shown} has no primary key, so its rows cannot be identified",
            hint="write `key` under the table: the columns that identify a row",
        )
    unknown = [name for name in key if name not in table.columns]
    if unknown:
        hint = did_you_mean(unknown[0], table.columns, "columns")
        raise ProjectError("unknown-column", f"table {table.shown} has no column '{unknown[0]}' (key)", hint=hint)
    if table.identity != "f" and set(key) != set(table.key):
        raise ProjectError(
            "table-identity",
            f"table {table.shown} is keyed by {', '.join(key)} in the project, but its log has only "
            f"{', '.join(table.key)} of a deleted row",
            hint=f'leave out `key`, or run: ALTER TABLE "{table.schema}"."{table.name}" REPLICA IDENTITY FULL',
        )


@dataclass(frozen=True)
class Slot:
    """A replication slot as the server has it."""

    confirmed: str | None
    """Its confirmed position; None for a physical slot."""
    lost: bool
    """Whether the server has removed changes that were not confirmed."""


def find_slot(connection: Connection, name: str) -> Slot | None:
    """The slot, None when there is none."""
    row = connection.execute(_SLOT, (name,)).fetchone()
    return Slot(*row) if row is not None else None


def are_there(connection: Connection, numbers: Sequence[int]) -> bool:
    """Whether all of these tables exist."""
    row = connection.execute("SELECT count(*) FROM pg_class WHERE oid = ANY(%s::oid[])", (list(numbers),)).fetchone()
    return row is not None and row[0] == len(numbers)


def system_of(connection: Connection) -> str:
    """The unique id of the database cluster."""
    row = connection.execute("SELECT system_identifier::text FROM pg_control_system()").fetchone()
    assert row is not None
    return str(row[0])


def require_server(connection: Connection, label: str, slot: str) -> None:
    """Refuse a server without logical replication, a role without the right to it, or a server without a free slot."""
    row = connection.execute(
        "SELECT current_setting('wal_level'), current_user, "
        "(SELECT rolreplication OR rolsuper FROM pg_roles WHERE rolname = current_user), "
        "current_setting('max_replication_slots')::int, "
        "(SELECT count(*) FROM pg_replication_slots WHERE slot_name <> %s)",
        (slot,),
    ).fetchone()
    assert row is not None
    level, role, replicates, most, used = row
    if level != "logical":
        raise ProjectError(
            "wal-level",
            f"{label}: the server has wal_level = {level}, so its log has no changes of rows",
            hint="run: ALTER SYSTEM SET wal_level = 'logical', and restart the server",
        )
    if not replicates:
        raise no_replication(label, f'"{role}"')
    if used + 1 >= most:
        raise ProjectError(
            "slots-used-up",
            f"{label}: {used} of max_replication_slots = {most} are taken, and two more are needed: one to stay, "
            "one while rows are read",
            hint="drop an unused one (pg_replication_slots), or raise max_replication_slots and restart",
        )
