"""The jars that Spark needs in addition to PySpark's: pinned, fetched once with PySpark's Ivy, verified, in one folder.

This module does not import PySpark, so that commands that only check the jars are fast.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from headrace.core.errors import Exit, ProjectError

OLDEST_JAVA = 17
SetName = Literal["engine", "s3", "broker", "search"]
Report = Callable[[str], None]

_IVY = Path(__file__).parent / "ivy"
_STAMP = ".stamp"
_FETCH_COMMAND = {
    "engine": "headrace jars",
    "s3": "headrace jars --s3",
    "broker": "headrace services install kafka",
    "search": "headrace services install opensearch",
}
_SETTINGS_HINT = (
    "HEADRACE_JARS names another folder for the jars, HEADRACE_IVY_SETTINGS an ivysettings.xml for a mirror"
)


@dataclass(frozen=True)
class JarSet:
    """A pinned list of jars with their hashes, and the folder for them."""

    ivy: Path
    lock: Path
    home: Path

    @classmethod
    def named(cls, name: SetName) -> JarSet:
        return cls(_IVY / f"{name}.xml", _IVY / f"{name}.sha256", jar_dir() / name)

    def stamp(self) -> str:
        """A digest of all pins and hashes."""
        return hashlib.sha256(self.ivy.read_bytes() + self.lock.read_bytes()).hexdigest()

    def hashes(self) -> dict[str, str]:
        """SHA-256 by file name, from the format of `sha256sum`."""
        lines = self.lock.read_text().splitlines()
        return {name: digest for digest, name in (line.split() for line in lines)}

    def paths(self) -> list[Path]:
        """Every jar of the set, fetched or not."""
        return [self.home / name for name in sorted(self.hashes())]

    def is_present(self) -> bool:
        """Whether the folder has the jars that are pinned now. Their hashes were verified when they were fetched."""
        stamp = self.home / _STAMP
        if not stamp.is_file() or stamp.read_text() != self.stamp():
            return False
        return all(path.is_file() for path in self.paths())

    def verify(self, folder: Path) -> None:
        """Refuse a folder whose jars differ from those of the lock file."""
        expected = self.hashes()
        actual = {path.name: _sha256(path) for path in folder.glob("*.jar")}
        wrong = sorted(name for name in expected.keys() | actual.keys() if expected.get(name) != actual.get(name))
        if wrong:
            raise ProjectError(
                "jars-corrupt",
                f"{len(wrong)} of {len(expected)} jars differ from {self.lock.name}: {', '.join(wrong)}",
                hint="fetch again; if the error persists, the server or a proxy returns other files than those pinned",
            )


def jar_dir() -> Path:
    """The folder of all jar sets: $HEADRACE_JARS, or one inside the Python environment."""
    chosen = os.environ.get("HEADRACE_JARS")
    return Path(chosen).absolute() if chosen else Path(sys.prefix) / "share" / "headrace" / "jars"


def fetch(set_name: SetName, *, report: Report) -> list[Path]:
    """The jars of a set, fetched if they are not present."""
    return fetch_set(JarSet.named(set_name), report=report)


def fetch_set(jars: JarSet, *, report: Report) -> list[Path]:
    """Like `fetch`, for any set. The folder is created atomically."""
    if jars.is_present():
        return jars.paths()
    java = require_java()
    try:
        with _one_at_a_time(jars.home.parent):
            if not jars.is_present():  # another process may have fetched them in the meantime
                _retrieve(jars, java, report)
    except OSError as error:
        raise ProjectError(
            "jars-unavailable", f"cannot write jars to {jars.home.parent}: {error}", hint=_SETTINGS_HINT
        ) from error
    return jars.paths()


def engine_jars() -> list[Path]:
    """The jars that a Spark session loads. Never fetches."""
    return require_jars("engine")


def require_jars(set_name: SetName) -> list[Path]:
    """The jars of a set, which must have been fetched before."""
    jars = JarSet.named(set_name)
    if not jars.is_present():
        state = "do not match this version" if jars.home.exists() else "have not been fetched"
        raise ProjectError(
            "jars-missing",
            f"the {set_name} jars {state} (looked in {jars.home})",
            hint=f"run: {_FETCH_COMMAND[set_name]}",
            exit_code=Exit.CONFLICT,
        )
    return jars.paths()


def java_command() -> str:
    """The java of JAVA_HOME if it is set, as Spark does, else that on the PATH."""
    home = os.environ.get("JAVA_HOME")
    command = shutil.which("java", path=os.path.join(home, "bin")) if home else shutil.which("java")
    if command is None:
        searched = f"{home}/bin (JAVA_HOME)" if home else "the PATH"
        raise ProjectError("java-missing", f"no java in {searched}", hint=_install_java())
    return command


def java_version(java: str | None = None) -> int:
    """The major version of a java command."""
    command = java or java_command()
    result = subprocess.run([command, "-version"], capture_output=True, text=True, check=False)
    version = parse_java_version(result.stderr + result.stdout)
    if version is None:
        raise ProjectError("java-missing", f"'{command} -version' prints no version", hint=_install_java())
    return version


def parse_java_version(text: str) -> int | None:
    """The major version in the output of `java -version`; up to Java 8 it is the second number."""
    version = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(version.group(1)) if version else None


def require_java() -> str:
    """The java command, if its version is supported."""
    java = java_command()
    version = java_version(java)
    if version < OLDEST_JAVA:
        raise ProjectError("java-too-old", f"{java} is Java {version}", hint=_install_java())
    return java


def pyspark_home() -> Path:
    """The folder of PySpark, found without importing it."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or not spec.submodule_search_locations:
        raise ProjectError("pyspark-missing", f"no pyspark in {sys.prefix}", hint="reinstall headrace")
    return Path(spec.submodule_search_locations[0])


