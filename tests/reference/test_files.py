from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.core.kinds import FAMILIES, kinds
from headrace.reference.__main__ import main
from headrace.reference.files import FOLDER, HAND_WRITTEN, pages, stale

ROOT = Path(__file__).parents[2]


def test_every_kind_and_section_has_a_page() -> None:
    generated = pages()  # that another process generates the same is shown by `--check` of what is in the repository
    assert {"index.md", "project.md", "metrics.md", "cli/index.md", "headrace.schema.json"} <= set(generated)
    assert {f"{family}/{name}.md" for family in FAMILIES for name in kinds(family)} <= set(generated)


def test_a_page_says_what_the_model_says() -> None:
    page = pages()["project.md"]
    assert "| `watermark` | duration | `10s` | How long to wait" in page
    assert "| `source` | [source](index.md#sources) | required |" in page
    assert "| `on_error` | `dead_letter`, `skip`, `fail` | `dead_letter` |" in page


def test_links_are_relative_and_lead_somewhere(tmp_path: Path) -> None:
    assert main(["--root", str(tmp_path)]) == 0
    for name in HAND_WRITTEN:
        (tmp_path / FOLDER / name).touch()
    for name, text in pages().items():
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", text) if name.endswith(".md") else ():
            assert ((tmp_path / FOLDER / name).parent / target).is_file(), f"{name}: {target}"


def test_stale_missing_and_left_over_pages_are_noticed_and_fixed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, folder = ["--root", str(tmp_path)], tmp_path / FOLDER
    assert main(root) == 0
    assert main(["--check", *root]) == 0
    (folder / "project.md").write_text("old")
    (folder / "sinks" / "console.md").unlink()
    (folder / "sinks" / "gone.md").touch()
    (folder / "errors.md").write_text("written by people")
    assert stale(tmp_path) == [f"docs/reference/{name}" for name in ("project.md", "sinks/console.md", "sinks/gone.md")]
    assert main(["--check", *root]) == 1
    assert "python -m headrace.reference" in capsys.readouterr().err
    assert main(root) == 0
    assert stale(tmp_path) == []
    assert (folder / "errors.md").read_text() == "written by people"


def test_the_index_has_every_hand_written_page() -> None:
    generated = {name for name in pages() if "/" not in name}
    assert {path.name for path in (ROOT / FOLDER).iterdir() if path.is_file()} == generated | set(HAND_WRITTEN)
    assert all(f"]({name})" in pages()["index.md"] for name in HAND_WRITTEN)


def test_the_reference_is_generated_without_spark() -> None:
    code = "import sys; from headrace.reference.files import pages; pages(); sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
