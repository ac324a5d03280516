"""Modules that are imported at their first use, which keeps `headrace lint` and `--help` fast."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any


class _LazyModule(ModuleType):
    """A proxy that imports its module at the first access to an attribute."""

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self.__name__), name)

    def __reduce__(self) -> tuple[Any, ...]:
        return _LazyModule, (self.__name__,)


def lazy_modules(*names: str) -> Any:
    """Return one proxy per dotted module name; for a single name, the proxy itself instead of a tuple.

    Show the plain import to type checkers:

        if TYPE_CHECKING:
            from headrace.sinks.kafka import records
        else:
            records = lazy_modules("headrace.sinks.kafka.records")
    """
    modules = tuple(_LazyModule(name) for name in names)
    return modules[0] if len(modules) == 1 else modules