def _install_java() -> str:
    return f"install Java {OLDEST_JAVA} or newer (Debian: apt-get install openjdk-17-jre-headless) or set JAVA_HOME"


@contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _retrieve(jars: JarSet, java: str, report: Report) -> None:
    parent, cache = jars.home.parent, jars.home.parent / ".ivy"
    for left_over in parent.glob(f".{jars.home.name}-*"):  # from a fetch that was killed
        shutil.rmtree(left_over)
    staging = Path(tempfile.mkdtemp(prefix=f".{jars.home.name}-", dir=parent))
    try:
        report(f"fetching {len(jars.hashes())} jars into {jars.home}")
        _run_ivy(java, jars.ivy, cache, staging, report)
        try:
            jars.verify(staging)
        except ProjectError:
            shutil.rmtree(cache, ignore_errors=True)  # otherwise the next fetch would reuse the bad jar
            raise
        (staging / _STAMP).write_text(jars.stamp())
        staging.chmod(0o755)
        shutil.rmtree(jars.home, ignore_errors=True)
        staging.rename(jars.home)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _run_ivy(java: str, ivy_file: Path, cache: Path, target: Path, report: Report) -> None:
    settings = os.environ.get("HEADRACE_IVY_SETTINGS") or str(_IVY / "ivysettings.xml")
    (program,) = (pyspark_home() / "jars").glob("ivy-*.jar")
    # Both directories are set so that Ivy does not use the home directory.
    command = [java, f"-Dheadrace.ivy.cache={cache}", f"-Divy.default.ivy.user.dir={cache}", "-jar", str(program)]
    command += ["-settings", settings, "-cache", str(cache), "-ivy", str(ivy_file)]
    command += ["-retrieve", f"{target}/[artifact]-[revision].[ext]"]
    output = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        for line in process.stdout or ():
            output.append(line)
            if line.startswith("downloading "):
                report(f"  {line.split()[1].rsplit('/', 1)[-1]}")
    if process.returncode != 0:
        raise _unavailable("".join(output))


def _unavailable(output: str) -> ProjectError:
    missing = re.findall(r"^\s+:: ([^\s#]+)#([^\s;]+);([^\s:!]+)", output, re.MULTILINE)
    cause = re.search(r"\(([\w.$]+(?:Exception|Error): [^\n]*)\)", output)
    lines = output.strip().splitlines() or ["no output"]
    named = ", ".join(dict.fromkeys(":".join(artefact) for artefact in missing)) or lines[-1]
    because = f" ({cause.group(1)})" if cause else ""
    return ProjectError(
        "jars-unavailable",
        f"Ivy could not fetch: {named}{because}",
        hint=f"check the network (and JAVA_TOOL_OPTIONS for a proxy), then try again; {_SETTINGS_HINT}",
        exit_code=Exit.TRANSIENT,
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
