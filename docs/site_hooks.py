"""Hooks of mkdocs: navigation by purpose, README.md as the home page, and links to files outside of docs/."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
HOME = "index.md"
SECTIONS = {
    "tutorial": "Tutorial",
    "how-to": "How-to guides",
    "reference": "Reference",
    "explanation": "Explanation",
    "cli": "Command line",
}
LINK = re.compile(r"\[(?P<text>[^\]]*)\]\((?P<target>[^)\s#:]+)(?P<anchor>#[^)\s]*)?\)")
COMMENT = re.compile(r"\A\s*<!--.*?-->\s*", re.DOTALL)


def on_config(config: Any) -> Any:
    """Folders in the order of SECTIONS, others after them; the pages of a folder in alphabetical order."""
    config.nav = [HOME, *_navigation(DOCS)]
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add README.md as the home page."""
    files.append(File.generated(config, HOME, content=(ROOT / "README.md").read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links are written for readers of the repository; the site needs them relative to docs/."""
    source = ROOT / "README.md" if page.file.src_uri == HOME else DOCS / page.file.src_uri
    text = COMMENT.sub("", markdown)  # a page has the title of its heading only when the heading comes first
    return LINK.sub(lambda link: _link(link, source, page.file.src_uri), text)


def _navigation(folder: Path) -> list[Any]:
    pages = sorted(folder.glob("*.md"), key=lambda path: (path.name != HOME, path.name))
    order = list(SECTIONS)
    folders = sorted(
        (path for path in folder.iterdir() if path.is_dir() and any(path.rglob("*.md"))),
        key=lambda path: (order.index(path.name) if path.name in order else len(order), path.name),
    )
    sections = [{SECTIONS.get(path.name, path.name.capitalize()): _navigation(path)} for path in folders]
    return [*(path.relative_to(DOCS).as_posix() for path in pages), *sections]


def _link(link: re.Match[str], source: Path, page: str) -> str:
    target = (source.parent / link["target"]).resolve()
    anchor = link["anchor"] or ""
    if not target.exists():
        return link[0]  # mkdocs reports it
    if target == ROOT / "README.md":
        target = DOCS / HOME
    if target.is_dir() and target.is_relative_to(DOCS):
        target = DOCS / _navigation(target)[0]
    if not target.is_relative_to(DOCS):  # a file of the repository that the site does not have
        return f"{link['text']} (`{target.relative_to(ROOT).as_posix()}`)"
    return f"[{link['text']}]({os.path.relpath(target, (DOCS / page).parent)}{anchor})"
