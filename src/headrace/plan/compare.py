"""Whether a flow can resume from its checkpoint after a change: safe, needs a new generation, or refused.

Spark fails on some changes and silently misreads its state after others: columns of the same type in another order,
another function over the same column, inputs in another order. So any change not known to be safe needs a new
generation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from headrace.plan.settings import PARTITIONS

Kind = Literal["first", "safe", "new_generation", "refused"]
Shape = Mapping[str, Any]

_FROM_NOW_ON = "from now on"


@dataclass(frozen=True)
class ChangeVerdict:
    """The verdict on a change, with its reasons."""

    kind: Kind
    reasons: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        match self.kind:
            case "first":
                return "first start"
            case "safe":
                return "safe" if self.reasons else "unchanged"
            case "new_generation":
                return "needs a new generation"
            case "refused":
                return "refused"


def compare(old: Shape, new: Shape, old_pins: Mapping[str, str], new_pins: Mapping[str, str]) -> ChangeVerdict:
    """Whether `new` can resume from the checkpoint of `old`. `old` is {} if unknown."""
    drift = tuple(_drift(old_pins, new_pins))
    if drift:
        return ChangeVerdict("refused", drift)
    if old.get("version") != new["version"]:
        return ChangeVerdict("new_generation", ("the shape of the flow at its start was stored in an unknown format",))
    breaking = tuple(dict.fromkeys([*_breaking_changes(old, new), *_partitions(old_pins, new_pins)]))
    if breaking:
        return ChangeVerdict("new_generation", breaking)
    return ChangeVerdict("safe", tuple(dict.fromkeys(_safe_changes(old, new))))


def _drift(old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[str]:
    """Settings that Spark takes from the checkpoint whatever the project sets, at most with a warning in its log."""
    if not old or not new:
        return  # one of the two is stateless, so nothing is fixed
    for key in sorted({*old, *new} - {PARTITIONS}):
        before, now = old.get(key, "not set"), new.get(key, "not set")
        if before != now:
            yield f"{key} is fixed for the life of a generation: it was {before} at its start and is {now} now"


def _partitions(old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[str]:
    if PARTITIONS in old and PARTITIONS in new and old[PARTITIONS] != new[PARTITIONS]:
        yield f"partitions changed from {old[PARTITIONS]} to {new[PARTITIONS]}, and the state is partitioned by them"


def _breaking_changes(old: Shape, new: Shape) -> Iterator[str]:
    yield from _inputs(old["inputs"], new["inputs"])
    yield from _operators(old["operators"], new["operators"])
    for column, kind in new["types"].items():
        before = old["types"].get(column)
        if before is not None and before != kind:
            yield f"the type of {column} changed from {before} to {kind}"
    if old["operators"] and new["operators"]:
        yield from _event_times(old["inputs"], new["inputs"])
        if old["output"] != new["output"]:
            yield f"output changed from {old['output']} to {new['output']}"
        yield from _settings(old["settings"], new["settings"])
    yield from _layout_changes(old["sinks"], new["sinks"])
    if new.get("view"):
        old_ids = {sink["id"] for sink in old["sinks"]}
        new_sinks = (sink for sink in new["sinks"] if sink["id"] not in old_ids)
        yield from (f"{sink['label']} is new and must hold the whole view" for sink in new_sinks)


def _layout_changes(old: list[Shape], new: list[Shape]) -> Iterator[str]:
    """Sinks whose stored rows have another layout now."""
    before = {sink["id"]: sink["fills"] for sink in old if "fills" in sink}
    for sink in new:
        for part, now in sink.get("fills", {}).items():
            previous = before.get(sink["id"], {}).get(part, now)
            if previous != now:
                change = f"changed from {_parts(previous)} to {_parts(now)}"
                yield f"the {part} of {sink['label']} {change}: its rows must be written again"


def _parts(names: list[Any]) -> str:
    return ", ".join(name if isinstance(name, str) else f"({', '.join(name)})" for name in names) or "none"


def _inputs(old: list[Shape], new: list[Shape]) -> Iterator[str]:
    before, now = [_identity(input_) for input_ in old], [_identity(input_) for input_ in new]
    if before == now:
        return
    removed, added = Counter(before) - Counter(now), Counter(now) - Counter(before)
    if not removed and not added:
        names = [", ".join(input_["name"] for input_ in inputs) for inputs in (old, new)]
        yield f"the order of inputs changed ({names[0]}, now {names[1]}), and positions are stored in that order"
        return
    for input_ in old:
        if removed[_identity(input_)]:
            removed[_identity(input_)] -= 1
            replacement = next(
                (candidate for candidate in new if candidate["name"] == input_["name"] and added[_identity(candidate)]),
                None,
            )
            if replacement is None:
                yield f"input {input_['name']} ({_describe(input_)}) is no longer read"
            else:
                added[_identity(replacement)] -= 1
                yield f"input {input_['name']} changed from {_describe(input_)} to {_describe(replacement)}"
    for input_ in new:
        if added[_identity(input_)]:
            added[_identity(input_)] -= 1
            yield f"input {input_['name']} ({_describe(input_)}) is new"


def _identity(input_: Shape) -> tuple[str, str]:
    return input_["kind"], input_["reads"]


def _describe(input_: Shape) -> str:
    return f"{input_['kind']}: {input_['reads']}"


def _event_times(old: list[Shape], new: list[Shape]) -> Iterator[str]:
    for before, now in zip(old, new, strict=False):
        if _identity(before) == _identity(now) and before.get("event_time") != now.get("event_time"):
            times = [input_.get("event_time") or "none" for input_ in (before, now)]
            yield f"the event time of {now['name']} changed from {times[0]} to {times[1]}"


def _settings(old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[str]:
    for key in sorted({*old, *new}):
        if old.get(key) != new.get(key):
            values = [settings.get(key, "not set") for settings in (old, new)]
            yield f"{key} changed from {values[0]} to {values[1]}, which may change the meaning of the state"


_CLAUSES = {
    "keys": "GROUP BY",
    "aggregates": "the aggregates",
    "columns": "the columns of DISTINCT",
    "type": "the kind of JOIN",
    "on": "the condition of the JOIN",
    "left": "the stored columns of the left side of the JOIN",
    "right": "the stored columns of the right side of the JOIN",
    "options": "the options of a step",
}


def _operators(old: list[Shape], new: list[Shape]) -> Iterator[str]:
    kinds = [[operator["operator"] for operator in side if operator["operator"] != "conditions"] for side in (old, new)]
    if kinds[0] != kinds[1]:
        names = [", ".join(kind) or "nothing" for kind in kinds]
        yield f"the state of the flow changed from {names[0]} to {names[1]}"
        return
    for before, now in zip(old, new, strict=True):
        if before["operator"] == "query" and before != now:
            yield "the SQL changed, and its stateful part cannot be determined"
        elif before["operator"] == "conditions" and before != now:
            where = [" and ".join(operator["all"]) or "none" for operator in (before, now)]
            yield f"conditions changed from {where[0]} to {where[1]}, which changes the state of a JOIN"
        else:
            for key, clause in _CLAUSES.items():
                if before.get(key) != now.get(key):
                    yield f"{clause} changed from {_list(before[key])} to {_list(now[key])}"


def _list(value: Any) -> str:
    return value if isinstance(value, str) else ", ".join(value) or "none"


def _safe_changes(old: Shape, new: Shape) -> Iterator[str]:
    before, now = old["loose"], new["loose"]
    if before["conditions"] != now["conditions"]:
        conditions = [" and ".join(loose["conditions"]) or "all rows" for loose in (before, now)]
        yield f"conditions changed from {conditions[0]} to {conditions[1]}: {_FROM_NOW_ON}"
    yield from _columns(before["columns"], now["columns"])
    if before["parts"] != now["parts"]:
        changed = sorted(name for name in now["parts"] if now["parts"][name] != before["parts"].get(name))
        yield f"inlined flows changed ({', '.join(changed) or 'one was removed'}): {_FROM_NOW_ON}"
    if before.get("steps", []) != now["steps"]:
        yield f"processors changed: {_FROM_NOW_ON}"
    yield from _functions(before.get("functions", {}), now["functions"])
    for key in ("trigger", "max_records", "mode"):
        if before[key] != now[key]:
            # a real-time batch is recorded only at its end
            repeats = (
                ": rows since the last finished batch are repeated" if "realtime" in (before[key], now[key]) else ""
            )
            yield f"{key} changed from {before[key]} to {now[key]}{repeats}"
    for name, wait in now["watermarks"].items():
        if before["watermarks"].get(name, wait) != wait:
            yield f"the watermark of {name} changed from {before['watermarks'][name]} to {wait}: {_FROM_NOW_ON}"
    if old["output"] != new["output"]:
        yield f"output changed from {old['output']} to {new['output']}"
    yield from _sinks(old["sinks"], new["sinks"])
    if (
        before["sql"] != now["sql"]
        and before["conditions"] == now["conditions"]
        and before["columns"] == now["columns"]
    ):
        yield f"the SQL changed, but not its stateful part: {_FROM_NOW_ON}"


def _functions(old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[str]:
    changed = sorted(name for name in old.keys() & new.keys() if old[name] != new[name])
    if changed:
        yield f"the file of function {', '.join(changed)} changed: {_FROM_NOW_ON}"


def _columns(old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[str]:
    if old == new:
        return
    removed, added = sorted(old.keys() - new.keys()), sorted(new.keys() - old.keys())
    changed = sorted(name for name in old.keys() & new.keys() if old[name] != new[name])
    parts = [
        f"{', '.join(names)} {word}"
        for names, word in ((added, "new"), (removed, "removed"), (changed, "changed"))
        if names
    ]
    yield f"columns: {'; '.join(parts)}: {_FROM_NOW_ON}"


def _sinks(old: list[Shape], new: list[Shape]) -> Iterator[str]:
    before, now = ({id_["id"]: id_["label"] for id_ in sinks} for sinks in (old, new))
    for id_, label in now.items():
        if id_ not in before:
            yield f"sink {label} is new: it gets rows {_FROM_NOW_ON}"
    for id_, label in before.items():
        if id_ not in now:
            yield f"sink {label} was removed: its rows stay as they are"
    if before.keys() == now.keys() and list(before) != list(now):
        yield "the order of the sinks changed"
