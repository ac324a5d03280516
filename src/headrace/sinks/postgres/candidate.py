"""The PostgreSQL table of a candidate generation. At the switch only rows are replaced: views and grants stay."""

from __future__ import annotations

from typing import Any

from psycopg import sql

from headrace.core.capabilities import Candidate
from headrace.sinks.postgres.table import ServerTable, find_table, identifiers, split_name
from headrace.sinks.postgres.write import MARKS, make_marks

# names of tables end after 63 bytes, and PostgreSQL cuts off the rest without a word
_LONGEST = 40
_FILLED = """
SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped
AND attgenerated = '' AND attidentity <> 'a' ORDER BY attnum
"""


def candidate_name(table: str, candidate: Candidate) -> str:
    """The name of the table of a candidate, in the same schema."""
    schema, name = split_name(table)
    made = f"{name[:_LONGEST]}__{candidate.generation.replace('-', '_')}"
    return made if schema is None else f"{schema}.{made}"


def make_like(connection: Any, table: str, like: str) -> None:
    """Create a table with the columns, types, defaults and indexes of another one, if that exists."""
    model = find_table(connection, like)
    if model is not None:
        named = sql.Identifier(model.schema, split_name(table)[1])
        connection.execute(sql.SQL("CREATE TABLE {} (LIKE {} INCLUDING ALL)").format(named, model.identifier))


def replace_rows(connection: Any, source: str, target: str, candidate: Candidate, work_schema: str | None) -> None:
    """Replace the rows of a table with those of another one, and mark it, in one transaction."""
    given, held = find_table(connection, source), find_table(connection, target)
    if given is None and held is None:
        return  # neither of the two has had a row
    place = given or held
    assert place is not None, "one of the two is there"
    marks = sql.Identifier(work_schema or place.schema, MARKS)
    make_marks(connection, marks)
    marked = connection.execute(
        sql.SQL(
            "INSERT INTO {} (flow, sink, generation, batch_id) VALUES (%s, %s, %s, 0) "
            "ON CONFLICT (flow, sink, generation) DO NOTHING"
        ).format(marks),
        (candidate.flow, candidate.sink, f"{candidate.generation}.published"),
    )
    if marked.rowcount == 1:
        _replace(connection, given, held, target)


def _replace(connection: Any, given: ServerTable | None, held: ServerTable | None, target: str) -> None:
    if held is None and given is not None:
        make_like(connection, target, f"{given.schema}.{given.name}")
        held = find_table(connection, target)
    assert held is not None, "it is there now"
    connection.execute(sql.SQL("DELETE FROM {}").format(held.identifier))
    if given is None:
        return
    quoted = given.identifier.as_string(connection)
    columns = identifiers([name for (name,) in connection.execute(_FILLED, (quoted,)).fetchall()])
    copy = sql.SQL("INSERT INTO {} ({}) SELECT {} FROM {}")
    connection.execute(copy.format(held.identifier, columns, columns, given.identifier))


def drop_table(connection: Any, table: str) -> None:
    """Delete a table, if it exists."""
    found = find_table(connection, table)
    if found is not None:
        connection.execute(sql.SQL("DROP TABLE {}").format(found.identifier))
