"""All functions of the library by name. A family is a module in `families` with FUNCTIONS."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache

import headrace.functions.families
from headrace.functions.function import Function


@cache
def families() -> Mapping[str, tuple[str, tuple[Function, ...]]]:
    """Every family: its first docstring line, and its functions."""
    modules = {}
    for info in pkgutil.iter_modules(headrace.functions.families.__path__):
        module = importlib.import_module(f"headrace.functions.families.{info.name}")
        if hasattr(module, "FUNCTIONS"):
            modules[info.name] = ((module.__doc__ or "").strip(), tuple(module.FUNCTIONS))
    return modules


@cache
def library() -> Mapping[str, Function]:
    """Every function by its name in lower case."""
    return {function.name.lower(): function for _, functions in families().values() for function in functions}
