"""`headrace kinds`: which kinds exist, and their options."""

from __future__ import annotations

from tests.cli.conftest import Run

from headrace.core.kinds import FAMILIES
from headrace.core.kinds import kinds as kinds_of


def test_it_lists_every_kind_with_a_line_about_it(headrace: Run) -> None:
    listed = headrace("kinds", "--json").data
    assert [(one["family"], one["kind"]) for one in listed] == [(f, name) for f in FAMILIES for name in kinds_of(f)]
    assert all(one["summary"] for one in listed)
    text = headrace("kinds", "sinks").out.splitlines()
    assert len(text) == len(kinds_of("sinks"))
    assert all(line.startswith("sinks/") for line in text)


def test_it_shows_the_options_of_a_kind(headrace: Run) -> None:
    options = headrace("kinds", "sources", "kafka", "--json").data["options"]
    assert options["topic"]["description"]
    assert options["brokers"]["required"]
    assert "\nbrokers (required)\n" in headrace("kinds", "sources", "kafka").out


def test_unknown_names_get_a_hint(headrace: Run) -> None:
    ran = headrace("kinds", "sinks", "kafak", "--json")
    assert (ran.code, ran.error["error"]["code"]) == (4, "unknown-kind")
    assert "kafka" in ran.error["error"]["hint"]
    assert headrace("kinds", "sink").code == 4
    assert headrace("kinds", "a", "b", "c").code == 2
