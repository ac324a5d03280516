"""Jars are fetched once, whole, verified, and every failure has its code."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from xml.etree import ElementTree

import pytest
import typer
from typer.testing import CliRunner

from headrace.cli.environment.jars import jars as jars_command
from headrace.core.errors import ProjectError
from headrace.engine.spark import jars
from headrace.engine.spark.jars import JarSet, fetch_set


class Repository:
    """A Maven repository in a folder, and a jar set that is pinned to it."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "repository"
        self.root.mkdir()
        self.set = JarSet(folder / "set.xml", folder / "set.sha256", folder / "jars" / "set")
        self.settings = folder / "settings.xml"
        self.settings.write_text(
            f"""<ivysettings><settings defaultResolver="here"/><resolvers>
            <ibiblio name="here" m2compatible="true" usepoms="false" root="file://{self.root}/"/>
            </resolvers></ivysettings>"""
        )

    def publish(self, name: str, content: bytes) -> None:
        folder = self.root / "org" / "example" / name / "1.0"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}-1.0.jar").write_bytes(content)

    def pin(self, **contents: bytes) -> None:
        wanted = "".join(f'<dependency org="org.example" name="{name}" rev="1.0"/>' for name in contents)
        self.set.ivy.write_text(
            f"""<ivy-module version="2.0"><info organisation="headrace" module="set"/>
            <configurations><conf name="default" transitive="false"/></configurations>
            <dependencies defaultconf="default->master(*)">{wanted}</dependencies></ivy-module>"""
        )
        lines = (f"{hashlib.sha256(content).hexdigest()}  {name}-1.0.jar\n" for name, content in contents.items())
        self.set.lock.write_text("".join(lines))

    def left_over(self) -> list[str]:
        """What is beside the set in the jar folder, but for the cache and the lock."""
        return sorted(path.name for path in self.set.home.parent.iterdir() if path.name not in {".ivy", ".lock"})


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    made = Repository(tmp_path)
    monkeypatch.setenv("HEADRACE_IVY_SETTINGS", str(made.settings))
    for name in ("a", "b"):
        made.publish(name, name.encode())
    made.pin(a=b"a", b=b"b")
    return made


