from __future__ import annotations

import re
from pathlib import Path

import pytest

from headrace.core.kinds import FAMILIES, kinds
from headrace.project.reference import main, pages, stale


def test_every_kind_and_section_has_a_page() -> None:
    made = pages()  # that another process makes the same is shown by `--check` of what is in the repository
    assert {"index.md", "project.md", "headrace.schema.json"} <= set(made)
    assert {f"{family}/{name}.md" for family in FAMILIES for name in kinds(family)} <= set(made)


def test_a_page_says_what_the_model_says() -> None:
    page = pages()["project.md"]
    assert "| `watermark` | duration | `10s` | How long to wait" in page
    assert "| `source` | [source](index.md#sources) | required |" in page
    assert "| `on_error` | `dead_letter`, `skip`, `fail` | `dead_letter` |" in page


def test_links_are_relative_and_lead_somewhere(tmp_path: Path) -> None:
    assert main(["--folder", str(tmp_path / "reference")]) == 0
    (tmp_path / "reference" / "errors.md").touch()
    for name, text in pages().items():
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", text) if name.endswith(".md") else ():
            assert ((tmp_path / "reference" / name).parent / target).is_file(), f"{name}: {target}"


def test_stale_missing_and_left_over_pages_are_noticed_and_mended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = ["--folder", str(tmp_path)]
    assert main(folder) == 0
    assert main(["--check", *folder]) == 0
    (tmp_path / "project.md").write_text("old")
    (tmp_path / "sinks" / "console.md").unlink()
    (tmp_path / "sinks" / "gone.md").touch()
    (tmp_path / "errors.md").touch()  # written by hand: neither stale nor removed
    assert stale(tmp_path) == ["project.md", "sinks/console.md", "sinks/gone.md"]
    assert main(["--check", *folder]) == 1
    assert "python -m headrace.project.reference" in capsys.readouterr().err
    assert main(folder) == 0
    assert stale(tmp_path) == []
    assert (tmp_path / "errors.md").is_file()
