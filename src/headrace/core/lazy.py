"""Modules that are loaded when they are first used, so that `headrace lint` and `--help` stay fast."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any


class _LazyModule(ModuleType):
    """Stands for a module and imports it at the first access to one of its names."""

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self.__name__), name)

    def __reduce__(self) -> tuple[Any, ...]:
        return _LazyModule, (self.__name__,)


def lazy_modules(*names: str) -> Any:
    """One stand-in per dotted module name; a single name gives the stand-in itself.

    Type checkers should see the plain import instead:

        if TYPE_CHECKING:
            from headrace.sinks.kafka import records
        else:
            records = lazy_modules("headrace.sinks.kafka.records")
    """
    modules = tuple(_LazyModule(name) for name in names)
    return modules[0] if len(modules) == 1 else modules
