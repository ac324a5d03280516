from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from textwrap import dedent

import pytest

from headrace.core.errors import ProjectError, ProjectErrors
from headrace.project.loader import Project, load

Load = Callable[..., Project]
Refused = Callable[..., list[ProjectError]]


@pytest.fixture
def loaded(tmp_path: Path) -> Load:
    """Loads a project written out as text, with further files beside it."""

    def make(
        text: str,
        files: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
        **options: object,
    ) -> Project:
        for name, content in {"headrace.yaml": text, **(files or {})}.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(dedent(content), encoding="utf-8")
        return load(tmp_path, environment=environment or {}, **options)  # type: ignore[arg-type]

    return make


@pytest.fixture
def refused(loaded: Load) -> Refused:
    """The errors of a project that does not load."""

    def make(*arguments: object, **options: object) -> list[ProjectError]:
        with pytest.raises(ProjectError) as caught:
            loaded(*arguments, **options)
        error = caught.value
        return list(error.errors) if isinstance(error, ProjectErrors) else [error]

    return make
