from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.processors.steps import Around

from headrace.core.errors import ProjectError
from headrace.plan.planner import make_plan
from headrace.processors.python import PythonStep
from headrace.project.loader import load

CODE = '''
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

class Double:
    """Twice as much."""
    columns = "twice bigint"

    def __init__(self, by=2):
        self.by = by

    def process(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.append_column("twice", pc.multiply(batch.column("n"), self.by))

class Frames:
    columns: str = "n bigint"
    keep = False

    def process(self, batch: "pd.DataFrame") -> "pd.DataFrame":
        return batch[batch["n"] > 1][["n"]]

class Forgets:
    columns = "more bigint"
    def process(self, batch): return batch

class Mistyped:
    columns = "n bigint"; keep = False
    def process(self, batch): return pa.record_batch({"n": ["x"]})

class Breaks:
    def process(self, batch):
        raise KeyError("boom")

class Nothing:
    def process(self, batch): return 5

class Idle:
    def work(self): pass
'''
ROWS = pa.RecordBatch.from_pydict({"n": [1, 2, 3], "s": ["a", "b", "c"]})


@pytest.fixture
def around(tmp_path: Path) -> Around:
    (tmp_path / "processors").mkdir()
    (tmp_path / "processors" / "my.py").write_text(CODE)
    return Around(tmp_path)


def step(name: str, **options: Any) -> PythonStep:
    return PythonStep.model_validate({"class": f"processors/my.py:{name}", **options})


def test_arrow_batches_and_frames(around: Around) -> None:
    assert around.work(step("Double"), ROWS)["twice"].to_pylist() == [2, 4, 6]
    made = around.work(step("Double", options={"by": 10}), ROWS)
    assert made.to_pylist()[0] == {"n": 1, "s": "a", "twice": 10}
    assert around.work(step("Frames"), ROWS).to_pydict() == {"n": [2, 3]}


def test_what_is_said_here_goes_before_the_class(around: Around) -> None:
    bound = step("Double", columns="twice double", keep=False, uses=["n"]).bound(around)
    assert bound.output(ROWS.schema) == pa.schema([("twice", pa.float64())])
    assert bound.uses(frozenset({"twice"})) == {"n"}
    assert step("Double").bound(around).uses(frozenset({"twice"})) is None
    assert step("Double", uses=["n"]).bound(around).uses(frozenset({"twice", "s"})) == {"n", "s"}


@pytest.mark.parametrize(
    ("name", "code", "said"),
    [
        ("Forgets", "python-step-columns", "processors/my.py:23) returned no column 'more'"),
        ("Mistyped", "python-step-columns", "my.py:27) returned a value of another type"),
        ("Nothing", "python-step-columns", "returned int"),
        ("Breaks", "python-step-failed", "my.py:33) failed: KeyError: 'boom'"),
    ],
)
def test_what_a_class_does_wrong_is_told_with_its_line(around: Around, name: str, code: str, said: str) -> None:
    with pytest.raises(ProjectError) as caught:
        around.work(step(name), ROWS)
    assert caught.value.code == code
    assert said in caught.value.message
    assert caught.value.where is not None
    assert caught.value.where.file == "processors/my.py"


@pytest.mark.parametrize(
    ("reference", "code", "line"),
    [
        ("processors/my.py:Duble", "python-step", None),
        ("processors/my.py:Idle", "python-step", 38),
        ("processors/other.py:X", "missing-file", None),
        ("no.such.module:X", "python-step", None),
        ("processors/broken.py:X", "python-step", 2),
    ],
)
def test_what_is_not_there_is_found_without_running_anything(
    around: Around, reference: str, code: str, line: int | None
) -> None:
    (around.root / "processors" / "broken.py").write_text("raise SystemExit\nclass (:\n")
    with pytest.raises(ProjectError) as caught:
        PythonStep.model_validate({"class": reference}).bound(around)
    assert caught.value.code == code
    if line is not None:
        assert caught.value.where is not None
        assert caught.value.where.line == line


def test_options_are_tried_before_a_flow_starts(around: Around) -> None:
    with pytest.raises(ProjectError) as caught:
        step("Double", options={"times": 3}).bound(around).check(around.context)
    assert caught.value.code == "python-step"


def test_in_a_project(around: Around) -> None:
    (around.root / "headrace.yaml").write_text(
        """
project: own
streams:
  numbers:
    source: {type: generate, fields: {n: {sequence: 1}}}
    format: {type: json, columns: "n bigint, s string"}
flows:
  doubled:
    before: {numbers: [{type: python, class: processors/my.py:Double, uses: [n]}]}
    sql: SELECT twice FROM numbers
    sinks: [console]
"""
    )
    plan = make_plan(load(around.root))
    assert next(plan.flow("doubled").streams()).columns == ("n",)


@pytest.mark.spark
def test_in_tasks(around: Around, spark: Any) -> None:
    rows = around.run(spark, step("Double"), [{"n": 4}], "n bigint")
    assert rows == [{"n": 4, "twice": 8}]
