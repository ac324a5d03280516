"""Java classes of a few lines each, compiled once by the compiler inside Spark.

`LocalFiles` writes local files without a process for each, `Classes` remembers which classes are not there, and
`JsonFields` reads fields of documents. Where they have not been compiled, Hadoop's, Java's and Python's own serve.
"""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from headrace.core.errors import ProjectError
from headrace.engine.spark.jars import Report, jar_dir, java_command, pyspark_home

CLASS_PATH = "spark.driver.extraClassPath"
_SOURCES = Path(__file__).parent / "java"
_FOLDER = "local"
_LOCAL_FILES = "headrace.LocalFiles"
_LONG_AGO = (1980, 1, 1, 0, 0, 0)


def own_jar() -> Path:
    """Where the compiled classes are kept, whether they are there or not: they fit their sources and one Hadoop."""
    (hadoop,) = (pyspark_home() / "jars").glob("hadoop-client-api-*.jar")
    made_of = b"".join(source.read_bytes() for source in _sources()) + hadoop.name.encode()
    return jar_dir() / _FOLDER / f"{hashlib.sha256(made_of).hexdigest()[:16]}.jar"


def own_settings(master: str) -> dict[str, str]:
    """What tells Spark to use them. Executors elsewhere do not have them, and then nobody writes files by them; but the
    class path stays the same, as the archive of classes is bound to it."""
    jar = own_jar()
    if not jar.is_file():
        return {}
    found = {CLASS_PATH: str(jar)}
    if master.startswith("local"):
        found["spark.hadoop.fs.file.impl"] = _LOCAL_FILES
        found["spark.hadoop.fs.AbstractFileSystem.file.impl"] = f"{_LOCAL_FILES}$Context"
    return found


def remember_missing_classes(jvm: Any) -> None:
    """Have Java remember which classes are not there. Called before it has started what is to know of it."""
    if own_jar().is_file():
        jvm.headrace.Classes.install()


def compile_own_classes(report: Report) -> None:
    """Compile them, unless that was done. A failure is told, and harms nobody."""
    jar = own_jar()
    if jar.is_file():
        return
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]

    try:
        jar.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=jar.parent) as scratch:
            made = Path(scratch) / jar.name
            _write(made, _compiled([source.read_text(encoding="utf-8") for source in _sources()]))
            for old in jar.parent.glob("*.jar"):
                old.unlink()
            made.rename(jar)
    except (OSError, Py4JError, ProjectError) as error:
        report(f"Hadoop's and Java's own classes serve, which takes longer: {str(error)[:300]}")


def _sources() -> list[Path]:
    return sorted(_SOURCES.glob("*.java"))


def _compiled(sources: list[str]) -> dict[str, bytes]:
    """Classes by name. The compiler is the one that Spark uses for its own code, so no JDK is needed."""
    from py4j.java_gateway import (  # type: ignore[import-untyped]
        GatewayParameters,
        JavaGateway,
        launch_gateway,
    )

    jars = pyspark_home() / "jars"
    port, secret = launch_gateway(
        jarpath=str(next(jars.glob("py4j-*.jar"))),
        classpath=str(jars / "*"),
        java_path=java_command(),
        die_on_exit=True,
        enable_auth=True,
    )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auth_token=secret, auto_convert=True))
    try:
        made: dict[str, bytes] = {}
        for source in sources:
            compiler = gateway.jvm.org.codehaus.janino.SimpleCompiler()
            compiler.cook(source)
            made |= {str(name): bytes(code) for name, code in dict(compiler.getBytecodes()).items()}
        return made
    finally:
        gateway.shutdown()


def _write(jar: Path, classes: dict[str, bytes]) -> None:
    with ZipFile(jar, "w") as archive:
        for name, code in sorted(classes.items()):
            archive.writestr(ZipInfo(f"{name.replace('.', '/')}.class", _LONG_AGO), code, ZIP_DEFLATED)
