"""What only some formats can do: each capability behaves the same in all kinds that have it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet
from tests.formats.descriptor_server import DescriptorServer, descriptor_server

from headrace.core.context import Context
from headrace.core.format import DecodesNatively, EncodesNatively, Format, InfersSchema, RegistryBacked
from headrace.core.kinds import kinds
from headrace.core.schema import from_ddl

CAPABILITIES = {
    DecodesNatively: {"json", "raw"},
    EncodesNatively: {"json"},
    InfersSchema: {"json"},
    RegistryBacked: {"protobuf"},
}
OPTIONS: dict[str, dict[str, Any]] = {
    "json": {"columns": "id bigint, name string"},
    "raw": {"as": "string"},
    "avro": {"schema_file": "a.avsc"},
    "csv": {"columns": "id bigint"},
    "protobuf": {"descriptors": "shop.desc", "message": "shop.Order"},
}
ROWS = {
    "json": [{"id": 1, "name": "é"}, {"id": None, "name": None}, {"id": -(2**63), "name": 'a"b'}],
    "raw": [{"value": "é"}, {"value": ""}],
}
SCHEMAS = {"json": from_ddl("id bigint, name string"), "raw": from_ddl("value string")}


def form(kind: str) -> Any:
    return kinds("formats")[kind].model_validate({"type": kind, **OPTIONS[kind]})


def able(capability: type) -> list[str]:
    return sorted(CAPABILITIES[capability])


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_who_has_it(capability: type) -> None:
    assert {name for name in kinds("formats") if isinstance(form(name), capability)} == CAPABILITIES[capability]


@pytest.mark.spark
@pytest.mark.parametrize("kind", able(DecodesNatively))
def test_spark_decodes_what_the_decoder_does(kind: str, spark: Any, tmp_path: Path) -> None:
    from pyspark.sql import functions as F

    context, schema = Context(tmp_path, "state"), SCHEMAS[kind]
    values = form(kind).encoder(context, schema).encode(pa.RecordBatch.from_pylist(ROWS[kind], schema))
    frame = spark.createDataFrame(pa.table({"value": values})).select(form(kind).native_decode(F.col("value"), schema))
    assert [row[0].asDict() for row in frame.collect()] == ROWS[kind]
    assert form(kind).decoder(context, schema).decode(values).rows.to_pylist() == ROWS[kind]


@pytest.mark.spark
@pytest.mark.parametrize("kind", able(EncodesNatively))
def test_the_decoder_reads_what_spark_encodes(kind: str, spark: Any, tmp_path: Path) -> None:
    from pyspark.sql import functions as F

    schema = SCHEMAS[kind]
    rows = spark.createDataFrame(pa.Table.from_pylist(ROWS[kind], schema))
    encoded = rows.select(form(kind).native_encode(F.struct(*schema.names)).cast("binary").alias("value")).toArrow()
    decoded = form(kind).decoder(Context(tmp_path, "state"), schema).decode(encoded["value"].combine_chunks())
    assert (decoded.rows.to_pylist(), list(decoded.bad)) == (ROWS[kind], [])


@pytest.mark.parametrize("kind", able(InfersSchema))
def test_the_inferred_schema_decodes_the_sample(kind: str, tmp_path: Path) -> None:
    context = Context(tmp_path, "state")
    bare = kinds("formats")[kind]()
    assert isinstance(bare, Format)
    assert isinstance(bare, InfersSchema)
    assert bare.record_schema(context) is None
    known = SCHEMAS[kind]
    sample = form(kind).encoder(context, known).encode(pa.RecordBatch.from_pylist(ROWS[kind], known)).to_pylist()
    inferred = bare.infer(sample)
    assert set(inferred.names) == set(known.names)
    decoded = bare.decoder(context, inferred).decode(pa.array(sample, pa.binary()))
    assert [{name: row[name] for name in known.names} for row in decoded.rows.to_pylist()] == ROWS[kind]


@pytest.fixture
def registry() -> Iterator[DescriptorServer]:
    file = FileDescriptorProto(name="order.proto", package="shop", syntax="proto3")
    optional_long = {"type": FieldDescriptorProto.TYPE_INT64, "label": FieldDescriptorProto.LABEL_OPTIONAL}
    file.message_type.add(name="Order").field.add(name="id", number=1, **optional_long)
    with descriptor_server(FileDescriptorSet(file=[file]).SerializeToString()) as server:
        yield server


@pytest.mark.parametrize("kind", able(RegistryBacked))
def test_a_registry_is_watched_only_if_there_is_one(kind: str, registry: DescriptorServer, tmp_path: Path) -> None:
    context = Context(tmp_path, str(tmp_path / "state"))
    without = form(kind)
    assert (without.registry_key, without.refresh_every, without.refusal(context)) == (None, None, None)
    assert without.offer(context) is None
    backed = without.model_validate({**OPTIONS[kind], "descriptors": registry.url})
    assert backed.record_schema(context).names == ["id"]
    assert backed.registry_key
    assert backed.refresh_every.total_seconds() > 0
    assert (backed.offer(context), backed.refusal(context)) == (None, None), "the newest schema is in force"
