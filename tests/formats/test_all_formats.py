"""What holds for every format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark import cloudpickle

from headrace.core.context import Context
from headrace.core.errors import ProjectError
from headrace.core.format import Format
from headrace.core.kinds import kinds
from headrace.core.schema import from_ddl

AVSC = {
    "type": "record",
    "name": "R",
    "fields": [{"name": "id", "type": ["null", "long"]}, {"name": "customer", "type": ["null", "string"]}],
}
ROWS = [{"id": 1, "customer": "é"}, {"id": -(2**63), "customer": "b,\"c'"}]
OPTIONS: dict[str, dict[str, Any]] = {
    "protobuf": {"descriptors": "shop.desc", "message": "shop.Order"},
    "json": {"columns": "id bigint, customer string"},
    "avro": {"schema_file": "all.avsc"},
    "csv": {"columns": "id bigint, customer string"},
    "raw": {"as": "string"},
}


@pytest.fixture(params=list(OPTIONS))
def format(request: pytest.FixtureRequest, project: Context) -> Format:
    Path(project.path("all.avsc")).write_text(json.dumps(AVSC))
    kind = kinds("formats")[request.param]
    return cast(Format, kind.model_validate({"type": request.param, **OPTIONS[request.param]}))


def wanted(format: Format) -> pa.Schema:
    return from_ddl("value string" if format.kind() == "raw" else "id bigint, customer string")


def rows(format: Format) -> pa.RecordBatch:
    records = [{"value": "a"}, {"value": "b"}] if format.kind() == "raw" else ROWS
    return pa.RecordBatch.from_pylist(records, wanted(format))


def test_all_are_tested() -> None:
    assert set(kinds("formats")) >= set(OPTIONS)


def test_what_is_written_is_read_back_after_a_journey_to_a_worker(format: Format, project: Context) -> None:
    encoder, decoder = format.encoder(project, wanted(format)), format.decoder(project, wanted(format))
    for _ in range(2):  # used ones travel too
        encoder, decoder = cloudpickle.loads(cloudpickle.dumps((encoder, decoder)))
        values = encoder.encode(rows(format))
        assert values.type == pa.binary()
        decoded = decoder.decode(values)
        assert (decoded.rows, list(decoded.bad)) == (rows(format), [])
        assert decoded.rows.schema == decoder.schema == wanted(format)


def test_slices_and_empty_batches(format: Format, project: Context) -> None:
    encoder, decoder = format.encoder(project, wanted(format)), format.decoder(project, wanted(format))
    values = encoder.encode(rows(format))
    assert decoder.decode(values.slice(1)).rows == rows(format).slice(1)
    assert encoder.encode(rows(format).slice(1)) == values.slice(1)
    empty = decoder.decode(values.slice(0, 0))
    assert (empty.rows.num_rows, empty.rows.schema) == (0, wanted(format))
    assert len(encoder.encode(rows(format).slice(0, 0))) == 0


def test_all_bad_batches(format: Format, project: Context) -> None:
    decoded = format.decoder(project, wanted(format)).decode(pa.array([None, b"\xff\xff", None], pa.binary()))
    assert len(decoded.bad) == (0 if format.kind() == "raw" else 3)
    assert decoded.rows.num_rows + len(decoded.bad) == 3
    assert decoded.rows.schema == wanted(format)
    assert all(one.detail and one.reason.islower() for one in decoded.bad)


def test_rows_are_counted_without_columns(format: Format, project: Context) -> None:
    values = format.encoder(project, wanted(format)).encode(rows(format))
    assert format.decoder(project, pa.schema([])).decode(values).rows.num_rows == 2


@pytest.mark.parametrize("kind", list(OPTIONS))
def test_unknown_options_are_refused_and_known_ones_described(kind: str) -> None:
    model = kinds("formats")[kind]
    with pytest.raises(ValueError, match="Extra inputs"):
        model.model_validate({"type": kind, **OPTIONS[kind], "nope": 1})
    assert all(field.description for name, field in model.model_fields.items() if name != "type")
    assert model.__doc__
    assert "Order:" in model.__doc__


def test_asking_for_what_is_not_there_is_a_project_error(format: Format, project: Context) -> None:
    if format.kind() in ("json", "raw"):  # a record of these may have any column
        assert format.decoder(project, from_ddl("idd string")).schema.names == ["idd"]
        return
    with pytest.raises(ProjectError) as caught:
        format.decoder(project, from_ddl("idd bigint"))
    assert caught.value.code == "unknown-column"
