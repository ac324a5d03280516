"""All logs of a project: names, versions, and the one that is served."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest
from tests.log.kit import ORDERS, changes, held

from headrace.core.endpoints import Conflicts
from headrace.core.errors import ProjectError
from headrace.core.files.state_files import StatePath
from headrace.core.schema import from_ddl
from headrace.log.folder import LogFolder, Version
from headrace.log.log import Mark
from headrace.project.loader import load

WIDER = replace(ORDERS, columns=from_ddl("id bigint, state string, total double"))


@pytest.fixture
def logs(root: StatePath) -> LogFolder:
    return LogFolder(root)


def test_a_first_version_is_served_at_once(logs: LogFolder) -> None:
    assert (logs.names(), logs.versions("orders"), logs.served("orders")) == ([], [], None)
    logs.define(ORDERS).commit(Mark("f/s", "g1", 0), [changes((1, "new"))])
    logs.define(replace(ORDERS, name="clients"))
    assert (logs.names(), logs.versions("orders"), logs.served("orders")) == (["clients", "orders"], [ORDERS], 1)
    assert held(logs.open("orders", 1)) == [[(1, "new")]]


def test_a_changed_definition_is_a_version_of_its_own_and_not_yet_served(logs: LogFolder) -> None:
    logs.define(ORDERS)
    assert logs.newest("orders") == Version(ORDERS)
    assert logs.define(WIDER).endpoint == replace(WIDER, version=2)
    assert logs.define(WIDER).endpoint.version == 2
    assert (logs.versions("orders"), logs.served("orders")) == ([ORDERS, replace(WIDER, version=2)], 1)
    for _ in range(2):
        logs.publish("orders")
    assert logs.served("orders") == 2
    logs.serve("orders", 1)
    logs.publish("orders")
    assert logs.served("orders") == 1, "somebody wants it so"
    assert logs.define(ORDERS).endpoint.version == 3, "the first one lacks what came since"


def test_policies_and_words_change_within_a_version(logs: LogFolder) -> None:
    logs.define(ORDERS)
    now = replace(ORDERS, conflicts=Conflicts(on_insert="error"), description="All orders")
    assert logs.define(now).endpoint == now
    assert logs.versions("orders") == [now]


def test_what_is_built_beside_is_served_when_it_is_published(logs: LogFolder) -> None:
    logs.define(ORDERS).commit(Mark("f/s", "g1", 0), [changes((1, "old"))])
    beside = logs.define(ORDERS, builder="f/s/g2")
    assert beside.endpoint.version == 2
    assert logs.define(ORDERS, builder="f/s/g2").endpoint.version == 2
    assert logs.define(ORDERS).endpoint.version == 1
    assert logs.served("orders") == 1
    beside.commit(Mark("f/s", "g2", 0), [changes((1, "new"))])
    for _ in range(2):
        logs.publish("orders", "f/s/g2")
        logs.forget("orders", "f/s/g2")
    assert logs.served("orders") == 2
    assert logs.define(ORDERS).endpoint.version == 2
    assert held(logs.open("orders", 2)) == [[(1, "new")]]


def test_what_was_built_beside_and_given_up_is_gone_and_its_number_too(logs: LogFolder) -> None:
    logs.define(ORDERS)
    logs.define(WIDER, builder="f/s/g2").commit(
        Mark("f/s", "g2", 0), [changes((1, "new"), endpoint=ORDERS).append_column("total", [None])]
    )
    for _ in range(2):
        logs.forget("orders", "f/s/g2")
    assert (logs.versions("orders"), logs.served("orders")) == ([ORDERS], 1)
    assert logs.define(WIDER).endpoint.version == 3


def test_what_is_not_there_is_named_with_what_is(logs: LogFolder) -> None:
    logs.define(ORDERS)
    with pytest.raises(ProjectError, match="no endpoint 'order'") as unknown:
        logs.open("order", 1)
    assert unknown.value.code == "unknown-endpoint"
    assert "did you mean 'orders'" in (unknown.value.hint or "")
    for act in (logs.open, logs.serve, logs.drop):
        with pytest.raises(ProjectError) as missing:
            act("orders", 7)
        assert (missing.value.code, missing.value.hint) == ("unknown-version", "versions: v1")


def test_of_several_who_define_at_once_all_get_the_same_version(root: StatePath) -> None:
    found: list[int] = []
    ready = threading.Barrier(4)

    def define() -> None:
        ready.wait()
        found.append(LogFolder(root).define(ORDERS).endpoint.version)

    threads = [threading.Thread(target=define) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [1, 1, 1, 1]
    assert LogFolder(root).versions("orders") == [ORDERS]


def test_a_project_says_where_its_logs_are(tmp_path: Path) -> None:
    (tmp_path / "headrace.yaml").write_text("project: shop\nstate: s3://bucket/shop\n")
    assert str(LogFolder.of(load(tmp_path, environment={}).context).root) == "s3://bucket/shop/log"
    (tmp_path / "headrace.yaml").write_text(
        "project: shop\nserve: {log: logs, topics: {brokers: 'localhost:9092', prefix: shop}}\n"
    )
    logs = LogFolder.of(load(tmp_path, environment={}).context)
    assert logs.root == tmp_path / "logs"
    assert logs.topics is not None
    assert (logs.topics.prefix, logs.topics.properties["bootstrap.servers"]) == ("shop", "localhost:9092")
    assert "localhost" not in repr(logs.topics), "properties may hold passwords"
