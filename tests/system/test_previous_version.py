"""A project that an earlier version ran is taken over: state, table copy, log and store, after a `kill -9`.

`previous/state-2026-11-18.tar.gz` is a project folder whose engine was killed between the two sinks of a batch. It was
written under one fixed path, because Spark keeps the path of a checkpoint in its state.
"""

from __future__ import annotations

import fcntl
import json
import shutil
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from deltalake import DeltaTable
from tests.system.conftest import RunProject, headrace, run_by_command

from headrace.engine.letters.dead_letters import read_dead_letters
from headrace.engine.state.state import StateDir
from headrace.project.loader import load

pytestmark = pytest.mark.spark

ARCHIVE = Path(__file__).parent / "previous" / "state-2026-11-18.tar.gz"
REGIONS = {"north": 26, "south": 14, "west": 2}
"""Of the 40 customers of the archive, and of the two that the new version reads first."""


@pytest.fixture
def taken_over() -> Iterator[Path]:
    """The folder of the earlier version, with one more file for its table."""
    folder = Path(tempfile.gettempdir()) / "headrace-previous-version"
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        shutil.rmtree(folder, ignore_errors=True)
        with tarfile.open(ARCHIVE) as archive:
            archive.extractall(folder.parent, filter="data")
        (folder / "data/customers/b.csv").write_text("id,region\nc40,west\nc41,west\n")
        yield folder
        shutil.rmtree(folder)


def results(folder: Path) -> dict[str, Any]:
    """What the two streaming flows have written, in an order that does not depend on batches."""
    files = [path.read_text() for path in (folder / "out/firsts").glob("*.json")]
    letters = read_dead_letters(StateDir.of(load(folder).context).dead_letters)
    return {
        "lake": sorted(DeltaTable(folder / "lake/per_second").to_pyarrow_table().to_pylist(), key=str),
        "files": sorted(line for text in files for line in text.splitlines()),
        "dead letters": sorted((row["flow"], row["value"]) for row in letters.to_pylist()),
    }


def served(folder: Path, expected: dict[str, Any]) -> dict[str, Any]:
    """What a serve node answers, once it is what is expected or a minute has passed."""
    words = ("serve", folder, "--json", "--port", "0", "--set", "serve.grpc_port=0")
    with headrace(*words, stdout=subprocess.PIPE) as node, httpx.Client(timeout=60) as client:
        try:
            assert node.stdout is not None
            address = json.loads(node.stdout.readline())["http"]
            deadline = time.monotonic() + 60
            while (found := answers(client, address)) != expected and time.monotonic() < deadline:
                time.sleep(0.2)
            return found
        finally:
            node.terminate()


def answers(client: httpx.Client, address: str) -> dict[str, Any]:
    return {
        "regions": {row["region"]: row["customers"] for row in rows(client, f"{address}/regions")},
        "seconds": {row["second"]: row["orders"] for row in rows(client, f"{address}/seconds")},
    }


def rows(client: httpx.Client, url: str) -> list[dict[str, Any]]:
    """None as long as the node has not opened its copy."""
    reply = client.get(url)
    return reply.json() if reply.status_code == httpx.codes.OK else []


def test_a_killed_engine_of_the_previous_version_goes_on(
    taken_over: Path, tmp_path: Path, run_project: RunProject
) -> None:
    cut_off = results(taken_over)
    run_by_command(taken_over)
    shutil.copy(taken_over / "headrace.yaml", tmp_path)
    run_project(tmp_path, "per_second", "firsts")
    expected = results(tmp_path)
    assert 0 < len(cut_off["files"]) <= len(expected["files"]) == 40
    assert len(cut_off["lake"]) < len(expected["lake"])
    assert results(taken_over) == expected
    orders = {f"{row['second']:%Y-%m-%dT%H:%M:%SZ}": row["orders"] for row in expected["lake"]}
    assert served(taken_over, {"regions": REGIONS, "seconds": orders}) == {"regions": REGIONS, "seconds": orders}
