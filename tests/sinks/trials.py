"""A sink with a place to write to, for the behaviour tests of capabilities.

The test file of a kind gives one by `trial(request, folder)`, marked `service` if it starts a server.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, TypeVar

import pytest
from tests.conftest import unavailable

from headrace.core.sink import Sink
from headrace.testing.services import Service

COLUMNS = "region string, id bigint, note string, at timestamp"
"""The rows of all trials. Region and id are the key; `at` and `note` are different in every row."""
KEY = ("region", "id")
Running = TypeVar("Running", bound=Service)


@dataclass(frozen=True)
class Trial:
    """One kind of sink, ready to be written."""

    sink: Callable[[], Sink]
    """Another object at each call, as another process would have it."""
    notes: Callable[[], Sequence[str]] | None
    """The column `note` of all rows that readers see; None: nothing is kept."""


def running(request: pytest.FixtureRequest, service: Running) -> Running:
    """A server of the trial's own, until the test ends."""
    problem = service.problem()
    if problem is not None:
        unavailable(problem)
    return entered(request, service)


def entered(request: pytest.FixtureRequest, context: AbstractContextManager[Any]) -> Any:
    """What a context manager gives, until the test ends."""
    value = context.__enter__()
    request.addfinalizer(lambda: context.__exit__(None, None, None))
    return value
