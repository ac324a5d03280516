"""Spark settings of a flow: which are fixed at its first batch, which may change what is kept, which are refused."""

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
"""What Spark writes into the checkpoint with the first batch and takes from there ever after."""

_INDIFFERENT = (_STREAMING, "spark.sql.ui.", "spark.sql.execution.arrow.", "spark.sql.adaptive.", PARTITIONS)
"""Settings of SQL that say how, not what."""

_REFUSED: Mapping[str, tuple[str, str]] = {
    f"{_STREAMING}offsetLog.formatVersion": ("1", "a flow could not be started again after a crash in a batch"),
    f"{_STREAMING}queryEvolution.enableSourceEvolution": (
        "false",
        "a flow could not be started again after a crash in a batch",
    ),
    f"{_STREAMING}stateStore.stateSchemaCheck": ("true", "a changed flow would mix up what it kept, without a word"),
    f"{_STREAMING}checkpoint.verifyMetadataExists.enabled": (
        "true",
        "a checkpoint that lost its identity would be taken for a new one, and rows would be written twice",
    ),
    "spark.sql.adaptive.enabled": ("false", "a batch that runs again must have the same partitions"),
    "spark.databricks.delta.v2.enableMode": ("NONE", "Delta's second reader repeats and swaps values after a restart"),
}


def pins(settings: Mapping[str, str]) -> dict[str, str]:
    """Those of a flow's settings that Spark fixes with its first batch, if the flow keeps something."""
    return {key: value for key, value in sorted(settings.items()) if key in _PINNED or key == PARTITIONS}


def semantic_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """Those that may change what an expression gives, such as the time zone."""
    return {
        key: value
        for key, value in sorted(settings.items())
        if key.startswith("spark.sql.") and key not in _PINNED and not key.startswith(_INDIFFERENT)
    }


def refused_settings(settings: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Settings that would break what is promised: the setting, the only value it may have, and why."""
    for key, (only, reason) in _REFUSED.items():
        if settings.get(key, only).lower() != only.lower():
            yield key, only, reason
