"""The telemetry application in a folder of its own: files in, run until caught up, files out."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.engine.flows.checks import check_services
from headrace.engine.flows.flow import FlowStarter
from headrace.engine.state.schemas import infer_schema
from headrace.engine.state.state import StateDir
from headrace.engine.supervise.runner import Runner
from headrace.plan.planner import make_plan
from headrace.project.loader import Project, load

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

APP = Path(__file__).parents[3] / "apps" / "telemetry"
FIXTURES = Path(__file__).parent / "fixtures"


def fixture(name: str) -> str:
    """A fixture as one line, as it would come over Kafka."""
    text = (FIXTURES / name).read_text(encoding="utf-8")
    return text.strip() if name.endswith(".txt") else line(json.loads(text))


def line(document: Any) -> str:
    """A document as one line."""
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False)


class Application:
    """A copy of the application; what it has written with profile local is read from its files."""

    def __init__(self, folder: Path, profile: str = "local", **variables: object) -> None:
        self.folder, self.profile = folder, profile
        for part in APP.iterdir():
            if part.name in ("schemas", "sql", "functions", "processors"):
                (folder / part.name).symlink_to(part)
            elif part.is_dir() and part.name == "flows":
                shutil.copytree(part, folder / part.name)
            elif part.is_file():
                shutil.copy(part, folder / part.name)
        self.overrides = [f"variables.{name}={value}" for name, value in variables.items()]

    def give(self, place: str, lines: Iterable[str]) -> None:
        """Lines as a new file of the topic's folder in `in/`, or, with a slash in it, as a file of the project."""
        file = self.folder / place
        if "/" not in place:
            file = self.folder / "in" / place / f"{len(list((self.folder / 'in' / place).glob('*')))}.jsonl"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(f"{one}\n" for one in lines), encoding="utf-8")

    def run(self, spark: SparkSession, *flows: str) -> None:
        """Run flows until they have caught up."""
        project = self.project()
        state = StateDir.of(project.context)
        plan = make_plan(project, flows, lambda name, spec: infer_schema(project, state, name, spec))
        check_services(project, plan)
        runs = Runner(FlowStarter(project, state, spark, until_caught_up=True), plan).run(seconds=900)
        errors = [one.error for one in runs if one.error is not None]
        if errors:
            raise errors[0]
        assert all(one.caught_up for one in runs), "they did not catch up in time"

    def project(self) -> Project:
        """The project with its profile."""
        return load(self.folder, profile=self.profile, overrides=self.overrides)

    def lines(self, topic: str) -> list[str]:
        """What was written to a topic, in any order."""
        files = sorted((self.folder / "out" / topic).glob("[!_.]*"))
        return [one for file in files for one in file.read_text(encoding="utf-8").splitlines()]

    def documents(self, topic: str) -> list[dict[str, Any]]:
        """The same as documents."""
        return [json.loads(one) for one in self.lines(topic)]

    def topics(self) -> dict[str, list[dict[str, Any]]]:
        """All documents by topic; of batches that could not be read the text."""
        folders = sorted(one for one in (self.folder / "out").iterdir() if one.is_dir() and one.name[0] not in "._")
        return {one.name: [_document(text) for text in self.lines(one.name)] for one in folders}


def _document(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {"text": text}
    return found if isinstance(found, dict) else {"text": text}


def by_mid(documents: Iterable[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Documents by their id, which no two of them have."""
    listed = list(documents)
    found = {one["mid"]: one for one in listed}
    assert len(found) == len(listed)
    return found
