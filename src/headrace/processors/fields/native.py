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
    from pyspark.sql.types import ArrayType, BinaryType

    # set by the engine where the class is on the class path of all tasks
    if spark.conf.get("spark.headrace.fieldsReader", None) is None:
        return None
    jvm: Any = spark.sparkContext._jvm
    fields_class = jvm.headrace.JsonFields
    name = f"headrace_fields_{hashlib.sha256(repr(paths).encode()).hexdigest()[:16]}"
    texts = jvm.org.apache.spark.sql.types.DataType.fromJson(ArrayType(BinaryType()).json())
    spark._jsparkSession.udf().register(name, fields_class([list(path) for path in paths]), texts)
    return name
