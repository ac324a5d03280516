from __future__ import annotations

from pathlib import Path

import pytest

from headrace.core.kinds import FAMILIES, kinds
from headrace.reference.__main__ import main
from headrace.reference.blocks import BLOCKS, BlockError, filled
from headrace.reference.files import FOLDER, stale

PAGE = "before\n<!-- {0}:start -->\nold\n<!-- {0}:end -->\nafter\n"


def generated(name: str, page: str = "README.md") -> str:
    return filled(PAGE.format(name), Path(page), FOLDER)


@pytest.mark.parametrize("name", BLOCKS)
def test_a_block_is_replaced_and_the_text_around_it_stays(name: str) -> None:
    text = generated(name)
    assert text.startswith(f"before\n<!-- {name}:start -->\n\n")
    assert text.endswith(f"\n\n<!-- {name}:end -->\nafter\n")
    assert "old" not in text.split("\n")
    assert filled(text, Path("README.md"), FOLDER) == text


def test_every_kind_is_listed_and_linked_from_where_the_page_is() -> None:
    text = generated("kinds")
    for family in FAMILIES:
        for name in kinds(family):
            assert f"[{name}](docs/reference/{family}/{name}.md)" in text
    assert "[kafka](../reference/sources/kafka.md)" in generated("kinds", "docs/how-to/sources.md")
    assert "[kafka](sources/kafka.md)" in generated("kinds", "docs/reference/errors.md")


def test_every_processor_has_its_first_line() -> None:
    text = generated("processors")
    assert all(f"[{name}](docs/reference/processors/{name}.md) |" in text for name in kinds("processors"))


@pytest.mark.parametrize(
    "text",
    [
        "<!-- nothing:start -->\n<!-- nothing:end -->",
        "<!-- kinds:start -->\n",
        "<!-- kinds:end -->\n",
        "<!-- kinds:start -->\n<!-- processors:end -->",
    ],
)
def test_a_marker_that_cannot_be_filled_is_an_error(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(BlockError):
        filled(text, Path("README.md"), FOLDER)
    (tmp_path / "README.md").write_text(text)
    assert main(["--check", "--root", str(tmp_path)]) == 1
    assert "README.md" in capsys.readouterr().err


def test_blocks_of_hand_written_pages_are_checked_and_written(tmp_path: Path) -> None:
    page = tmp_path / "docs" / "how-to" / "deliver.md"
    page.parent.mkdir(parents=True)
    page.write_text(PAGE.format("guarantees"))
    assert "docs/how-to/deliver.md" in stale(tmp_path)
    assert main(["--root", str(tmp_path)]) == 0
    assert "[lake](../reference/sinks/lake.md) | exactly once" in page.read_text()
    assert stale(tmp_path) == []
