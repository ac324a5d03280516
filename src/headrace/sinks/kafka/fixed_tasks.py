"""Which tasks of a micro-batch have the same rows whenever the batch runs, so that no shuffle has to see to it.

Two kinds do. A task over one partition of a Kafka topic reads the offsets that the checkpoint names. It is known by
that partition, since Spark numbers tasks in the order of a map, which is another one when a batch runs again. And a
task after a stateful operator has the keys of its part of the state, whose number of parts never changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def fixed_tasks(rows: DataFrame) -> list[int] | None:
    """A number for each task of a micro-batch, which it has again when the batch runs again; None if there is none."""
    plan: Any = rows._jdf.queryExecution().analyzed()
    if _kind(plan) != "LogicalRDD":
        return None
    names = _names(plan.rdd())
    if names is None or len(set(names)) < len(names):
        return None
    numbers = {name: number for number, name in enumerate(sorted(names))}
    return [numbers[name] for name in names]


def _names(rdd: Any) -> list[str] | None:
    """What the tasks are known by: followed back to where their rows come from, as long as each has one parent."""
    stateful = False
    while True:
        kind, parents = _kind(rdd), _items(rdd.dependencies())
        stateful = stateful or kind == "StateStoreRDD"
        if kind == "UnionRDD":
            branches = [_names(parent.rdd()) for parent in parents]
            return None if stateful or None in branches else [name for branch in branches for name in branch or ()]
        if kind == "DataSourceRDD":
            return None if stateful else _partitions(rdd)
        if kind == "ShuffledRowRDD":
            return [f"{number:06}" for number in range(rdd.getNumPartitions())] if stateful else None
        if len(parents) != 1 or _kind(parents[0]) != "OneToOneDependency":
            return None
        rdd = parents[0].rdd()


def _partitions(rdd: Any) -> list[str] | None:
    read = [partition.inputPartition() for partition in rdd.partitions()]
    if any(one.isEmpty() or _kind(one.get()) != "KafkaBatchInputPartition" for one in read):
        return None
    return [one.get().offsetRange().topicPartition().toString() for one in read]


def _kind(thing: Any) -> str:
    return str(thing.getClass().getSimpleName())


def _items(sequence: Any) -> list[Any]:
    return [sequence.apply(place) for place in range(sequence.size())]
