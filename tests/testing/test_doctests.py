"""The examples in the docstrings of the public API are right, and its names are there and loaded at first use."""

from __future__ import annotations

import doctest
import importlib
import subprocess
import sys
from types import ModuleType

import pytest

import headrace
import headrace.testing
import headrace.testing.clock
from headrace.testing.services import KINDS


@pytest.mark.parametrize("module", [headrace, headrace.testing, headrace.testing.clock], ids=lambda m: m.__name__)
def test_the_examples_of_a_module(module: ModuleType) -> None:
    results = doctest.testmod(module)
    assert results.attempted > 0
    assert results.failed == 0


@pytest.mark.parametrize("package", ["headrace", "headrace.testing"])
def test_every_public_name_is_defined(package: str) -> None:
    module = importlib.import_module(package)
    for name in module.__all__:
        assert getattr(module, name) is not None
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = module.no_such_name


def test_every_service_is_a_public_name() -> None:
    assert {kind.__name__ for kind in KINDS.values()} <= set(headrace.testing.__all__)


@pytest.mark.parametrize("package", ["headrace", "headrace.testing"])
def test_importing_the_public_api_loads_no_other_package(package: str) -> None:
    heavy = {"pydantic", "pyarrow", "pyspark", "pandas", "yaml", "sqlglot", "msgspec", "confluent_kafka"}
    code = f"import sys, {package}; assert not {heavy!r} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
