"""Spark settings of a flow: fixed at its first batch, able to change the meaning of its state, or refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

PARTITIONS = "spark.sql.shuffle.partitions"

_STREAMING = "spark.sql.streaming."
_PINNED = frozenset(
    {
        f"{_STREAMING}stateStore.providerClass",
        f"{_STREAMING}stateStore.encodingFormat",
        f"{_STREAMING}stateStore.checkpointFormatVersion",
        f"{_STREAMING}stateStore.compression.codec",
        f"{_STREAMING}stateStore.rowChecksum.enabled",
        f"{_STREAMING}stateStore.rocksdb.formatVersion",
        f"{_STREAMING}stateStore.rocksdb.mergeOperatorVersion",
        f"{_STREAMING}stateStore.rocksdb.changelogCheckpointing.enabled",
        f"{_STREAMING}statefulOperator.useStrictDistribution",
        f"{_STREAMING}flatMapGroupsWithState.stateFormatVersion",
        f"{_STREAMING}aggregation.stateFormatVersion",
        f"{_STREAMING}join.stateFormatVersion",
        f"{_STREAMING}multipleWatermarkPolicy",
        "spark.sql.optimizer.pruneFiltersCanPruneStreamingSubplan",
        "spark.sql.function.protobufExtensions.enabled",
    }
)
"""Settings that Spark writes to the checkpoint with the first batch and reads from there ever after."""

_EXECUTION_ONLY = (_STREAMING, "spark.sql.ui.", "spark.sql.execution.arrow.", "spark.sql.adaptive.", PARTITIONS)
"""SQL settings that change the execution, not the result."""

_REFUSED: Mapping[str, tuple[str, str]] = {
    f"{_STREAMING}offsetLog.formatVersion": ("1", "a flow could not be started again after a crash in a batch"),
    f"{_STREAMING}queryEvolution.enableSourceEvolution": (
        "false",
        "a flow could not be started again after a crash in a batch",
    ),
    f"{_STREAMING}stateStore.stateSchemaCheck": ("true", "a changed flow would silently misread its state"),
    f"{_STREAMING}checkpoint.verifyMetadataExists.enabled": (
        "true",
        "a checkpoint without its identity would count as new, and rows would be written twice",
    ),
    "spark.sql.adaptive.enabled": ("false", "a repeated batch must have the same partitions"),
    "spark.databricks.delta.v2.enableMode": ("NONE", "Delta's second reader repeats and swaps values after a restart"),
}


def pins(settings: Mapping[str, str]) -> dict[str, str]:
    """The settings that Spark fixes with the first batch of a stateful flow."""
    return {key: value for key, value in sorted(settings.items()) if key in _PINNED or key == PARTITIONS}


def semantic_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """The settings that may change the result of an expression, such as the time zone."""
    return {
        key: value
        for key, value in sorted(settings.items())
        if key.startswith("spark.sql.") and key not in _PINNED and not key.startswith(_EXECUTION_ONLY)
    }


def refused_settings(settings: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Settings that would break a guarantee: the setting, its only allowed value, and the reason."""
    for key, (required, reason) in _REFUSED.items():
        if settings.get(key, required).lower() != required.lower():
            yield key, required, reason
