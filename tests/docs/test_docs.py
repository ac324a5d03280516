"""Links, anchors, module paths and lists in the hand-written documentation."""

from __future__ import annotations

import importlib.util
import re
from functools import cache
from pathlib import Path
from urllib.parse import unquote

import pytest
import yaml

from headrace.core.kinds import kinds
from headrace.project.loader import load

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs"
FOLDERS = [DOCS, ROOT / "examples", ROOT / "apps"]
PAGES = sorted([*ROOT.glob("*.md"), *(page for folder in FOLDERS for page in folder.rglob("*.md"))])
WRITTEN = [page for page in PAGES if "<!-- Generated" not in page.read_text("utf-8")[:40]]
ARCHITECTURE = DOCS / "explanation" / "architecture.md"

LINK = re.compile(r"\[[^]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#+ +(.*)$", re.MULTILINE)
MODULE_PATH = re.compile(r"\bheadrace/[\w/]*\w(?:\.\w+)?")
MODULE_NAME = re.compile(r"\bheadrace(?!\.yaml)(?:\.[a-z_]\w*)+\b")
TEST_PATH = re.compile(r"`(tests/[\w/]+(?:\.py)?)`")


def prose(page: Path) -> str:
    """The page without code blocks."""
    return FENCE.sub("", page.read_text("utf-8"))


@cache
def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, by GitHub's rule."""
    names: set[str] = set()
    for heading in HEADING.findall(prose(page)):
        text = LINK.sub(lambda link: link[0][1 : link[0].index("]")], heading).strip().lower()
        slug = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
        names.add(next(name for n in range(100) if (name := f"{slug}-{n}" if n else slug) not in names))
    return names


def broken_links(page: Path) -> list[str]:
    broken = []
    for target in LINK.findall(prose(page)):
        path, _, anchor = unquote(target).partition("#")
        if re.match(r"[a-z]+:", path):
            continue
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (anchor and file.suffix == ".md" and anchor not in anchors(file)):
            broken.append(target)
    return broken


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_relative_link_and_anchor_resolves(page: Path) -> None:
    assert broken_links(page) == []


def test_broken_links_are_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A `b`: c\n\n[a](page.md#a-b-c) [b](page.md#a-c) [c](gone.md) [d](#a-b-c) [e](https://example.org)\n"
    )
    assert broken_links(page) == ["page.md#a-c", "gone.md"]


def test_every_module_of_the_architecture_page_exists() -> None:
    text = ARCHITECTURE.read_text("utf-8")
    paths = set(MODULE_PATH.findall(text))
    assert len(paths) > 40
    assert sorted(path for path in paths if not (ROOT / "src" / path).exists()) == []
    assert sorted(name for name in MODULE_NAME.findall(text) if importlib.util.find_spec(name) is None) == []


def test_the_architecture_page_names_every_package() -> None:
    packages = {path.parent.name for path in (ROOT / "src" / "headrace").glob("*/__init__.py")}
    named = {name.split(".")[1] for name in MODULE_NAME.findall(ARCHITECTURE.read_text("utf-8"))}
    assert packages - named == set()


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_tests_that_pages_name_exist(page: Path) -> None:
    assert [path for path in TEST_PATH.findall(page.read_text("utf-8")) if not (ROOT / path).exists()] == []


OVERVIEWS = [("explanation/guarantees", "sinks"), ("how-to/transform-rows", "processors")]


@pytest.mark.parametrize(("page", "family"), OVERVIEWS)
def test_overviews_of_kinds_are_complete(page: str, family: str) -> None:
    text = (DOCS / f"{page}.md").read_text("utf-8")
    named = set(re.findall(r"\w+", " ".join(re.findall(r"\[([^]]*)\]", text))))
    assert set(kinds(family)) - named == set()


def test_every_page_is_in_the_index() -> None:
    index = (DOCS / "README.md").read_text("utf-8")
    linked = {(DOCS / target.partition("#")[0]).resolve() for target in LINK.findall(index)}
    pages = {page for page in WRITTEN if page.is_relative_to(DOCS) and "decisions" not in page.parts}
    assert pages - linked - {DOCS / "README.md"} == set()


def test_the_glossary_has_at_most_forty_words() -> None:
    _, _, glossary = (ROOT / "CONTRIBUTING.md").read_text("utf-8").partition("## Glossary")
    words = re.findall(r"^\| ([^|]+) \|", glossary, re.MULTILINE)[1:]
    assert 20 < len(words) <= 40
    assert len(set(words)) == len(words)


def test_the_project_of_the_tutorial_loads(tmp_path: Path) -> None:
    text = (DOCS / "tutorial" / "2-table-and-view.md").read_text("utf-8")
    files = dict(re.findall(r"^```yaml\n# (\S+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
    assert set(files) == {"headrace.yaml", "tests/stock.yaml"}
    (tmp_path / "headrace.yaml").write_text(files["headrace.yaml"])
    assert set(load(tmp_path).spec.flows) == {yaml.safe_load(files["tests/stock.yaml"])["flow"]}
