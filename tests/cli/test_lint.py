"""`headrace lint`: all errors at once, with place and hint, without Spark."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]
Write = Callable[[str, str], Path]

THREE_FAULTS = """\
project: shop
streams:
  orders:
    source: {type: kafka, brokers: ["127.0.0.1:9"], topik: orders}
    format: {type: jsom}
flows:
  big:
    sql: SELECT 1
    mode: sometimes
"""


def test_a_good_project(project: Path, headrace: Run) -> None:
    ran = headrace("lint", project)
    assert (ran.code, ran.out, ran.err) == (0, "ok: 1 stream, 1 flow\n", "")
    assert headrace("lint", project, "--json").data == {
        "ok": True,
        "streams": 1,
        "tables": 0,
        "flows": 1,
        "warnings": [],
    }


def test_a_project_is_also_a_file_an_option_or_the_current_folder(
    project: Path, headrace: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert headrace("lint", project / "headrace.yaml").code == 0
    assert headrace("lint", "-p", project).code == 0
    monkeypatch.chdir(project)
    assert headrace("lint").code == 0


def test_all_errors_at_once_in_the_order_of_the_file(write_project: Write, headrace: Run) -> None:
    ran = headrace("lint", write_project("faulty", THREE_FAULTS))
    assert (ran.code, ran.out) == (1, "")
    places = [line for line in ran.err.splitlines() if line.startswith("  --> ")]
    lines = [int(place.split("headrace.yaml:")[1].split()[0]) for place in places]
    assert {4, 5, 9} <= set(lines)
    assert lines == sorted(lines)
    assert "did you mean 'topic'?" in ran.err
    assert "did you mean 'json'?" in ran.err


def test_errors_as_json(write_project: Write, shell: Run) -> None:
    ran = shell("lint", write_project("faulty", THREE_FAULTS), "--json")
    assert (ran.code, ran.out) == (1, "")
    document = ran.error
    assert document["error"] == document["errors"][0]
    assert len(document["errors"]) >= 3
    for error in document["errors"]:
        assert error.keys() == {"code", "message", "where", "hint", "exit"}
        assert error["where"]["file"] == "headrace.yaml"
    assert {"unknown-key", "unknown-kind"} <= {error["code"] for error in document["errors"]}


def test_faults_in_sql_have_a_place_and_a_hint(project: Path, headrace: Run) -> None:
    file = project / "headrace.yaml"
    file.write_text(file.read_text().replace("amount > 10", "ammount > 10"))
    error = headrace("lint", project, "--json").error["error"]
    assert error["code"] == "unknown-column"
    assert error["where"]["line"] == 9
    assert "did you mean 'amount'?" in error["hint"]


def test_no_project_is_not_found(tmp_path: Path, shell: Run) -> None:
    ran = shell("lint", tmp_path / "nowhere")
    assert ran.code == 4
    assert "error[no-project]" in ran.err


def test_an_unknown_profile_and_a_bad_override(project: Path, headrace: Run) -> None:
    assert headrace("lint", project, "--profile", "nope", "--json").error["error"]["code"] == "unknown-profile"
    ran = headrace("lint", project, "--set", "nonsense", "--json")
    assert (ran.code, ran.error["error"]["code"]) == (2, "bad-override")
    assert headrace("lint", project, "--set", "spark.memory=lots", "--json").code == 1
    assert headrace("lint", project, "--set", "spark.memory=2g", "--set", "defaults.partitions=4").code == 0


def test_warnings_do_not_fail(project: Path, headrace: Run) -> None:
    with (project / "headrace.yaml").open("a") as file:
        file.write("  idle:\n    sql: SELECT id FROM big\n")
    text = (project / "headrace.yaml").read_text()
    spare = "  spare:\n    source: {type: kafka, brokers: ['127.0.0.1:9'], topic: spare}\n    format: raw\n"
    (project / "headrace.yaml").write_text(text.replace("flows:\n", f"{spare}flows:\n"))
    ran = headrace("lint", project)
    assert (ran.code, ran.out) == (0, "ok: 2 streams, 2 flows\n")
    assert "warning[unread-stream]: no flow reads stream 'spare'" in ran.err
    assert "warning[idle-flow]: flow 'idle'" in ran.err
    found = headrace("lint", project, "--json").data["warnings"]
    assert [one["code"] for one in found] == ["unread-stream", "idle-flow"]
    assert found[0]["where"]["line"] == 7


def test_spark_is_not_imported_and_no_client_either(project: Path) -> None:
    script = (
        f"import sys; from headrace.cli.main import main; assert main(['lint', {str(project)!r}]) == 0;"
        "print(sorted(sys.modules.keys() & {'pyspark', 'confluent_kafka', 'deltalake', 'rich', 'pandas'}))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout == "ok: 1 stream, 1 flow\n[]\n", done.stderr
