"""The publication of the tables of a slot: created here, or an existing one."""

from __future__ import annotations

from collections.abc import Sequence

from psycopg import sql

from headrace.core.errors import ProjectError
from headrace.systems.postgres.tables import Connection
from headrace.tables.postgres.catalog import PgTable

_OPTIONS = """
SELECT puballtables, pubinsert AND pubupdate AND pubdelete AND pubtruncate, pubviaroot
FROM pg_publication WHERE pubname = %s
"""
# not null for a table with filtered rows or columns, from version 15 on
_MEMBERS = """
SELECT prrelid::int8, to_jsonb(r) ->> 'prqual' IS NOT NULL OR to_jsonb(r) ->> 'prattrs' IS NOT NULL
FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid WHERE p.pubname = %s
"""
_TABLES = """
SELECT to_regclass(format('%%I.%%I', schemaname, tablename))::oid::int8
FROM pg_publication_tables WHERE pubname = %s
"""


def keep_publication(connection: Connection, name: str, tables: Sequence[PgTable], whole: Sequence[PgTable]) -> None:
    """Create or update our own publication for exactly these tables. `whole` tables must have been in it before."""
    relations = sql.SQL(", ").join(table.relation for table in tables)
    members = {row[0] for row in connection.execute(_MEMBERS, (name,)).fetchall()}
    for table in whole:
        if table.number not in members:
            raise ProjectError(
                "publication-missing",
                f"publication {name} is gone or has lost table {table.shown}, so changes since are missing",
                hint="write another `slot` under the tables: all their rows are then read again",
            )
    if connection.execute(_OPTIONS, (name,)).fetchone() is None:
        statement = "CREATE PUBLICATION {} FOR TABLE {} WITH (publish_via_partition_root = true)"
        connection.execute(sql.SQL(statement).format(sql.Identifier(name), relations))
    elif members != {table.number for table in tables}:
        connection.execute(sql.SQL("ALTER PUBLICATION {} SET TABLE {}").format(sql.Identifier(name), relations))


def require_publication(connection: Connection, name: str, tables: Sequence[PgTable]) -> None:
    """Refuse an existing publication that does not publish all changes of every table."""
    options = connection.execute(_OPTIONS, (name,)).fetchone()
    if options is None:
        raise ProjectError(
            "publication-missing",
            f"there is no publication {name}",
            hint="create it, fix its name, or leave out `publication`: then one is created",
        )
    every, all_kinds, via_root = options
    if not all_kinds:
        raise _unfit(name, "does not publish all of insert, update, delete and truncate", "SET (publish = '…')")
    published = {row[0] for row in connection.execute(_TABLES, (name,)).fetchall()}
    filtered = {row[0] for row in connection.execute(_MEMBERS, (name,)).fetchall() if row[1]}
    for table in tables:
        relation = table.relation.as_string(connection)
        if table.partitioned and not via_root:
            why = f"tells the changes of {table.shown} by its partitions"
            raise _unfit(name, why, "SET (publish_via_partition_root = true)")
        if not every and table.number not in published:
            raise _unfit(name, f"does not have table {table.shown}", f"ADD TABLE {relation}")
        if table.number in filtered:
            raise _unfit(name, f"leaves out rows or columns of table {table.shown}", f"SET TABLE {relation}")


def _unfit(name: str, why: str, change: str) -> ProjectError:
    return ProjectError(
        "publication-unfit",
        f"publication {name} {why}",
        hint=f'run: ALTER PUBLICATION "{name}" {change}; or leave out `publication`: then one is created',
    )


def lacking_rights(connection: Connection, table: PgTable, publication: str | None) -> list[str]:
    """The privileges that this role lacks, as text."""
    row = connection.execute(
        "SELECT has_table_privilege(%s::oid, 'SELECT'), has_database_privilege(current_database(), 'CREATE'), "
        "(SELECT pg_has_role(relowner, 'USAGE') FROM pg_class WHERE oid = %s::oid)",
        (table.number, table.number),
    ).fetchone()
    assert row is not None
    selects, creates, owns = row
    lacking = [] if selects else [f"SELECT ON {table.shown}"]
    if publication is None:
        lacking += [] if creates else ["CREATE ON the database"]
        lacking += [] if owns else [f"being an owner of {table.shown}"]
    return lacking
