from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from headrace.core.context import Context
from headrace.core.errors import ProjectError
from headrace.core.schema import from_ddl
from headrace.formats.raw import RawFormat

NOWHERE = Context(Path("."), "state")
VALUES = pa.array([b"a", b"\xff\xc3\xa9", None, b""], pa.binary())


def test_bytes_pass_untouched() -> None:
    format = RawFormat()
    schema = format.record_schema(NOWHERE)
    decoded = format.decoder(NOWHERE, schema).decode(VALUES)
    assert (decoded.rows.column("value"), decoded.bad) == (VALUES, ())
    assert format.encoder(NOWHERE, schema).encode(decoded.rows) == VALUES


def test_as_string_nothing_is_bad() -> None:
    format = RawFormat.model_validate({"type": "raw", "as": "string"})
    schema = format.record_schema(NOWHERE)
    decoded = format.decoder(NOWHERE, schema).decode(VALUES)
    assert (decoded.rows.column("value").to_pylist(), decoded.bad) == (["a", "\ufffdé", None, ""], ())
    assert format.encoder(NOWHERE, schema).encode(decoded.rows).to_pylist()[0] == b"a"


@pytest.mark.parametrize("ddl", ["a int", "a string, b string"])
def test_only_one_column_of_bytes_can_be_written(ddl: str) -> None:
    with pytest.raises(ProjectError) as caught:
        RawFormat().encoder(NOWHERE, from_ddl(ddl))
    assert caught.value.code == "wrong-column-type"
