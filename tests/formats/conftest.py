"""A project folder with schemas, and the messages of its .proto files."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message_factory import GetMessageClass

from headrace.core.context import Context
from headrace.core.encoding.descriptors import compile_protos, find_message

PROTO = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "google/protobuf/duration.proto";
import "google/protobuf/wrappers.proto";
import "google/protobuf/struct.proto";
import "google/protobuf/empty.proto";
enum Status { UNKNOWN = 0; PAID = 1; SENT = 2; }
message Item { string sku = 1; uint32 count = 2; Status status = 3; google.protobuf.Timestamp at = 4; }
message Order {
  int64 id = 1; string customer = 2; double amount = 3; Status status = 4; google.protobuf.Timestamp at = 5;
  uint64 big = 6; bytes blob = 7; bool paid = 8; repeated Item items = 9; map<string, Item> by_sku = 10;
  optional int32 rank = 11; oneof pay { string card = 12; int32 cash = 13; }
  google.protobuf.Duration took = 14; google.protobuf.StringValue note = 15; google.protobuf.UInt64Value limit = 16;
  google.protobuf.Struct extra = 17; google.protobuf.Value any = 18; Item first = 19; float ratio = 20;
  repeated Status history = 21; map<int32, uint64> totals = 22; Tree tree = 23; google.protobuf.Empty empty = 24;
  repeated google.protobuf.Value anys = 25; map<string, google.protobuf.Value> named = 26;
  fixed32 small = 27; sint32 signed = 28; oneof more { google.protobuf.Struct much = 29; bool none = 30; }
  message Line { string text = 1; message Deep { int32 level = 1; } }
}
message Tree { string name = 1; repeated Tree children = 2; map<string, Tree> by_name = 3; }
message Ten {
  int64 id = 1; string service = 2; string status = 3; double amount = 4; string driver = 5; double lat = 6;
  double lon = 7; google.protobuf.Timestamp at = 8; string city = 9; int32 rank = 10;
}
"""

PROTO2 = """
syntax = "proto2";
package old;
import "google/protobuf/struct.proto";
message Thing {
  optional int32 a = 1; optional string s = 2 [default = "x"]; required int32 r = 3; optional Kind kind = 4;
  optional google.protobuf.Struct extra = 5; optional group Part = 6 { optional int32 z = 1; }
  enum Kind { ONE = 1; TWO = 2; }
}
"""


@pytest.fixture(scope="session")
def project(tmp_path_factory: pytest.TempPathFactory) -> Context:
    root = tmp_path_factory.mktemp("project")
    (root / "shop.proto").write_text(PROTO)
    (root / "old.proto").write_text(PROTO2)
    context = Context(Path(root), "state")
    (root / "shop.desc").write_bytes(compile_protos(context, ["shop.proto"], []))
    (root / "old.desc").write_bytes(compile_protos(context, ["old.proto"], []))
    return context


@pytest.fixture(scope="session")
def message(project: Context) -> Callable[[str], type[Any]]:
    @cache
    def find(name: str) -> type[Any]:
        file = "old.desc" if name.startswith("old.") else "shop.desc"
        return GetMessageClass(find_message(Path(project.path(file)).read_bytes(), name))

    return find
