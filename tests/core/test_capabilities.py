"""What the engine does with a sink that can only write batches, and what the reference says about every kind."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from typing import Any, Literal

import pytest

from headrace.core.capabilities import (
    Candidate,
    Rewind,
    candidate_effect,
    capabilities_of,
    endpoint_of,
    is_single_writer,
    lake_paths,
    rewind_effect,
    sink_of_flow,
    sink_of_view,
)
from headrace.core.context import Context
from headrace.core.errors import Exit, ProjectError
from headrace.core.kinds import kinds
from headrace.core.sink import Sink

HERE = Context(Path("/project"), "state")


class Plain(Sink):
    """The least that a sink can be."""

    type: Literal["plain"] = "plain"

    def write_batch(self, rows: Any, batch: Any) -> None: ...


def test_a_sink_is_small() -> None:
    (contract,) = ast.parse(inspect.getsource(Sink)).body
    assert isinstance(contract, ast.ClassDef)
    members = [part for part in contract.body if isinstance(part, ast.FunctionDef | ast.AnnAssign)]
    assert len(members) <= 8


def test_a_sink_that_only_writes_batches_has_defaults() -> None:
    sink = Plain()
    assert (sink.guarantee, sink.target, sink.label) == ("idempotent", "", "plain")
    assert sink_of_flow(sink, "f") is sink
    assert (endpoint_of(sink), lake_paths([sink]), is_single_writer(sink)) == (None, [], False)
    assert capabilities_of(Plain) == []


def test_a_sink_that_only_writes_batches_refuses_views_and_candidates() -> None:
    with pytest.raises(ProjectError) as refused:
        sink_of_view(Plain(), ["id"])
    assert refused.value.code == "sink-takes-no-changes"
    with pytest.raises(ProjectError) as refused:
        candidate_effect(Plain(), Candidate("f", "s", "g2", HERE))
    assert (refused.value.code, refused.value.exit_code) == ("beside-unsupported", Exit.CONFLICT)


@pytest.mark.parametrize(
    ("records", "words"),
    [(None, "records are"), (0, "no record is"), (1, "1 record is"), (2000, "2,000 records are")],
)
def test_a_rewind_writes_rows_again(records: int | None, words: str) -> None:
    rewind = Rewind("f", "s", HERE, None, records)
    effect = rewind_effect(Plain(), rewind, replace=False)
    assert effect.startswith(f"{words} read again: ")
    assert rewind_effect(Plain(), rewind, replace=True) == f"{effect}; rows written since cannot be removed"


def test_which_batches_a_rewind_keeps() -> None:
    rewind = Rewind("f", "s", HERE, ("g2-x", 3))
    keeps = [rewind.keeps(*batch) for batch in (("g1-a", 9), ("g2-x", 3), ("g2-x", 4), ("g3", 0), ("replay-7", 0))]
    assert keeps == [True, True, False, False, False]
    assert not Rewind("f", "s", HERE, None).keeps("g1", 0)


def test_capabilities_are_sentences() -> None:
    said = {name: capabilities_of(kind) for name, kind in kinds("sinks").items() if issubclass(kind, Sink)}
    assert "Holds incremental views." in said["lake"]
    assert all(sentence.endswith(".") for sentences in said.values() for sentence in sentences)
