"""Descriptors and their successors: what may be added, what breaks; the oracle is what old bytes decode to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.encoding.descriptors import compile_text, files_of, find_message
from headrace.formats.protobuf.compatible import additions, breaches
from headrace.formats.protobuf.decoder import ProtobufDecoder
from headrace.formats.protobuf.types import message_schema

F = FieldDescriptorProto
SCALARS = [F.TYPE_INT32, F.TYPE_SINT32, F.TYPE_INT64, F.TYPE_STRING, F.TYPE_BYTES, F.TYPE_BOOL, F.TYPE_DOUBLE]
KINDS = [*SCALARS, F.TYPE_ENUM, F.TYPE_MESSAGE]


BASE = """
enum Color { RED = 0; BLUE = 1; }
message Part { string name = 1; Color color = 2; }
message Thing { int64 id = 1; string note = 2; Part part = 3; repeated Part parts = 4; map<string, Part> by = 5;
                Color color = 6; oneof pay { string card = 7; int32 cash = 8; } int32 level = 9; Thing self = 10; }
"""


CHANGES: list[tuple[str, str, list[str]]] = [
    ("int64 id = 1;", "int64 id = 1;", []),
    ("int64 id = 1;", "int64 id = 1; bool fresh = 20;", []),
    ("BLUE = 1;", "BLUE = 1; GREEN = 2;", []),
    ("int32 cash = 8;", "int32 cash = 8; bool free = 21;", []),
    ("string name = 1;", "string name = 1; int32 size = 3;", []),
    ("string note = 2;", "", ["field-gone"]),
    ("string note = 2;", "string remark = 2;", ["field-renamed"]),
    ("string note = 2;", "string note = 12;", ["number-changed"]),
    ("string note = 2;", "bytes note = 2;", ["type-changed"]),
    ("string note = 2;", "int32 other = 2;", ["number-reused"]),
    ("string note = 2;", "repeated string note = 2;", ["type-changed"]),
    ("string note = 2;", "optional string note = 2;", ["presence-changed"]),
    ("int32 level = 9;", "sint32 level = 9;", ["type-changed"]),
    ("string card = 7; int32 cash = 8; }", "string card = 7; } optional int32 cash = 8;", ["oneof-changed"]),
    ("BLUE = 1;", "NAVY = 1;", ["enum-value-changed"]),
    ("BLUE = 1;", "", ["enum-value-changed"]),
    ("Color color = 2; }", "}", ["field-gone"]),
    ("message Thing {", "message Thong { } message Other {", ["message-gone"]),
]


@pytest.fixture(scope="session")
def variants() -> Callable[[str, str], bytes]:
    """The descriptor sets of BASE with one text replaced, made by one call of the compiler.

    Each variant is compiled in a package of its own, whose name is then written over: names of one length can be.
    """
    sources = {}
    for number, (old, new, _) in enumerate(CHANGES):
        assert old in BASE
        text = BASE.replace(old, new, 1)
        text = text.replace("Thing self", "Other self") if "message Thing" not in text else text
        sources[f"m{number:02}.proto"] = f'syntax = "proto3"; package t{number:02};\n{text}'
    imports = "".join(f'import "{name}";' for name in sources)
    files = files_of(compile_text({**sources, "all.proto": f'syntax = "proto3"; {imports}'}, "all.proto"))
    made = {file.name: file for file in files}

    def find(old: str, new: str) -> bytes:
        number = next(i for i, change in enumerate(CHANGES) if change[:2] == (old, new))
        content = FileDescriptorSet(file=[made[f"m{number:02}.proto"]]).SerializeToString()
        return content.replace(f"t{number:02}".encode(), b"t00")

    return find


SAME = ("int64 id = 1;", "int64 id = 1;")


@pytest.mark.parametrize(("old", "new", "codes"), CHANGES)
def test_one_change(variants: Callable[[str, str], bytes], old: str, new: str, codes: list[str]) -> None:
    found = breaches(variants(*SAME), variants(old, new), "t00.Thing")
    assert sorted({one.code for one in found}) == codes


def test_a_column_that_nobody_uses_may_go_but_its_number_may_not_mean_something_else(
    variants: Callable[[str, str], bytes],
) -> None:
    base, gone = variants(*SAME), variants("string note = 2;", "")
    assert breaches(base, gone, "t00.Thing", used={"id"}) == []
    assert [str(one) for one in breaches(base, gone, "t00.Thing", used={"id", "note"})] == [
        "note: is gone, and is used (field-gone)"
    ]
    reused = variants("string note = 2;", "int32 other = 2;")
    assert [one.code for one in breaches(base, reused, "t00.Thing", used={"id"})] == ["number-reused"]


def test_what_was_added_is_named(variants: Callable[[str, str], bytes]) -> None:
    base = variants(*SAME)
    assert additions(base, variants("int64 id = 1;", "int64 id = 1; bool fresh = 20;"), "t00.Thing") == ["fresh"]
    nested = additions(base, variants("string name = 1;", "string name = 1; int32 size = 3;"), "t00.Thing")
    assert {"part.size", "parts.size"} <= set(nested)
    values = additions(base, variants("BLUE = 1;", "BLUE = 1; GREEN = 2;"), "t00.Thing")
    assert {"color = GREEN", "part.color = GREEN"} <= set(values)


# random descriptors


def field(name: str, number: int, kind: int, repeated: bool) -> FieldDescriptorProto:
    made = F(name=name, number=number, type=kind, label=F.LABEL_REPEATED if repeated else F.LABEL_OPTIONAL)  # type: ignore[arg-type]
    if kind == F.TYPE_ENUM:
        made.type_name = ".t.Color"
    if kind == F.TYPE_MESSAGE:
        made.type_name = ".t.Part"
    return made


def base_file(fields: list[tuple[int, bool]], parts: list[int]) -> FileDescriptorProto:
    file = FileDescriptorProto(name="m.proto", package="t", syntax="proto3")
    color = file.enum_type.add(name="Color")
    for number, name in enumerate(["RED", "BLUE", "GREEN"]):
        color.value.add(name=name, number=number)
    part = file.message_type.add(name="Part")
    part.field.extend(field(f"p{i}", i + 1, kind, False) for i, kind in enumerate(parts))
    thing = file.message_type.add(name="Thing")
    thing.field.extend(field(f"f{i}", i + 1, kind, repeated) for i, (kind, repeated) in enumerate(fields))
    return file


Edit = Callable[[FileDescriptorProto, Any], None]


def _message(file: FileDescriptorProto, draw: Any) -> DescriptorProto:
    return draw(st.sampled_from(list(file.message_type)))


def add_field(file: FileDescriptorProto, draw: Any) -> None:
    message = _message(file, draw)
    number = max((one.number for one in message.field), default=0) + 50
    message.field.append(field(f"n{number}", number, draw(st.sampled_from(SCALARS)), draw(st.booleans())))


def add_value(file: FileDescriptorProto, draw: Any) -> None:
    values = file.enum_type[0].value
    number = max(one.number for one in values) + draw(st.integers(1, 5))
    values.add(name=f"C{number}", number=number)


def change_type(file: FileDescriptorProto, draw: Any) -> None:
    one = draw(st.sampled_from(list(_message(file, draw).field)))
    one.type = draw(st.sampled_from(SCALARS))
    one.ClearField("type_name")


def change_number(file: FileDescriptorProto, draw: Any) -> None:
    message = _message(file, draw)
    free = set(range(1, 40)) - {one.number for one in message.field}
    draw(st.sampled_from(list(message.field))).number = draw(st.sampled_from(sorted(free)))


def remove(file: FileDescriptorProto, draw: Any) -> None:
    message = _message(file, draw)
    if len(message.field) > 1:
        del message.field[draw(st.integers(0, len(message.field) - 1))]


def rename_value(file: FileDescriptorProto, draw: Any) -> None:
    one = draw(st.sampled_from(list(file.enum_type[0].value)))
    one.name = f"X{one.name}"


ADDING: list[Edit] = [add_field, add_value]
BREAKING: list[Edit] = [change_type, change_number, remove, rename_value]


def as_set(file: FileDescriptorProto) -> bytes:
    return FileDescriptorSet(file=[file]).SerializeToString()


def values(draw: Any, message: Any) -> None:
    """Fill a message with values of its own types."""
    simple = {
        F.TYPE_INT32: st.integers(-(2**31), 2**31 - 1),
        F.TYPE_SINT32: st.integers(-(2**31), 2**31 - 1),
        F.TYPE_INT64: st.integers(-(2**63), 2**63 - 1),
        F.TYPE_STRING: st.text("abcé", max_size=4),
        F.TYPE_BYTES: st.binary(max_size=4),
        F.TYPE_BOOL: st.booleans(),
        F.TYPE_DOUBLE: st.floats(allow_nan=False, allow_infinity=False),
        F.TYPE_ENUM: st.integers(0, 2),
    }
    for one in message.DESCRIPTOR.fields:
        if draw(st.booleans()):
            continue
        if one.message_type is not None:
            values(draw, getattr(message, one.name).add() if one.is_repeated else getattr(message, one.name))
        elif one.is_repeated:
            getattr(message, one.name).extend(draw(st.lists(simple[one.type], max_size=2)))
        else:
            setattr(message, one.name, draw(simple[one.type]))


def decoded(descriptor_set: bytes, names: list[str], records: list[bytes]) -> list[dict[str, Any]]:
    schema = message_schema(find_message(descriptor_set, "t.Thing"))
    wanted = pa.schema([schema.field(name) for name in names])
    found = ProtobufDecoder(descriptor_set, "t.Thing", wanted, strict=False).decode(pa.array(records, pa.binary()))
    assert not found.bad
    return found.rows.to_pylist()


def as_before(now: Any, before: Any) -> Any:
    """A value without the fields that are new inside it."""
    if isinstance(before, dict) and isinstance(now, dict):
        return {name: as_before(now.get(name, "gone"), value) for name, value in before.items()}
    if isinstance(before, list) and isinstance(now, list) and len(now) == len(before):
        return [as_before(a, b) for a, b in zip(now, before, strict=True)]
    return now


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_what_is_allowed_decodes_old_records_to_the_same_rows(data: Any) -> None:
    draw = data.draw
    kinds = st.tuples(st.sampled_from(KINDS), st.booleans())
    file = base_file(
        draw(st.lists(kinds, min_size=1, max_size=5)), draw(st.lists(st.sampled_from(SCALARS), min_size=1, max_size=3))
    )
    old = as_set(file)
    edits = draw(st.lists(st.sampled_from([*ADDING, *BREAKING]), min_size=1, max_size=3))
    for edit in edits:
        edit(file, draw)
    new = as_set(file)
    names = message_schema(find_message(old, "t.Thing")).names
    used = draw(st.sets(st.sampled_from(names), min_size=1))
    found = breaches(old, new, "t.Thing", used)
    if all(edit in ADDING for edit in edits):
        assert found == []
    if found:
        return
    record = GetMessageClass(find_message(old, "t.Thing"))()
    values(draw, record)
    columns = [name for name in names if name in used]
    before = decoded(old, columns, [record.SerializeToString()])
    assert as_before(decoded(new, columns, [record.SerializeToString()]), before) == before
