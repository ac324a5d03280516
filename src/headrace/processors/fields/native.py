"""Fields of JSON objects, read by Java where rows are there anyway.

The class is one of those that `headrace jars` compiles. Where it is not, or not on all executors, Python reads them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from headrace.processors._steps.json_text import Path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def native_reader(spark: SparkSession, paths: Sequence[Path]) -> str | None:
    """The name of a SQL function that gives the fields of a document, as bytes, in the order of their paths."""
    from py4j.java_gateway import JavaClass  # type: ignore[import-untyped]
    from pyspark.sql.types import ArrayType, BinaryType

    jvm: Any = spark.sparkContext._jvm
    made = jvm.headrace.JsonFields
    if not isinstance(made, JavaClass) or not str(spark.sparkContext.master).startswith("local"):
        return None
    name = f"headrace_fields_{hashlib.sha256(repr(paths).encode()).hexdigest()[:16]}"
    texts = jvm.org.apache.spark.sql.types.DataType.fromJson(ArrayType(BinaryType()).json())
    spark._jsparkSession.udf().register(name, made([list(path) for path in paths]), texts)
    return name
