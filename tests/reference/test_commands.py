from __future__ import annotations

import re

import pytest

from headrace.cli.main import all_commands
from headrace.core.errors import Exit
from headrace.reference.commands import command_pages


@pytest.mark.parametrize("name", all_commands())
def test_every_command_has_a_page_with_all_its_options(name: str) -> None:
    page = command_pages()[f"cli/{name}.md"]
    assert f"[{name}]({name}.md)" in command_pages()["cli/index.md"]
    command = all_commands()[name].load()
    for each in (command, *getattr(command, "commands", {}).values()):
        for param in each.params:
            shown = param.opts[0] if param.param_type_name == "option" else param.metavar or param.name.upper()
            assert shown.replace("|", r"\|") in page


def test_an_option_has_its_default_and_its_help() -> None:
    page = command_pages()["cli/run.md"]
    assert re.search(r"^\| `--stop-timeout TIME` \| `30s` \| .+ \|$", page, re.MULTILINE)
    assert "headrace run [OPTIONS] [PROJECT|FLOW]..." in page


def test_subcommands_are_sections_of_their_group() -> None:
    page = command_pages()["cli/offsets.md"]
    assert "[reset](#headrace-offsets-reset)" in page
    assert "## headrace offsets reset" in page


def test_help_texts_are_no_markup() -> None:
    assert "lag&lt;5s" in command_pages()["cli/wait.md"]
    assert "\n\\# yaml-language-server" in command_pages()["cli/schema.md"]


def test_every_exit_code_is_explained() -> None:
    page = command_pages()["cli/exit-codes.md"]
    assert all(f"| `{int(code)}` | {code.name.lower().replace('_', ' ')} | {code.meaning} |" in page for code in Exit)


def test_the_index_has_the_global_options() -> None:
    assert "`-h, --help`" in command_pages()["cli/index.md"]
