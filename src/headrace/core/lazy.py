"""Modules and names that are loaded at first use, so that `import headrace`, `headrace lint` and `--help` stay fast."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
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


def lazy_names(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a package that imports its public names at first use.

    `modules` gives the module of each name. Type checkers should see plain imports instead, as with `lazy_modules`.
    """

    def load(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(modules[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return load