def fake_java(folder: Path, says: str) -> Path:
    """A JAVA_HOME whose java prints this."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{says}\nEND\n")
    program.chmod(0o755)
    return folder


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "21" 2023-09-19', 21),
        ('openjdk version "24-ea" 2025-03-18', 24),
        ('java version "1.8.0_392"', 8),
        ('Picked up JAVA_TOOL_OPTIONS: -Xmx1g\nopenjdk version "11.0.2" 2019-01-15', 11),
        ("No Java runtime present", None),
    ],
)
def test_java_version_is_parsed(text: str, version: int | None) -> None:
    assert jars.parse_java_version(text) == version


def test_java_of_java_home_goes_before_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path, 'openjdk version "23"')))
    assert jars.java_command() == str(tmp_path / "bin" / "java")
    assert jars.java_version() == 23


@pytest.mark.parametrize("variable", ["JAVA_HOME", "PATH"])
def test_missing_java(variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv(variable, str(tmp_path))
    with pytest.raises(ProjectError) as caught:
        jars.java_command()
    assert caught.value.code == "java-missing"
    assert "Java 17" in str(caught.value.hint)


@pytest.mark.parametrize(("says", "code"), [('java version "11.0.2"', "java-too-old"), ("no", "java-missing")])
def test_unfit_java(says: str, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path, says)))
    with pytest.raises(ProjectError) as caught:
        jars.require_java()
    assert caught.value.code == code


def test_jars_live_in_the_environment_unless_told_otherwise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADRACE_JARS", raising=False)
    assert jars.jar_dir() == Path(sys.prefix) / "share" / "headrace" / "jars"
    monkeypatch.setenv("HEADRACE_JARS", str(tmp_path))
    assert jars.jar_dir() == tmp_path


def test_engine_jars_that_were_not_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_JARS", str(tmp_path))
    with pytest.raises(ProjectError) as caught:
        jars.engine_jars()
    assert caught.value.code == "jars-missing"
    assert caught.value.hint == "run: headrace jars"


@pytest.mark.parametrize("name", ["engine", "broker", "search"])
def test_every_pinned_jar_has_a_hash(name: jars.SetName) -> None:
    pinned = JarSet.named(name)
    dependencies = ElementTree.parse(pinned.ivy).iter("dependency")  # noqa: S314 - a file of this package
    assert {f"{found.get('name')}-{found.get('rev')}.jar" for found in dependencies} == set(pinned.hashes())


def test_fetch_then_fetch_again_at_once(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    paths = fetch_set(repository.set, report=said.append)
    assert [path.read_bytes() for path in paths] == [b"a", b"b"]
    assert any("a-1.0.jar" in line for line in said)

    monkeypatch.setenv("JAVA_HOME", "/nowhere")  # the second time, not even Java is asked
    said.clear()
    assert fetch_set(repository.set, report=said.append) == paths
    assert said == []


def test_changed_pins_replace_the_whole_set(repository: Repository) -> None:
    fetch_set(repository.set, report=print)
    repository.pin(b=b"b")
    assert not repository.set.is_present()
    fetch_set(repository.set, report=print)
    assert [path.name for path in repository.set.home.glob("*.jar")] == ["b-1.0.jar"]


def test_a_lost_jar_is_fetched_again(repository: Repository) -> None:
    first, _ = fetch_set(repository.set, report=print)
    first.unlink()
    fetch_set(repository.set, report=print)
    assert first.read_bytes() == b"a"


def test_a_corrupted_jar_is_refused_and_not_kept(repository: Repository) -> None:
    repository.publish("b", b"something else")
    with pytest.raises(ProjectError) as caught:
        fetch_set(repository.set, report=print)
    assert caught.value.code == "jars-corrupt"
    assert "b-1.0.jar" in caught.value.message
    assert "a-1.0.jar" not in caught.value.message
    assert repository.left_over() == []

    repository.publish("b", b"b")
    assert len(fetch_set(repository.set, report=print)) == 2


def test_an_artefact_that_cannot_be_had_is_named(repository: Repository) -> None:
    repository.pin(a=b"a", gone=b"")
    with pytest.raises(ProjectError) as caught:
        fetch_set(repository.set, report=print)
    assert caught.value.code == "jars-unavailable"
    assert "org.example:gone:1.0" in caught.value.message
    assert "org.example:a" not in caught.value.message
    assert repository.left_over() == []


def test_what_a_killed_fetch_left_is_removed(repository: Repository) -> None:
    half = repository.set.home.parent / ".set-killed"
    half.mkdir(parents=True)
    (half / "a-1.0.jar").write_bytes(b"a")
    fetch_set(repository.set, report=print)
    assert repository.left_over() == ["set"]


def test_a_folder_that_cannot_be_written(repository: Repository) -> None:
    repository.set.home.parent.write_text("a file where the folder should be")
    with pytest.raises(ProjectError) as caught:
        fetch_set(repository.set, report=print)
    assert caught.value.code == "jars-unavailable"
    assert "HEADRACE_JARS" in str(caught.value.hint)


def test_two_at_the_same_time_fetch_once(repository: Repository) -> None:
    said: list[str] = []
    with ThreadPoolExecutor() as pool:
        results = list(pool.map(lambda _: fetch_set(repository.set, report=said.append), range(2)))
    assert results[0] == results[1] == repository.set.paths()
    assert sum(line.startswith("fetching") for line in said) == 1


def test_looking_at_jars_does_not_import_pyspark() -> None:
    code = (
        "import sys; from headrace.engine.spark import jars; jars.pyspark_home(); assert 'pyspark' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_command_prints_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_JARS", str(tmp_path))
    for made in ("build_archive", "compile_helpers"):
        monkeypatch.setattr(f"headrace.cli.environment.jars.{made}", lambda report: None)
    present = JarSet.named("engine")
    present.home.mkdir()
    for path in present.paths():
        path.touch()
    (present.home / ".stamp").write_text(present.stamp())
    app = typer.Typer()
    app.command()(jars_command)
    quiet = CliRunner().invoke(app, ["--quiet"])
    assert (quiet.exit_code, quiet.output) == (0, "")
    shown = CliRunner().invoke(app, ["--json"])
    assert shown.exit_code == 0
    assert f'"{present.paths()[0]}"' in shown.stdout
