"""`headrace endpoints` and what `headrace status` says of them, without a node and with one that says something."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.serve.nodekit import ORDERS, PROJECT, changes, commit, defined, order

from headrace.core.schema import from_ddl
from headrace.log.folder import LogFolder
from headrace.project.loader import load
from headrace.serve.base.lock import locked
from headrace.serve.base.settings import Settings
from headrace.serve.base.status import NODE_LOCK, write_status

Run = Callable[..., Any]
WIDER = replace(ORDERS, columns=from_ddl("id bigint, state string, amount int, note string"))
COPY = {
    "state": "ready",
    "version": 1,
    "position": 1,
    "log_end": 2,
    "lag": {"segments": 1, "seconds": 0.5},
    "rows": 1200,
    "changes": 1300,
    "refused": 2,
    "snapshot": 1,
    "snapshot_age_s": 60.0,
    "error": None,
}


@pytest.fixture
def settings(write_project: Callable[[str, str], Path]) -> Settings:
    return Settings.of(load(write_project("shop", PROJECT)))


@pytest.fixture
def logs(settings: Settings) -> LogFolder:
    """Two versions, of which the first is served."""
    commit(defined(settings), 0, changes([order(1)]))
    defined(settings, WIDER)
    return LogFolder(settings.log)


def test_lists_what_nobody_has_written_yet(settings: Settings, headrace: Run) -> None:
    (found,) = headrace("endpoints", "list", settings.root, "--json").data
    assert (found["name"], found["state"], found["versions"]) == ("orders", "nothing written yet", [])
    assert headrace("endpoints", "show", "orders", "-p", settings.root).out.startswith("orders: nothing written yet")


def test_lists_and_shows_versions(settings: Settings, logs: LogFolder, headrace: Run) -> None:
    (found,) = headrace("endpoints", "list", settings.root, "--json").data
    assert (found["state"], found["served"], found["url"]) == ("not served here", 1, None)
    assert [(one["version"], one["key"], one["copy"]) for one in found["versions"]] == [
        (1, ["id"], None),
        (2, ["id"], None),
    ]
    shown = headrace("endpoints", "show", "orders", "-p", settings.root).out
    assert "`note` string" in shown
    assert "  index: amount, state" in shown
    wrong = headrace("endpoints", "show", "order", "-p", settings.root, "--json")
    assert (wrong.code, wrong.error["error"]["code"]) == (4, "unknown-endpoint")
    assert "orders" in wrong.error["error"]["hint"]


def say(settings: Settings) -> None:
    """What an applier says now and again."""
    write_status(settings.store, {"orders": {**COPY, "alias": 1, "versions": {"1": COPY}}})


def test_shows_what_the_node_says(settings: Settings, logs: LogFolder, headrace: Run) -> None:
    with locked(settings.store / NODE_LOCK, "node"):
        say(settings)
        (found,) = headrace("endpoints", "list", settings.root, "--json").data
        assert (found["state"], found["here"], found["versions"][0]["copy"]["rows"]) == ("ready", 1, 1200)
        say(settings)
        line = headrace("endpoints", "list", settings.root).out.splitlines()[1].split()
        assert line[:5] == ["orders", "ready", "1", "1,2", "1,200"]
        say(settings)
        served = headrace("status", settings.root, "--json").data["serve"]
        assert served["endpoints"]["orders"]["lag"]["segments"] == 1
        say(settings)
        said = headrace("status", settings.root).out
        assert "orders: ready, version 1, 1,200 rows, 1 segments and 0.5s behind, 2 changes refused" in said
    assert "no node serves them here: orders" in headrace("status", settings.root).out


def test_switches_and_drops_versions(settings: Settings, logs: LogFolder, headrace: Run) -> None:
    def ran(*arguments: object) -> Any:
        return headrace("endpoints", *arguments, "-p", settings.root, "--json")

    assert ran("drop", "orders", "--version", 1, "--yes").error["error"]["code"] == "endpoint-served"
    assert ran("use", "orders", "--version", 2).data == {"endpoint": "orders", "version": 2, "before": 1}
    assert ran("use", "orders", "--version", 3).error["error"]["code"] == "unknown-version"
    assert ran("drop", "orders", "--version", 2, "--yes").error["error"]["code"] == "endpoint-served"
    assert ran("drop", "orders", "--version", 1).error["error"]["code"] == "confirmation-needed"
    assert ran("drop", "orders", "--version", 1, "--yes").data["done"] is True
    assert [one.version for one in logs.versions("orders")] == [2]
    assert ran("drop", "orders", "--version", 2, "--yes").error["error"]["code"] == "endpoint-written"


def test_a_snapshot_needs_a_node(settings: Settings, logs: LogFolder, headrace: Run) -> None:
    found = headrace("endpoints", "snapshot", "orders", "-p", settings.root, "--json")
    assert (found.code, found.error["error"]["code"]) == (4, "no-node")


def test_other_machines_are_not_served_without_tokens(settings: Settings, headrace: Run) -> None:
    found = headrace("serve", settings.root, "--set", "serve.host=0.0.0.0", "--json")
    assert (found.code, found.error["error"]["code"]) == (1, "serve-unguarded")
    assert headrace("serve", settings.root, "--set", "serve.store=s3://a/b", "--json").code == 1
