"""The cases of dagger_cases.py through the path of `headrace sql`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.functions.dagger_cases import AGGREGATES, FAILED, REFUSED, SCALARS, TABLES
from tests.functions.test_vectors import answer, asked
from tests.functions.vectors import plain

from headrace.core.errors import ProjectError
from headrace.functions.expansion import expand_text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize(("call", "reason"), REFUSED, ids=[call for call, _ in REFUSED])
def test_wrong_calls_are_refused(call: str, reason: str) -> None:
    with pytest.raises(ProjectError, match=reason) as found:
        expand_text(f"SELECT {call}")
    assert found.value.code == "function-argument"
    assert found.value.hint
    assert len(found.value.hint) < 300


@pytest.mark.spark
def test_scalars(spark: SparkSession, tmp_path: Path) -> None:
    found = answer(asked(spark, tmp_path), [call for call, _ in SCALARS])
    for (call, wanted), value in zip(SCALARS, found, strict=True):
        if isinstance(wanted, float) and value is not None:
            tolerance = 0.01 if "F," in call else 1e-9
            assert value == pytest.approx(wanted, abs=tolerance), call
        else:
            assert value == wanted, call


@pytest.mark.spark
def test_aggregates_and_tables(spark: SparkSession, tmp_path: Path) -> None:
    adhoc = asked(spark, tmp_path)
    for call, rows, wanted in AGGREGATES:
        (row,) = adhoc.run(f"SELECT {call} AS a FROM VALUES {rows} AS t(v)").to_pylist()
        assert row["a"] == wanted, call
    for call, wanted in TABLES:
        found = [[plain(value) for value in row.values()] for row in adhoc.run(f"SELECT * FROM {call}").to_pylist()]
        assert found == wanted, call


@pytest.mark.spark
def test_failures_have_a_code_and_no_trace(
    spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    adhoc = asked(spark, tmp_path)
    for call, code, words, hint in FAILED:
        with pytest.raises(ProjectError) as found:
            adhoc.run(f"SELECT {call}")
        assert found.value.code == code, call
        assert words in found.value.message, (call, found.value.message)
        assert hint in (found.value.hint or ""), call
        assert not any(sign in found.value.message for sign in ("SQLSTATE", "org.apache", "Exception", "\n", "lambda"))
    assert "stacktrace" not in capfd.readouterr().err
