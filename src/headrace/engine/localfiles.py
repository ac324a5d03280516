"""Local files for Spark without a process for each: a class of a few lines, compiled once by the compiler inside Spark.

Where it has not been compiled, Hadoop's own class serves as ever.
"""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from headrace.core.errors import ProjectError
from headrace.engine.jars import Report, jar_dir, java_command, pyspark_home

CLASS_PATH = "spark.driver.extraClassPath"
_SOURCE = Path(__file__).parent / "java" / "LocalFiles.java"
_FOLDER = "local"
_CLASS = "headrace.LocalFiles"
_LONG_AGO = (1980, 1, 1, 0, 0, 0)


def local_files_jar() -> Path:
    """Where the compiled class is kept, whether it is there or not: it fits one source and one Hadoop."""
    (hadoop,) = (pyspark_home() / "jars").glob("hadoop-client-api-*.jar")
    made_of = _SOURCE.read_bytes() + hadoop.name.encode()
    return jar_dir() / _FOLDER / f"{hashlib.sha256(made_of).hexdigest()[:16]}.jar"


def local_files_settings(master: str) -> dict[str, str]:
    """What tells Spark to use it. Executors elsewhere do not have it, and then nobody uses it; but the class path stays
    the same, as the archive of classes is bound to it."""
    jar = local_files_jar()
    if not jar.is_file():
        return {}
    found = {CLASS_PATH: str(jar)}
    if master.startswith("local"):
        found["spark.hadoop.fs.file.impl"] = _CLASS
        found["spark.hadoop.fs.AbstractFileSystem.file.impl"] = f"{_CLASS}$Context"
    return found


def compile_local_files(report: Report) -> None:
    """Compile the class, unless that was done. A failure is told, and harms nobody."""
    jar = local_files_jar()
    if jar.is_file():
        return
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]

    try:
        jar.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=jar.parent) as scratch:
            made = Path(scratch) / jar.name
            _write(made, _compiled(_SOURCE.read_text(encoding="utf-8")))
            for old in jar.parent.glob("*.jar"):
                old.unlink()
            made.rename(jar)
    except (OSError, Py4JError, ProjectError) as error:
        report(f"local files are written by Hadoop's own class, which takes longer: {str(error)[:300]}")


def _compiled(source: str) -> dict[str, bytes]:
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
        compiler = gateway.jvm.org.codehaus.janino.SimpleCompiler()
        compiler.cook(source)
        return {str(name): bytes(code) for name, code in dict(compiler.getBytecodes()).items()}
    finally:
        gateway.shutdown()


def _write(jar: Path, classes: dict[str, bytes]) -> None:
    with ZipFile(jar, "w") as archive:
        for name, code in sorted(classes.items()):
            archive.writestr(ZipInfo(f"{name.replace('.', '/')}.class", _LONG_AGO), code, ZIP_DEFLATED)
