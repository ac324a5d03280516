from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from typing import Annotated, ClassVar, Literal

import pytest
from pydantic import ValidationError

from headrace.core import kinds as registry
from headrace.core.component import Component, Options
from headrace.core.errors import ProjectError
from headrace.core.kinds import FAMILIES, KindOf, kinds
from headrace.core.sink import Sink


class Pigeon(Component):
    """A kind as another package would bring it."""

    family: ClassVar[str] = "sinks"
    type: Literal["pigeon"] = "pigeon"


class Flow(Options):
    sink: Annotated[Sink, KindOf("sinks")]


NOT_A_KIND = "text"


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[EntryPoint]]:
    """Entry points as an installed package would have them."""
    found: list[EntryPoint] = []
    monkeypatch.setattr(registry, "entry_points", lambda group: [e for e in found if e.group == group])
    kinds.cache_clear()
    yield found
    kinds.cache_clear()


@pytest.mark.parametrize("family", FAMILIES)
def test_the_name_of_a_kind_is_the_name_of_its_file(family: str) -> None:
    for name, kind in kinds(family).items():
        assert kind.__module__ == f"headrace.{family}.{name}"
        assert kind.kind() == name
        assert kind.family == family


def test_installed_kinds_come_through_the_same_door(installed: list[EntryPoint]) -> None:
    installed.append(EntryPoint("pigeon", f"{__name__}:Pigeon", "headrace.sinks"))
    assert kinds("sinks")["pigeon"].__name__ == "Pigeon"
    assert "console" in kinds("sinks")


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("pigeon", "nowhere.at.all:Pigeon", "nowhere"),
        ("pigeon", f"{__name__}:Missing", "Missing"),
        ("pigeon", f"{__name__}:NOT_A_KIND", "not a component"),
        ("dove", f"{__name__}:Pigeon", "says 'pigeon'"),
        ("console", f"{__name__}:Pigeon", "already"),
    ],
)
def test_an_installed_kind_that_does_not_load_is_named(
    installed: list[EntryPoint], name: str, value: str, reason: str
) -> None:
    installed.append(EntryPoint(name, value, "headrace.sinks"))
    with pytest.raises(ProjectError, match=reason) as caught:
        kinds("sinks")[name]
    assert caught.value.code == "kind-not-loadable"
    assert "reinstall" in str(caught.value.hint)


def test_only_the_kinds_that_are_used_are_imported() -> None:
    script = (
        "import sys; from headrace.project.model import ProjectSpec\n"
        "ProjectSpec.model_validate({'project': 'p', 'sinks': {'a': 'noop'}})\n"
        "print(*sorted(m for m in sys.modules if m.startswith('headrace.sinks.')))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["headrace.sinks.noop"]


def test_a_kind_is_chosen_by_its_type_or_its_bare_name() -> None:
    assert Flow.model_validate({"sink": {"type": "noop"}}) == Flow.model_validate({"sink": "noop"})
    for wrong in ("nosuch", {"type": "nosuch"}, {}, 5):
        with pytest.raises(ValidationError):
            Flow.model_validate({"sink": wrong})


def test_the_options_of_a_component_are_never_in_its_repr() -> None:
    assert repr(kinds("sinks")["lake"].model_validate({"path": "secret-place"})) == "LakeSink(type='lake')"
