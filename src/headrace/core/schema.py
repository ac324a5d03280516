"""Arrow schemas to and from DDL text, without Spark. All parts describe columns with Arrow schemas."""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa
import sqlglot
from sqlglot import TokenType, exp

from headrace.core.errors import ProjectError, nearest

TIMESTAMP = pa.timestamp("us", tz="UTC")

_SIMPLE: dict[Any, pa.DataType] = {
    exp.DataType.Type.BOOLEAN: pa.bool_(),
    exp.DataType.Type.TINYINT: pa.int8(),
    exp.DataType.Type.SMALLINT: pa.int16(),
    exp.DataType.Type.INT: pa.int32(),
    exp.DataType.Type.BIGINT: pa.int64(),
    exp.DataType.Type.FLOAT: pa.float32(),
    exp.DataType.Type.DOUBLE: pa.float64(),
    exp.DataType.Type.TEXT: pa.string(),
    exp.DataType.Type.VARCHAR: pa.string(),
    exp.DataType.Type.CHAR: pa.string(),
    exp.DataType.Type.BINARY: pa.binary(),
    exp.DataType.Type.VARBINARY: pa.binary(),
    exp.DataType.Type.DATE: pa.date32(),
    exp.DataType.Type.TIMESTAMP: TIMESTAMP,
    exp.DataType.Type.TIMESTAMPTZ: TIMESTAMP,
    exp.DataType.Type.TIMESTAMPLTZ: TIMESTAMP,
    exp.DataType.Type.TIMESTAMPNTZ: pa.timestamp("us"),
}

_TYPES = (
    *("boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "decimal"),
    *("string", "binary", "date", "timestamp", "timestamp_ntz", "array", "map", "struct"),
)
_NOT_COLUMNS = (sqlglot.errors.SqlglotError, KeyError, AttributeError, ValueError, IndexError)
# one column: the text up to the next comma outside brackets
_COLUMN = re.compile(r"(?:[^,<(]|<(?:[^<>]|<[^<>]*>)*>|\([^()]*\))+")


def from_ddl(ddl: str) -> pa.Schema:
    """Parse DDL such as `id bigint, at timestamp, tags map<string, string>`. Raises ProjectError `bad-schema`."""
    try:
        fields = _fields(ddl)
        _refuse_repeated([name for name, _ in fields])
        return pa.schema(fields)
    except _NOT_COLUMNS as error:
        # the parser's error for the whole list points past the wrong column
        column = None if isinstance(error, ValueError) else _first_wrong_column(ddl)
        reason = str(error).splitlines()[0][:200] if column is None else f"'{column[:100]}' is not a name and a type"
        word = (column or "").rpartition(" ")[2]
        guess = nearest(word, _TYPES) if word.isidentifier() and word not in _TYPES else None
        hint = f"did you mean '{guess}'? " if guess else ""
        raise ProjectError(
            "bad-schema",
            f"not a list of columns: '{ddl.strip()[:200]}' ({reason})",
            hint=hint + "write columns as name and type, separated by commas: id bigint, amount double, at timestamp",
        ) from error


def _fields(ddl: str) -> list[tuple[str, pa.DataType]]:
    table = sqlglot.parse_one(f"CREATE TABLE t ({_with_quoted_names(ddl)})", dialect="spark")
    columns = list(table.find(exp.Schema).expressions)  # type: ignore[union-attr]
    return [(column.name, _arrow(column.args["kind"])) for column in columns]


def _first_wrong_column(ddl: str) -> str | None:
    """The first column that cannot be read by itself."""
    for column in _COLUMN.findall(ddl):
        try:
            _fields(column)
        except _NOT_COLUMNS:
            return " ".join(column.split())
    return None


def _with_quoted_names(ddl: str) -> str:
    """Quote all names: `any string` and `case int` are valid columns in Spark, but not for the parser."""
    pieces: list[str] = []
    position, name_follows, previous = 0, True, None
    in_struct: list[bool] = []
    for token in sqlglot.tokenize(ddl, read="spark"):
        if name_follows and token.text.isidentifier() and token.token_type is not TokenType.IDENTIFIER:
            pieces += [ddl[position : token.start], quoted(token.text)]
            position = token.end + 1
        if token.token_type in (TokenType.LT, TokenType.L_PAREN):
            in_struct.append(previous is TokenType.STRUCT)
        elif token.token_type in (TokenType.GT, TokenType.R_PAREN) and in_struct:
            in_struct.pop()
        opens = token.token_type in (TokenType.LT, TokenType.COMMA)
        name_follows = opens and (not in_struct or in_struct[-1])
        previous = token.token_type
    return "".join(pieces) + ddl[position:]


def _refuse_repeated(names: list[str]) -> None:
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ValueError(f"'{repeated[0]}' is defined more than once")


def _arrow(kind: exp.DataType) -> pa.DataType:
    match kind.this:
        case exp.DataType.Type.DECIMAL:
            precision, scale = ([int(p.name) for p in kind.expressions] + [10, 0])[:2] if kind.expressions else (10, 0)
            return pa.decimal128(precision, scale if len(kind.expressions) > 1 else 0)
        case exp.DataType.Type.ARRAY:
            return pa.list_(_arrow(kind.expressions[0]))
        case exp.DataType.Type.MAP:
            return pa.map_(_arrow(kind.expressions[0]), _arrow(kind.expressions[1]))
        case exp.DataType.Type.STRUCT:
            return pa.struct([(part.name, _arrow(part.args["kind"])) for part in kind.expressions])
        case simple if simple in _SIMPLE:
            return _SIMPLE[simple]
    raise ValueError(f"type {kind.sql('spark')} is not supported")


def to_ddl(schema: pa.Schema) -> str:
    """Return the DDL text of a schema in Spark's syntax."""
    return ", ".join(f"{quoted(field.name)} {ddl_type(field.type)}" for field in schema)


def quoted(name: str) -> str:
    """Quote a name for Spark SQL."""
    return "`" + name.replace("`", "``") + "`"


def ddl_type(kind: pa.DataType) -> str:
    """Return the Spark SQL name of an Arrow type."""
    if pa.types.is_struct(kind):
        return f"struct<{', '.join(f'{quoted(part.name)}: {ddl_type(part.type)}' for part in kind)}>"
    if pa.types.is_map(kind):
        return f"map<{ddl_type(kind.key_type)}, {ddl_type(kind.item_type)}>"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return f"array<{ddl_type(kind.value_type)}>"
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_timestamp(kind):
        return "timestamp" if kind.tz else "timestamp_ntz"
    return _NAMES[str(kind)]


_NAMES = {
    "bool": "boolean",
    "int8": "tinyint",
    "int16": "smallint",
    "int32": "int",
    "int64": "bigint",
    "uint32": "bigint",
    "uint64": "decimal(20,0)",
    "float": "float",
    "double": "double",
    "string": "string",
    "large_string": "string",
    "binary": "binary",
    "large_binary": "binary",
    "date32[day]": "date",
    "null": "string",
}
