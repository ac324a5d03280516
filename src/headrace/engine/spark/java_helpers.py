"""The Java helpers: small classes that `headrace jars` compiles with the compiler inside Spark.

`LocalFiles` writes local files without starting a process for each, `MissingClassCache` caches which classes are
missing, and `JsonFields` reads fields of documents. Without them Hadoop, Java and Python do the same work more slowly.
"""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from headrace.core.errors import ProjectError
from headrace.engine.spark.jars import Report, jar_dir, java_command, pyspark_home

_SOURCES = Path(__file__).parent / "java"
_FOLDER = "local"
# a constant, so that the same sources give the same jar
_FILE_TIME = (1980, 1, 1, 0, 0, 0)


def helpers_jar() -> Path:
    """The path of the compiled classes for these sources and this Hadoop; the file may not exist."""
    (hadoop,) = (pyspark_home() / "jars").glob("hadoop-client-api-*.jar")
    inputs = b"".join(source.read_bytes() for source in _sources()) + hadoop.name.encode()
    return jar_dir() / _FOLDER / f"{hashlib.sha256(inputs).hexdigest()[:16]}.jar"


def cache_missing_classes(jvm: Any) -> None:
    """Must run before the JVM starts threads that load classes: threads inherit their class loader."""
    jvm.headrace.MissingClassCache.install()


def compile_helpers(report: Report) -> None:
    """Compile the classes unless they exist. A failure is only reported: Spark runs without the helpers."""
    jar = helpers_jar()
    if jar.is_file():
        return
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]

    try:
        jar.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=jar.parent) as scratch:
            staged = Path(scratch) / jar.name
            write_jar(staged, compile_classes([source.read_text(encoding="utf-8") for source in _sources()]))
            for old in jar.parent.glob("*.jar"):
                old.unlink()
            staged.rename(jar)
    except (OSError, Py4JError, ProjectError) as error:
        report(f"the Java helpers could not be compiled, so Spark runs more slowly: {str(error)[:300]}")


def _sources() -> list[Path]:
    return sorted(_SOURCES.glob("*.java"))


def compile_classes(sources: list[str]) -> dict[str, bytes]:
    """Bytecode by class name. The compiler is the one that Spark uses for generated code, so no JDK is needed."""
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
        classes: dict[str, bytes] = {}
        for source in sources:
            compiler = gateway.jvm.org.codehaus.janino.SimpleCompiler()
            compiler.cook(source)
            classes |= {str(name): bytes(code) for name, code in dict(compiler.getBytecodes()).items()}
        return classes
    finally:
        gateway.shutdown()


def write_jar(jar: Path, classes: dict[str, bytes]) -> None:
    with ZipFile(jar, "w") as archive:
        for name, code in sorted(classes.items()):
            archive.writestr(ZipInfo(f"{name.replace('.', '/')}.class", _FILE_TIME), code, ZIP_DEFLATED)
