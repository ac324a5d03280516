"""Errors in tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headrace.core.errors import ProjectError


def code_of(call: Callable[..., Any], *arguments: Any) -> str:
    """The code of the ProjectError that a call raises."""
    with pytest.raises(ProjectError) as caught:
        call(*arguments)
    return caught.value.code
