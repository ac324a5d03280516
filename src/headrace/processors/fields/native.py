"""Reads fields of JSON objects in the JVM.

`headrace jars` compiles the class. If it is not available on all executors, Python reads the fields.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from headrace.processors._steps.json_text import Path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def native_reader(spark: SparkSession, paths: Sequence[Path]) -> str | None:
    """The name of a SQL function that returns the fields of a document, as bytes, in the order of their paths."""
    from py4j.java_gateway import JavaClass  # type: ignore[import-untyped]
    from pyspark.sql.types import ArrayType, BinaryType

    jvm: Any = spark.sparkContext._jvm
    fields_class = jvm.headrace.JsonFields
    if not isinstance(fields_class, JavaClass) or not str(spark.sparkContext.master).startswith("local"):
        return None
    name = f"headrace_fields_{hashlib.sha256(repr(paths).encode()).hexdigest()[:16]}"
    texts = jvm.org.apache.spark.sql.types.DataType.fromJson(ArrayType(BinaryType()).json())
    spark._jsparkSession.udf().register(name, fields_class([list(path) for path in paths]), texts)
    return name
