"""The columns that a step reads from an answer, by JSON path or by name."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, Literal

import pyarrow as pa
from pydantic import Field

from headrace.core.component import Options
from headrace.core.encoding.json_values import Convert, UnfitValueError, converter
from headrace.core.errors import ProjectError
from headrace.core.schema import from_ddl

Paths = Literal["json", "names"]
Found = tuple[Any, ...]

_STEP = re.compile(r"\.([A-Za-z_][\w-]*)|\[(-?\d+)\]|\['([^'\\]*)'\]|\[\"([^\"\\]*)\"\]")
_MISSING = object()


class Output(Options):
    """One column that a step adds."""

    path: str = Field(
        description="Where its value is in the answer: a JSON path, or the name of a column or field.",
        examples=["$.customer.name", "tier"],
        min_length=1,
    )
    type: str = Field("string", description="Its type in SQL.", examples=["bigint", "timestamp", "array<string>"])

    @property
    def arrow(self) -> pa.DataType:
        """The Arrow type; a ProjectError if it does not exist."""
        schema = from_ddl(f"`it` {self.type}")
        if len(schema) != 1:
            raise ProjectError("bad-schema", f"'{self.type}' is not a type", hint="write e.g. bigint or array<string>")
        return schema.field(0).type


@dataclass(frozen=True)
class JsonPath:
    """A JSON path. Paths of names and numbers need no library. Several matches make a list."""

    text: str

    @cached_property
    def _steps(self) -> tuple[str | int, ...] | None:
        steps: list[str | int] = []
        position = 1
        while position < len(self.text):
            match = _STEP.match(self.text, position)
            if match is None:
                return None
            name, number, single, double = match.groups()
            steps.append(
                int(number) if number is not None else next(one for one in (name, single, double) if one is not None)
            )
            position = match.end()
        return tuple(steps)

    def check(self) -> None:
        """A ValueError says what is wrong with the path."""
        if not self.text.startswith("$"):
            raise ValueError(f"'{self.text}' is not a JSON path: it begins with $, e.g. $.{self.text.lstrip('.')}")
        if self._steps is None:
            import jsonpath

            try:
                _compiled(self.text)
            except jsonpath.JSONPathError as error:
                raise ValueError(f"'{self.text}' is not a JSON path: {str(error).splitlines()[0]}") from None

    def __call__(self, document: Any) -> Any:
        """The match; None if there is none."""
        if self._steps is None:
            return list(_compiled(self.text).findall(document)) or None
        for step in self._steps:
            document = _at(document, step)
            if document is _MISSING:
                return None
        return document


def _at(document: Any, step: str | int) -> Any:
    if isinstance(step, str):
        return document.get(step, _MISSING) if isinstance(document, dict) else _MISSING
    if not isinstance(document, list) or not -len(document) <= step < len(document):
        return _MISSING
    return document[step]


@lru_cache(maxsize=1000)
def _compiled(path: str) -> Any:
    import jsonpath

    return jsonpath.compile(path)


@dataclass(frozen=True)
class ByName:
    """A column or field by its name; `$` means all of them."""

    name: str

    def __call__(self, document: Any) -> Any:
        """The value; None if it does not exist."""
        return document if self.name == "$" else document.get(self.name)


@dataclass
class Outputs:
    """Reads the output columns from answers. Pickled to the tasks."""

    paths: Mapping[str, Callable[[Any], Any]]
    types: Mapping[str, pa.DataType]
    _converters: list[Convert] = field(default_factory=list)

    @staticmethod
    def of(columns: Mapping[str, str | Output], paths: Paths) -> Outputs:
        made = {name: one if isinstance(one, Output) else Output(path=one) for name, one in columns.items()}
        find: Callable[[str], Callable[[Any], Any]] = JsonPath if paths == "json" else ByName
        return Outputs({n: find(o.path) for n, o in made.items()}, {n: o.arrow for n, o in made.items()})

    def check(self) -> None:
        """A ValueError names an invalid path."""
        for path in self.paths.values():
            if isinstance(path, JsonPath):
                path.check()

    def added(self, schema: pa.Schema) -> pa.Schema:
        """The columns after the step: an existing column is replaced."""
        for name, kind in self.types.items():
            index = schema.get_field_index(name)
            column = pa.field(name, kind)
            schema = schema.append(column) if index < 0 else schema.set(index, column)
        return schema

    def taken(self, document: Any) -> Found:
        """The values in an answer; an UnfitValueError names a value that does not fit its type."""
        if not self._converters:
            self._converters += [converter(kind) for kind in self.types.values()]
        values = []
        for (name, path), convert in zip(self.paths.items(), self._converters, strict=True):
            try:
                values.append(convert(path(document)))
            except UnfitValueError as error:
                raise UnfitValueError(f"column '{name}': {error}") from None
        return tuple(values)

    def arrays(self, found: Sequence[Found | None]) -> dict[str, pa.Array]:
        """One array per column; null for keys without an answer."""
        return {
            name: pa.array([None if one is None else one[number] for one in found], kind)
            for number, (name, kind) in enumerate(self.types.items())
        }

    def __getstate__(self) -> dict[str, Any]:
        """Without converters, which cannot be pickled."""
        return {"paths": dict(self.paths), "types": dict(self.types), "_converters": []}
