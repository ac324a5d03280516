from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pydantic import ValidationError
from tests.processors.steps import Around

from headrace.core.errors import ProjectError
from headrace.processors.explode import Explode, work

EXACT = ['{"a": 1.50,"b":"\\u00e9 ä😀\\n","c":12345678901234567890123}', "[1, [2]]", '"te\\"xt"', "1e3", "null", "true"]
BAD = ["nonsense", '{"events":[1],', '{"events":{"a":1}}', '{"events":"x"}', "[1]", '{"events":[1]} x', None]


def rows(texts: list[Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"key": list(range(len(texts))), "value": pa.array(texts, pa.string())})


def test_each_element_is_a_row_with_the_text_it_has(tmp_path: Path) -> None:
    given = rows(
        [f'{{"id":7,"events":[ {" , ".join(EXACT)}\n]}}', '{"events":[]}', "{}", '{"events":null}', '{"events":[2]}']
    )
    made = Around(tmp_path).work(Explode(path="events", position="n"), given)
    assert made.schema.names == ["key", "value", "n"]
    assert made["value"].to_pylist() == [*EXACT, "2"]
    assert made["key"].to_pylist() == [0] * len(EXACT) + [4]
    assert made["n"].to_pylist() == [*range(len(EXACT)), 0]


def test_other_columns_are_repeated_and_rows_without_elements_stay_if_wanted(tmp_path: Path) -> None:
    texts = ['{"a":{"b.c":[1,\n {\n"x":2}]}}', '{"a":{}}', '{"a":null}', '{"a":{"b.c":[]}}']
    made = Around(tmp_path).work(Explode(path=r"a.b\.c", into="event", outer=True), rows(texts))
    assert made["event"].to_pylist() == ["1", '{"x":2}', None, None, None]
    assert made["value"].to_pylist() == [texts[0], *texts]


def test_what_cannot_be_taken_apart_is_a_dead_letter_or_what_is_asked_for(tmp_path: Path) -> None:
    around = Around(tmp_path)
    given = rows([*BAD, '{"events":[1]}'])
    assert around.work(Explode(path="events"), given)["value"].to_pylist() == ["1"]
    letters = around.letters()
    assert [letter["reason"] for letter in letters] == ["not-json"] * len(BAD)
    assert "'events' is no array" in {letter["detail"] for letter in letters}
    kept = around.work(Explode(path="events", into="e", invalid="keep"), given)
    assert kept["e"].to_pylist() == [None] * len(BAD) + ["1"]
    assert kept["value"].to_pylist() == given["value"].to_pylist()
    with pytest.raises(ProjectError) as caught:
        around.work(Explode(path="events", invalid="fail"), given)
    assert caught.value.code == "invalid-row"
    deep = '{"a":[1]}'
    assert around.work(Explode(path="a.b"), rows([deep])).num_rows == 0


def test_rows_that_a_column_excepts_come_out_as_they_are(tmp_path: Path) -> None:
    texts = ['{"e":[1,2]}', '{"e":[3]}', "nonsense", '{"e":[4]}']
    given = rows(texts).append_column("repeat", pa.array([False, True, True, None]))
    around = Around(tmp_path)
    made = around.work(Explode(path="e", position="n", count="of", unless="repeat"), given)
    assert made["value"].to_pylist() == ["1", "2", texts[1], texts[2], "4"]
    assert made["n"].to_pylist() == [0, 1, None, None, 0]
    assert made["of"].to_pylist() == [2, 2, None, None, 1]
    assert around.letters() == []
    beside = around.work(Explode(path="e", into="element", unless="repeat"), given)
    assert beside["element"].to_pylist() == ["1", "2", None, None, "4"]


def test_many_elements_come_out_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "_BATCH_BYTES", 10)
    step, given = Explode(path="e"), rows(['{"e":[1,2,3,4,5,6,7,8,9,10,11]}'] * 3)
    parts = list(step.work(given.schema, Around(tmp_path).at())(iter([given])))
    assert [part.num_rows for part in parts] == [11, 11, 11, 0]


def test_options_are_checked() -> None:
    step = Explode(path="events", into="event", position="n")
    given = pa.schema([("value", pa.string()), ("n", pa.string())])
    assert step.output(given) == pa.schema([("value", pa.string()), ("n", pa.int32()), ("event", pa.string())])
    assert step.uses(frozenset({"event", "n", "key"})) == {"key", "value"}
    assert step.label == "explode value: events as event"
    excepting = Explode(path="events", unless="key")
    assert excepting.uses(frozenset({"n"})) == {"n", "value", "key"}
    with pytest.raises(ProjectError) as caught:
        excepting.output(pa.schema([("value", pa.string()), ("key", pa.int64())]))
    assert caught.value.code == "step-type"
    with pytest.raises(ValidationError):
        Explode(path="a.")
    with pytest.raises(ProjectError) as caught:
        step.output(pa.schema([("value", pa.int64())]))
    assert caught.value.code == "step-type"
