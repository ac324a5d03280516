import json

import pyarrow as pa

from headrace.core.endpoints import OLD, OP, Conflicts, Endpoint
from headrace.core.schema import from_ddl

FILMS = Endpoint(
    "films",
    from_ddl("id bigint, `odd name` string, at timestamp, price decimal(10,2), tags array<string>"),
    key=("id", "at"),
    indexes=(("price",), ("price", "at")),
    text=("odd name",),
    conflicts=Conflicts(on_insert="update"),
    description="all of them",
    version=3,
)


def test_a_definition_survives_being_written_down():
    assert Endpoint.from_json(json.loads(json.dumps(FILMS.to_json()))) == FILMS


def test_changes_carry_the_operation_and_the_old_key():
    changes = FILMS.changes
    assert changes.names == [OP, OLD, *FILMS.columns.names]
    assert changes.field(OLD).type == pa.struct([FILMS.columns.field("id"), FILMS.columns.field("at")])
    assert Endpoint("added", from_ddl("id bigint")).changes.names == [OP, "id"]


def test_what_needs_a_new_version_changes_the_fingerprint():
    columns = from_ddl("id bigint, name string")
    base = Endpoint("films", columns, key=("id",))
    same = Endpoint("films", columns, key=("id",), description="more", conflicts=Conflicts(on_delete="error"))
    others = [
        Endpoint("films", from_ddl("id bigint, name binary"), key=("id",)),
        Endpoint("films", columns, key=("name",)),
        Endpoint("films", columns, key=("id",), indexes=(("name",),)),
        Endpoint("films", columns, key=("id",), text=("name",)),
    ]
    assert same.fingerprint == base.fingerprint
    assert len({base.fingerprint, *(one.fingerprint for one in others)}) == 5
