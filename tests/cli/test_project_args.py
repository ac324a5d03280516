"""Which arguments are the project and which are flows."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.cli.terminal.project_args import split


@pytest.fixture(autouse=True)
def _in_a_folder_of_projects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("app", "data"):
        (tmp_path / name).mkdir()
    (tmp_path / "app" / "headrace.yaml").touch()
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("names", "option", "expected"),
    [
        (None, None, (".", ())),
        (["app"], None, ("app", ())),
        (["app", "sales"], None, ("app", ("sales",))),
        (["app/headrace.yaml", "sales"], None, ("app/headrace.yaml", ("sales",))),
        (["nowhere/at/all"], None, ("nowhere/at/all", ())),
        (["missing.yaml"], None, ("missing.yaml", ())),
        (["data"], None, ("data", ())),
        (["sales", "app"], None, (".", ("sales", "app"))),
        (["app"], Path("elsewhere"), ("elsewhere", ("app",))),
    ],
)
def test_split(names: list[str] | None, option: Path | None, expected: tuple[str, tuple[str, ...]]) -> None:
    path, flows = split(names, option)
    assert (path, flows) == (Path(expected[0]), expected[1])


def test_inside_a_project_another_folder_may_have_the_name_of_a_flow() -> None:
    Path("headrace.yaml").touch()
    assert split(["data"], None) == (Path("."), ("data",))
    assert split(["app"], None) == (Path("app"), ())
