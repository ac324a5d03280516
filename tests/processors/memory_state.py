"""Spark's state of one key as dictionaries, for tests of what steps do with it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass
class MemoryMap:
    values: dict[Any, Any] = field(default_factory=dict)

    def getValue(self, key: Any) -> Any:  # noqa: N802
        return self.values.get(key)

    def containsKey(self, key: Any) -> bool:  # noqa: N802
        return key in self.values

    def updateValue(self, key: Any, value: Any) -> None:  # noqa: N802
        self.values[key] = value

    def removeKey(self, key: Any) -> None:  # noqa: N802
        self.values.pop(key, None)


@dataclass
class MemoryList:
    values: list[Any] = field(default_factory=list)

    def get(self) -> Iterator[Any]:
        return iter(list(self.values))

    def put(self, values: list[Any]) -> None:
        self.values = list(values)

    def appendValue(self, value: Any) -> None:  # noqa: N802
        self.values.append(value)

    def clear(self) -> None:
        self.values = []


@dataclass
class MemoryValue:
    value: Any = None

    def get(self) -> Any:
        return self.value

    def update(self, value: Any) -> None:
        self.value = value


@dataclass
class MemoryHandle:
    """Hands out state variables by name, as Spark does."""

    held: dict[str, Any] = field(default_factory=dict)

    def getMapState(self, name: str, *schemas: str) -> Any:  # noqa: N802
        return self.held.setdefault(name, MemoryMap())

    def getListState(self, name: str, *schemas: str) -> Any:  # noqa: N802
        return self.held.setdefault(name, MemoryList())

    def getValueState(self, name: str, *schemas: str) -> Any:  # noqa: N802
        return self.held.setdefault(name, MemoryValue())


@dataclass
class StepClockAt:
    """A clock that stands where a test puts it."""

    now: int = 0

    def number(self) -> int:
        return 0

    def planned(self) -> int:
        return self.now

    def watermark(self) -> int:
        return self.now
