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
    from pyspark.sql.types import ArrayType, BinaryType

    # set by the engine where the class is on the class path of all tasks
    if spark.conf.get("spark.headrace.fieldsReader", None) is None:
        return None
    jvm: Any = spark.sparkContext._jvm
    made = jvm.headrace.JsonFields
    name = f"headrace_fields_{hashlib.sha256(repr(paths).encode()).hexdigest()[:16]}"
    texts = jvm.org.apache.spark.sql.types.DataType.fromJson(ArrayType(BinaryType()).json())
    spark._jsparkSession.udf().register(name, made([list(path) for path in paths]), texts)
    return name
