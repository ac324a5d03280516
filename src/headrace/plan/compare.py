"""Whether a flow can go on from its checkpoint after a change: safe, needs a new generation, or refused.

Spark fails on some changes and takes others without a word, mixing up what it kept: columns of the same type in another
order, another function over the same column, inputs in another order. So whatever is not known to be harmless needs a
new generation.
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
    """What a change means, with the reasons in words."""

    kind: Kind
    reasons: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """The verdict for people."""
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
    """What it means to go on with `new` from the checkpoint of `old`. `old` is {} when it is not known."""
    drift = tuple(_drift(old_pins, new_pins))
    if drift:
        return ChangeVerdict("refused", drift)
    if old.get("version") != new["version"]:
        return ChangeVerdict(
            "new_generation", ("what the flow was when it began was not written down in a way known here",)
        )
    broken = tuple(dict.fromkeys([*_breaking_changes(old, new), *_partitions(old_pins, new_pins)]))
    if broken:
        return ChangeVerdict("new_generation", broken)
    return ChangeVerdict("safe", tuple(dict.fromkeys(_safe_changes(old, new))))


def _drift(old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[str]:
    """Settings that Spark takes from the checkpoint, whatever the project says: with a warning in its log at most."""
    if not old or not new:
        return  # one of the two keeps nothing, so there is nothing to be fixed
    for key in sorted({*old, *new} - {PARTITIONS}):
        before, now = old.get(key, "not set"), new.get(key, "not set")
        if before != now:
            yield f"{key} is fixed for the life of a generation: it was {before} at its beginning, and is {now} now"


def _partitions(old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[str]:
    if PARTITIONS in old and PARTITIONS in new and old[PARTITIONS] != new[PARTITIONS]:
        yield f"partitions changed from {old[PARTITIONS]} to {new[PARTITIONS]}, and what is kept is divided by them"


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
        known = {one["id"] for one in old["sinks"]}
        yield from (f"{one['label']} is new, and holds all of a view" for one in new["sinks"] if one["id"] not in known)


def _layout_changes(old: list[Shape], new: list[Shape]) -> Iterator[str]:
    """Sinks that hold rows in a layout which is another now."""
    before = {one["id"]: one["fills"] for one in old if "fills" in one}
    for one in new:
        for part, now in one.get("fills", {}).items():
            then = before.get(one["id"], {}).get(part, now)
            if then != now:
                change = f"changed from {_parts(then)} to {_parts(now)}"
                yield f"the {part} of {one['label']} {change}: its rows have to come again"


def _parts(names: list[Any]) -> str:
    return ", ".join(one if isinstance(one, str) else f"({', '.join(one)})" for one in names) or "none"


def _inputs(old: list[Shape], new: list[Shape]) -> Iterator[str]:
    before, now = [_identity(one) for one in old], [_identity(one) for one in new]
    if before == now:
        return
    gone, added = Counter(before) - Counter(now), Counter(now) - Counter(before)
    if not gone and not added:
        names = [", ".join(one["name"] for one in inputs) for inputs in (old, new)]
        yield f"the inputs are named in another order ({names[0]}, now {names[1]}), and their positions are kept by it"
        return
    for one in old:
        if gone[_identity(one)]:
            gone[_identity(one)] -= 1
            same = next((other for other in new if other["name"] == one["name"] and added[_identity(other)]), None)
            if same is None:
                yield f"input {one['name']} ({_describe(one)}) is not read any more"
            else:
                added[_identity(same)] -= 1
                yield f"input {one['name']} read {_describe(one)}, and reads {_describe(same)} now"
    for one in new:
        if added[_identity(one)]:
            added[_identity(one)] -= 1
            yield f"input {one['name']} ({_describe(one)}) is new"


def _identity(one: Shape) -> tuple[str, str]:
    return one["kind"], one["reads"]


def _describe(one: Shape) -> str:
    return f"{one['kind']}: {one['reads']}"


def _event_times(old: list[Shape], new: list[Shape]) -> Iterator[str]:
    for before, now in zip(old, new, strict=False):
        if _identity(before) == _identity(now) and before.get("event_time") != now.get("event_time"):
            times = [one.get("event_time") or "none" for one in (before, now)]
            yield f"the event time of {now['name']} changed from {times[0]} to {times[1]}"


def _settings(old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[str]:
    for key in sorted({*old, *new}):
        if old.get(key) != new.get(key):
            values = [settings.get(key, "not set") for settings in (old, new)]
            yield f"{key} changed from {values[0]} to {values[1]}, which may change the meaning of what is kept"


_CLAUSES = {
    "keys": "GROUP BY",
    "aggregates": "the aggregates",
    "columns": "the columns of DISTINCT",
    "type": "the kind of JOIN",
    "on": "the condition of the JOIN",
    "left": "the columns kept for the left side of the JOIN",
    "right": "the columns kept for the right side of the JOIN",
    "options": "what a step was told",
}


def _operators(old: list[Shape], new: list[Shape]) -> Iterator[str]:
    kinds = [[one["operator"] for one in side if one["operator"] != "conditions"] for side in (old, new)]
    if kinds[0] != kinds[1]:
        words = [", ".join(kind) or "nothing" for kind in kinds]
        yield f"the flow kept {words[0]}, and keeps {words[1]} now"
        return
    for before, now in zip(old, new, strict=True):
        if before["operator"] == "query" and before != now:
            yield "the SQL changed, and what it keeps cannot be told from the rest of it"
        elif before["operator"] == "conditions" and before != now:
            where = [" and ".join(one["all"]) or "none" for one in (before, now)]
            yield f"conditions changed from {where[0]} to {where[1]}, which changes what a JOIN keeps"
        else:
            for key, clause in _CLAUSES.items():
                if before.get(key) != now.get(key):
                    yield f"{clause} changed from {_list(before[key])} to {_list(now[key])}"


def _list(value: Any) -> str:
    return value if isinstance(value, str) else ", ".join(value) or "none"


def _safe_changes(old: Shape, new: Shape) -> Iterator[str]:
    before, now = old["loose"], new["loose"]
    if before["conditions"] != now["conditions"]:
        texts = [" and ".join(loose["conditions"]) or "all rows" for loose in (before, now)]
        yield f"conditions changed from {texts[0]} to {texts[1]}: {_FROM_NOW_ON}"
    yield from _columns(before["columns"], now["columns"])
    if before["parts"] != now["parts"]:
        changed = sorted(name for name in now["parts"] if now["parts"][name] != before["parts"].get(name))
        yield f"flows that are part of it changed ({', '.join(changed) or 'one is gone'}): {_FROM_NOW_ON}"
    if before.get("steps", []) != now["steps"]:
        yield f"processors changed: {_FROM_NOW_ON}"
    yield from _functions(before.get("functions", {}), now["functions"])
    for key in ("trigger", "max_records", "mode"):
        if before[key] != now[key]:
            # a real-time batch is written down only when it ends
            again = ": rows since its last finished batch come again" if "realtime" in (before[key], now[key]) else ""
            yield f"{key} changed from {before[key]} to {now[key]}{again}"
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
        yield f"the SQL changed in a way that nothing kept depends on: {_FROM_NOW_ON}"


def _functions(old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[str]:
    changed = sorted(name for name in old.keys() & new.keys() if old[name] != new[name])
    if changed:
        yield f"the file of function {', '.join(changed)} changed: {_FROM_NOW_ON}"


def _columns(old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[str]:
    if old == new:
        return
    gone, added = sorted(old.keys() - new.keys()), sorted(new.keys() - old.keys())
    changed = sorted(name for name in old.keys() & new.keys() if old[name] != new[name])
    parts = [
        f"{', '.join(names)} {word}" for names, word in ((added, "new"), (gone, "gone"), (changed, "changed")) if names
    ]
    yield f"columns: {'; '.join(parts)}: {_FROM_NOW_ON}"


def _sinks(old: list[Shape], new: list[Shape]) -> Iterator[str]:
    before, now = ({one["id"]: one["label"] for one in sinks} for sinks in (old, new))
    for one, label in now.items():
        if one not in before:
            yield f"sink {label} is new: it gets the rows that come {_FROM_NOW_ON}"
    for one, label in before.items():
        if one not in now:
            yield f"sink {label} is gone: what it holds stays as it is"
    if before.keys() == now.keys() and list(before) != list(now):
        yield "the sinks are in another order"
