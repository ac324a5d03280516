from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import json_format
from pydantic import ValidationError
from tests.processors.steps import Around

from headrace.core.encoding.descriptors import build_pool, compile_text, files_of
from headrace.core.errors import ProjectError
from headrace.processors.json_payload import JsonPayload

PROTO = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
enum Status { NEW = 0; PAID = 1; }
message Line { int64 cents = 1; string product_name = 2; }
message Order {
  string order_number = 1;
  int64 total = 2;
  Status status = 3;
  google.protobuf.Timestamp created_at = 4;
  repeated Line lines = 5;
  map<string, int64> counts = 6;
  bytes blob = 7;
  Line first = 8;
  int32 small = 9;
}
"""
COLUMNS = (
    "order_number string, total bigint, status string, created_at timestamp, "
    "lines array<struct<cents: bigint, product_name: string>>, counts map<string, bigint>, blob binary, "
    "first struct<cents: bigint, product_name: string>, small int, extra string"
)
ROW = {
    "order_number": "o-1", "total": 2**40, "status": "PAID",
    "created_at": datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC),
    "lines": [{"cents": 5, "product_name": "tea"}], "counts": [("a", 3)], "blob": b"\x00\xff",
    "first": {"cents": 7, "product_name": "x"}, "small": 4, "extra": "y",
}  # fmt: skip


def test_columns() -> None:
    given = pa.schema([("id", pa.int64()), ("at", pa.string())])
    assert JsonPayload().output(given).names == ["id", "at", "payload"]
    assert JsonPayload(columns=["id"]).uses(frozenset({"payload", "at"})) == {"id", "at"}
    with pytest.raises(ProjectError):
        JsonPayload(columns=["ix"]).output(given)
    for wrong in ({"message": "shop.Order"}, {"proto": "a.proto"}, {"message": "x", "proto": "y", "nulls": True}):
        with pytest.raises(ValidationError):
            JsonPayload(**wrong)  # type: ignore[arg-type]


@pytest.fixture
def around(tmp_path: Path) -> Around:
    (tmp_path / "shop.proto").write_text(PROTO)
    return Around(tmp_path)


def test_the_message_decides_what_is_in_it(around: Around) -> None:
    step = JsonPayload(message="shop.Order", proto="shop.proto").bound(around)
    assert "order_number" in (step.uses(frozenset()) or ())
    for columns, code in ((["extra"], "unknown-field"), (["order_number"], None)):
        chosen = step.model_copy(update={"columns": columns})
        given = pa.schema([("order_number", pa.string()), ("extra", pa.string())])
        if code is None:
            assert chosen.output(given).names[-1] == "payload"
            continue
        with pytest.raises(ProjectError) as caught:
            chosen.output(given)
        assert caught.value.code == code
    with pytest.raises(ProjectError) as caught:
        JsonPayload(message="shop.Ordr", proto="shop.proto").bound(around)
    assert caught.value.code == "unknown-message"


@pytest.mark.spark
def test_the_row_and_the_message_as_json(around: Around, spark: Any) -> None:
    plain = around.run(spark, JsonPayload(columns=["order_number", "extra"]), [ROW], COLUMNS)[0]
    assert json.loads(plain["payload"]) == {"order_number": "o-1", "extra": "y"}
    empty = {**ROW, "first": None, "lines": None}
    made = around.run(spark, JsonPayload(message="shop.Order", proto="shop.proto"), [ROW, empty], COLUMNS)
    said = json.loads(made[0]["payload"])
    assert said["total"] == str(2**40)
    assert said["createdAt"] == "2026-01-02T03:04:05.678901Z"
    # the protobuf library is the judge
    from google.protobuf.message_factory import GetMessageClass

    pool = build_pool(files_of(compile_text({"shop.proto": PROTO}, "shop.proto")))
    message = json_format.Parse(made[0]["payload"], GetMessageClass(pool.FindMessageTypeByName("shop.Order"))())
    assert message.order_number == "o-1"
    assert message.lines[0].product_name == "tea"
    assert message.counts["a"] == 3
    assert message.blob == b"\x00\xff"
    assert "first" not in json.loads(made[1]["payload"])
