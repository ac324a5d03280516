"""Python functions of a project as functions over Arrow columns. Pickled to the workers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headrace.core.errors import ProjectError
from headrace.functions.hints import Convert


def _cast(column: pa.Array, kind: pa.DataType, name: str, place: int) -> pa.Array:
    if column.type == kind:
        return column
    try:
        return column.cast(kind, safe=pa.types.is_floating(kind) is False)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        reason = str(error).splitlines()[0][:200]
        message = f"argument {place + 1} of function '{name}' is {column.type}, not {kind}: {reason}"
        raise ProjectError("function-argument", message) from None


def _array(values: Any, kind: pa.DataType, name: str) -> pa.Array:
    try:
        return pa.array(values, kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError) as error:
        reason = str(error).splitlines()[0][:200]
        raise ProjectError("function-result", f"function '{name}' gave what is not {kind}: {reason}") from None


@dataclass(frozen=True)
class RowWise:
    """A function of single values, called for each row. A null for a parameter that is not optional gives null."""

    function: Callable[..., Any]
    parameters: tuple[pa.DataType, ...]
    optional: tuple[bool, ...]
    incoming: tuple[Convert, ...]
    returns: pa.DataType
    outgoing: Convert

    def __call__(self, *columns: pa.Array) -> pa.Array:
        name = self.function.__name__
        rows = []
        strict = []
        for place, column in enumerate(columns):
            values = _cast(column, self.parameters[place], name, place).to_pylist()
            convert = self.incoming[place]
            rows.append(values if convert is None else [convert(value) for value in values])
            strict.append(not self.optional[place])
        needed = [place for place, one in enumerate(strict) if one]
        call, outgoing = self.function, self.outgoing
        results = [
            None if any(row[place] is None for place in needed) else call(*row) for row in zip(*rows, strict=True)
        ]
        return _array(results if outgoing is None else [outgoing(one) for one in results], self.returns, name)


def _given(column: pa.Array, kind: str) -> Any:
    return column.to_pandas() if kind == "Series" else column


@dataclass(frozen=True)
class Whole:
    """A function of whole columns."""

    function: Callable[..., Any]
    kinds: tuple[str, ...]
    returns: pa.DataType

    def __call__(self, *columns: pa.Array) -> pa.Array:
        name = self.function.__name__
        given = [_given(column, kind) for column, kind in zip(columns, self.kinds, strict=False)]
        result = self.function(*given)
        if isinstance(result, pa.ChunkedArray):
            result = result.combine_chunks()
        if not isinstance(result, pa.Array):
            result = pa.Array.from_pandas(result)
        if columns and len(result) != len(columns[0]):
            message = f"function '{name}' gave {len(result)} values for {len(columns[0])} rows"
            raise ProjectError("function-result", message)
        try:
            return result.cast(self.returns)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            reason = str(error).splitlines()[0][:200]
            raise ProjectError("function-result", f"function '{name}' gave {result.type}: {reason}") from None


@dataclass(frozen=True)
class Grouped:
    """An aggregate: one value from the columns of a group. A row holds the values of a group as lists."""

    function: Callable[..., Any]
    kinds: tuple[str, ...]
    returns: pa.DataType

    def __call__(self, *columns: pa.Array) -> pa.Array:
        results: list[Any] = []
        for row in range(len(columns[0]) if columns else 0):
            lists = [column[row].values for column in columns]
            if any(values is None for values in lists):
                results.append(None)
                continue
            results.append(self.function(*map(_given, lists, self.kinds)))
        plain = [one.as_py() if isinstance(one, pa.Scalar) else one for one in results]
        return _array(plain, self.returns, self.function.__name__)
