"""`headrace plan`: the same plan as text, JSON and graph; secrets in none of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.projects._generation_changes import NewGenerations, settle_changes
from headrace.core.errors import ProjectError
from headrace.engine.positions.upgrade import record_query_id, resolve_generation
from headrace.engine.state.state import StateDir
from headrace.plan.planner import make_plan
from headrace.project.loader import load

Run = Callable[..., Any]

SECOND_FLOW = """\
  counts:
    description: How many per second.
    sql: SELECT window.start AS at, count(*) AS n FROM orders GROUP BY window(at, '1 second')
    sinks:
      - {type: kafka, brokers: ["127.0.0.1:9"], topic: "${secret:TOPIC:-counts}", format: json}
"""


@pytest.fixture
def two_flows(project: Path) -> Path:
    with (project / "headrace.yaml").open("a") as file:
        file.write(SECOND_FLOW)
    return project


def test_as_text(two_flows: Path, headrace: Run) -> None:
    ran = headrace("plan", two_flows)
    assert (ran.code, ran.err) == (0, "")
    assert "flow big" in ran.out
    assert "flow counts" in ran.out


def test_as_json(two_flows: Path, headrace: Run) -> None:
    plan = headrace("plan", two_flows, "--json").data
    assert plan["project"] == "shop"
    assert [flow["name"] for flow in plan["flows"]] == ["big", "counts"]
    big = plan["flows"][0]
    assert big["inputs"][0]["columns"] == ["id", "amount"]
    assert big["guarantee"] == big["sinks"][0]["guarantee"]


def test_as_a_graph(two_flows: Path, headrace: Run) -> None:
    out = headrace("plan", two_flows, "--dot").out
    assert out.startswith("digraph")
    assert out.rstrip().endswith("}")
    assert '"stream orders" -> "flow big"' in out


def test_of_some_flows(two_flows: Path, headrace: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def flows(*arguments: object) -> list[str]:
        return [flow["name"] for flow in headrace("plan", *arguments, "--json").data["flows"]]

    assert flows(two_flows, "counts") == ["counts"]
    assert flows("counts", "-p", two_flows) == ["counts"]
    monkeypatch.chdir(two_flows)
    assert flows("big") == ["big"]
    Path("big").mkdir()  # a table's folder may have the flow's name
    assert flows("big") == ["big"]


def test_of_an_unknown_flow(two_flows: Path, headrace: Run) -> None:
    ran = headrace("plan", two_flows, "count", "--json")
    assert (ran.code, ran.error["error"]["code"]) == (4, "unknown-flow")
    assert "did you mean 'counts'?" in ran.error["error"]["hint"]


@pytest.mark.parametrize("form", [[], ["--json"], ["--dot"]])
def test_secrets_are_hidden(two_flows: Path, headrace: Run, monkeypatch: pytest.MonkeyPatch, form: list[str]) -> None:
    monkeypatch.setenv("TOPIC", "hush-hush")
    ran = headrace("plan", two_flows, *form)
    assert ran.code == 0
    assert "hush-hush" not in ran.out
    assert "****" in ran.out


@pytest.fixture
def begun(project: Path) -> Path:
    """A project whose flow `big` has been running: a generation with a batch."""
    loaded = load(project, environment={})
    state = StateDir.of(loaded.context)
    generation = resolve_generation(loaded, state, make_plan(loaded).flow("big"))
    checkpoint = generation.checkpoint_folder
    for name in ("offsets", "commits"):
        (checkpoint / name).mkdir(parents=True)
        (checkpoint / name / "0").write_text('v1\n{"batchWatermarkMs":0,"batchTimestampMs":0,"conf":{}}\n{}')
    (checkpoint / "metadata").write_text('{"id": "q"}')
    record_query_id(generation, "q")
    return project


def change(project: Path, old: str, new: str) -> None:
    file = project / "headrace.yaml"
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))


def test_says_what_a_change_means(begun: Path, headrace: Run) -> None:
    (flow,) = headrace("plan", begun, "--json").data["flows"]
    assert (flow["change"]["verdict"], flow["change"]["reasons"]) == ("safe", [])
    assert flow["change"]["generation"].startswith("g1-")
    assert ": unchanged" in headrace("plan", begun).out
    change(begun, "amount > 10", "amount > 20")
    ran = headrace("plan", begun, "--check")
    assert ran.code == 0
    assert ": safe\n    conditions changed from amount > 10 to amount > 20: from now on" in ran.out
    change(begun, "topic: orders}", "topic: bookings}")
    ran = headrace("plan", begun)
    assert (ran.code, "needs a new generation\n    input orders changed from" in ran.out) == (0, True)
    (flow,) = headrace("plan", begun, "--json").data["flows"]
    assert flow["change"]["verdict"] == "new_generation"


def test_a_flow_that_never_ran_is_a_first_start(project: Path, headrace: Run) -> None:
    (flow,) = headrace("plan", project, "--json").data["flows"]
    assert flow["change"] == {"verdict": "first", "reasons": [], "generation": None, "beside": None}
    assert "generation" not in headrace("plan", project).out
    assert not (project / ".headrace").exists(), "plan writes nothing"


def test_check_ends_with_a_code_for_ci(begun: Path, headrace: Run) -> None:
    change(begun, "topic: orders}", "topic: bookings}")
    ran = headrace("plan", begun, "--check", "--json")
    assert (ran.code, ran.error["error"]["code"]) == (5, "needs-new-generation")
    assert ran.data["flows"][0]["change"]["verdict"] == "new_generation"


def test_run_refuses_before_anything_starts(begun: Path, headrace: Run) -> None:
    change(begun, "topic: orders}", "topic: bookings}")
    ran = headrace("run", begun, "--json")
    assert (ran.code, ran.error["error"]["code"]) == (5, "needs-new-generation")
    assert "--new-generation big" in ran.error["error"]["hint"]


@pytest.mark.parametrize(
    ("arguments", "code", "error"),
    [
        (["--from", "current"], 2, "usage"),
        (["--new-generation", "big", "--from", "yesterday"], 2, "usage"),
        (["--new-generation", "bg"], 4, "unknown-flow"),
        (["--beside"], 2, "usage"),
        (["--new-generation", "big", "--beside", "--from", "current"], 2, "usage"),
        (["--new-generation", "big", "--beside", "--until-caught-up"], 2, "usage"),
    ],
)
def test_run_knows_only_flows_and_places(
    begun: Path, headrace: Run, arguments: list[str], code: int, error: str
) -> None:
    ran = headrace("run", begun, *arguments, "--json")
    assert (ran.code, ran.error["error"]["code"]) == (code, error)


def asked(project: Path, *anew: str, begin: str | None = None) -> None:
    """What `run --new-generation … --from …` does before it asks any service."""
    loaded = load(project, environment={})
    settle_changes(loaded, StateDir.of(loaded.context), make_plan(loaded), NewGenerations(tuple(anew), begin))


def test_run_makes_the_generation_that_is_asked_for(
    begun: Path, headrace: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    change(begun, "topic: orders}", "topic: bookings}")
    asked(begun, "big")
    assert "records are read again" in capsys.readouterr().err
    generations = StateDir(begun / ".headrace").generations("big")
    old, new = generations.all()
    assert generations.current() == new
    assert (new.manifest.parent, new.manifest.reason[:34]) == (old.id, "changed: input orders changed from")
    assert headrace("plan", begun, "--json").data["flows"][0]["change"]["verdict"] == "first"


def test_a_change_that_is_taken_back_before_it_began_goes_back_too(begun: Path, headrace: Run) -> None:
    change(begun, "topic: orders}", "topic: bookings}")
    asked(begun, "big")
    change(begun, "topic: bookings}", "topic: orders}")
    asked(begun)
    loaded = load(begun, environment={})
    generations = StateDir.of(loaded.context).generations("big")
    (said,) = headrace("plan", begun, "--json").data["flows"]
    assert (said["change"]["verdict"], said["change"]["generation"]) == ("safe", generations.all()[0].id)
    assert (
        resolve_generation(loaded, StateDir.of(loaded.context), make_plan(loaded).flow("big")) == generations.all()[0]
    )
    assert generations.current() == generations.all()[0]


def test_nobody_goes_on_from_the_midst_of_a_batch(begun: Path) -> None:
    offsets = StateDir(begun / ".headrace").current("big").checkpoint_folder / "offsets"
    (offsets / "1").write_bytes((offsets / "0").read_bytes())
    with pytest.raises(ProjectError) as refused:
        asked(begun, "big", begin="current")
    assert (refused.value.code, int(refused.value.exit_code)) == ("batch-in-flight", 5)
