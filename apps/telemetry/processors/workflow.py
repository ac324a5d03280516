"""Workflow summaries: the use of an app, from the events of one key in the order of their times.

The events between a START and its END are a workflow. Workflows are nested (app > session > player), so the open ones
are a tree. An event counts for the innermost workflow and all around it. When a workflow ends, its facts are emitted as
JSON, from which summary.py builds an event. The processor `sessions` passes the events and calls `finish` after a time
without events. Every event counts: invalid parts of it are ignored.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

import msgspec

INTERACTIONS = {
    "touch", "drag", "drop", "pinch", "zoom", "shake", "rotate", "speak", "listen", "write", "draw", "start", "end",
    "choose", "activate", "scroll", "click", "edit", "submit", "search", "dnd", "added", "removed", "selected",
}  # fmt: skip


_DEEPEST = 100
"""The maximum depth of workflows; a START below it counts as an ordinary event."""
_LATEST = 253_402_300_799_999
_LEVELS = 32
"""The maximum depth of lists and objects that are copied into a summary."""
_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])


def seconds(milliseconds: int) -> float:
    """Convert to seconds with two digits, halves up, as upstream rounds every duration."""
    return (milliseconds + 5) // 10 / 100


def _part(event: Any, name: str) -> dict[str, Any]:
    part = event.get(name)
    return part if isinstance(part, dict) else {}


def _read(text: str) -> dict[str, Any]:
    """Parse a document, without members that have a number out of range or too many levels."""
    members: dict[str, Any] = {}
    try:
        whole = msgspec.json.decode(text)
        return whole if isinstance(whole, dict) else members
    except (msgspec.DecodeError, RecursionError):
        with suppress(msgspec.DecodeError, RecursionError):
            for name, member in _MEMBERS.decode(text).items():
                with suppress(msgspec.DecodeError, RecursionError):
                    members[name] = msgspec.json.decode(member)
    return members


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return msgspec.json.encode(value).decode() if _is_flat(value) else ""


def _is_flat(value: Any, levels: int = _LEVELS) -> bool:
    """Return whether a value is not nested too deeply."""
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels > 0 and all(_is_flat(child, levels - 1) for child in inside)


@dataclass(frozen=True)
class Event:
    """The relevant parts of an event."""

    eid: str
    ets: int
    type: str | None
    mode: str
    whole: dict[str, Any]

    @staticmethod
    def of(text: str, ets: int) -> Event:
        """Parse an event; `ets` is its time in milliseconds."""
        whole = _read(text)
        edata = _part(whole, "edata")
        kind, mode = edata.get("type"), edata.get("mode")
        return Event(
            _text(whole.get("eid") or ""),
            ets,
            None if kind is None else _text(kind).lower(),
            "" if mode is None else _text(mode),
            whole,
        )

    @cached_property
    def is_interaction(self) -> bool:
        """Whether it is an interaction of a user."""
        return self.eid == "INTERACT" and self.type in INTERACTIONS

    @cached_property
    def edata(self) -> dict[str, Any]:
        """The event data."""
        return _part(self.whole, "edata")

    @cached_property
    def synced(self) -> int:
        """When it reached the pipeline, in milliseconds."""
        text, number = self.whole.get("@timestamp"), self.whole.get("syncts")
        if isinstance(text, str):
            with suppress(ValueError):
                at = datetime.fromisoformat(text)
                return round((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000)
        return int(number) if isinstance(number, int | float) and 0 < number <= _LATEST else self.ets


@dataclass
class SummaryFacts:
    """The facts of a summary, and whether they were emitted."""

    facts: dict[str, Any]
    emitted: bool = False


@dataclass(eq=False)
class Node:
    """A workflow that has started."""

    about: dict[str, Any]
    """The user, device, app and so on, from its first event."""
    type: str
    mode: str
    start: int
    prev: int
    """The time of its last event."""
    end: int = 0
    spent: float = 0.0
    interactions: int = 0
    synced: int = 0
    events: dict[str, int] = field(default_factory=dict)
    visits: list[list[Any]] = field(default_factory=list)
    """Of pages: id, type, env, milliseconds."""
    on_page: bool = False
    """Whether the last visit continues."""
    items: list[dict[str, Any]] = field(default_factory=list)
    closed: bool = False
    parent: Node | None = None
    children: list[Node] = field(default_factory=list)
    made: list[SummaryFacts] = field(default_factory=list)
    """Its summary and those of the workflows inside it."""

    @staticmethod
    def of(event: Event, *, app: bool = False) -> Node:
        """Create a workflow that starts with an event; with `app`, a workflow for the whole use of the app."""
        node = Node(_about(event.whole), event.type or "app", event.mode, event.ets, event.ets)
        if app:
            node.type, node.mode = "app", ""
        node.synced = event.synced
        node.events = {event.eid: 1}
        node.interactions = int(event.is_interaction)
        return node

    def is_of(self, event: Event) -> bool:
        """Return whether an event has the type and mode of this workflow."""
        return self.type == event.type and self.mode == event.mode

    def is_like(self, other: Node) -> bool:
        """Return whether upstream treats them as the same workflow."""
        return (self.type, self.mode.lower(), self.start) == (other.type, other.mode.lower(), other.start)

    def line(self) -> Iterator[Node]:
        """Yield the workflow and those around it, innermost first."""
        node: Node | None = self
        while node is not None:
            yield node
            node = node.parent

    @property
    def top(self) -> Node:
        """The outermost workflow around it."""
        return list(self.line())[-1]

    def reset(self) -> None:
        """Reset the counters, and keep the position in the tree."""
        self.start = self.end = self.interactions = 0
        self.spent = 0.0
        self.events, self.visits, self.items, self.made = {}, [], [], []
        self.on_page = self.closed = False

    def reset_all(self) -> None:
        """Reset the workflow and all workflows inside it."""
        for child in self.children:
            child.reset_all()
        self.reset()


def _about(event: dict[str, Any]) -> dict[str, Any]:
    context, actor = _part(event, "context"), _part(event, "actor")
    pdata = _part(context, "pdata")
    facts = {
        "uid": _text(actor.get("id") or ""),
        "sid": _text(context.get("sid") or ""),
        "did": _text(context.get("did") or ""),
        "channel": _text(context.get("channel") or ""),
        "ver": event.get("ver"),
        "pdata": {name: _text(pdata[name]) for name in ("id", "ver", "pid") if pdata.get(name) is not None},
        "object": event.get("object"),
        "tags": event.get("tags"),
        "cdata": context.get("cdata"),
        "rollup": context.get("rollup"),
    }
    return _present(facts)


def _present(facts: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in facts.items() if value is not None and _is_flat(value)}


class Workflow:
    """The workflows of one key. `compat: sunbird` counts as upstream does; otherwise its bugs are fixed.

    Fixed: idle time counts for no page, the time of a page counts once, every visit counts, the first event of a
    workflow counts fully, every summary is emitted, and a pause ends all workflows whatever event follows.
    """

    columns = "facts string"

    def __init__(self, compat: str = "none", idle: float = 600, pause: float = 1800) -> None:
        """Times in seconds: `idle` is the longest active time between two events, `pause` ends a session (sunbird)."""
        self._upstream = compat == "sunbird"
        self._idle = idle
        self._pause = pause
        self._root: Node | None = None
        self._cur: Node | None = None
        self._prev: int | None = None
        self._out: list[SummaryFacts] = []

    def add(self, row: dict[str, Any]) -> list[dict[str, Any]]:
        """Process an event; return the summaries that are due."""
        event = Event.of(row["value"], row["ets"])
        if self._upstream and self._prev is not None and event.ets - self._prev > self._pause * 1000:
            self._break(event)
        self._prev = event.ets
        match event.eid:
            case "START":
                self._start(event)
            case "END":
                self._end(event)
            case _:
                self._other_event(event)
        return self._take_output()

    def finish(self) -> list[dict[str, Any]]:
        """Return the summaries of all open workflows. Later events continue the same workflows."""
        cur, root = self._cur, self._root
        if cur is None or root is None:
            return []
        if self._upstream:
            if not cur.closed:
                self._close_and_emit(cur)
                if not cur.is_like(root) and not root.closed:
                    self._close_and_emit(root)
            return self._take_output()
        opened = not cur.closed
        for node in (cur.top, root):
            if not node.closed:
                self._close_and_emit(node)
        if opened:
            self._restart(cur)
        else:
            self._root = self._cur = None
        return self._take_output()

    def _break(self, event: Event) -> None:
        cur = self._cur
        if event.type != "app" and cur is not None and not cur.closed:
            self._close_and_emit(cur.top)
            self._restart(cur)

    def _restart(self, cur: Node) -> None:
        self._root = cur.top
        self._root.reset_all()
        cur.reset()

    def _start(self, event: Event) -> None:
        if self._root is None or self._root.closed:
            self._start_of_all(event)
            return
        cur = self._cur
        assert cur is not None, "a root implies a current workflow"
        again = next((node for node in cur.line() if node.is_of(event)), None)
        if again is None:
            if not cur.closed and sum(1 for _ in cur.line()) >= _DEEPEST:
                self._add(cur, event)
                return
            node = self._node(event)
            if not cur.closed:
                self._put(node, cur, event)
            self._cur = node
            return
        self._close(again)
        if again.parent is not None:
            self._emit(again)
            self._cur = self._node(event)
            self._put(self._cur, again.parent, event)
            return
        self._emit(cur.parent or cur)
        self._cur = self._node(event)
        if self._root.closed:
            self._emit(self._root)
            self._root = self._cur

    def _start_of_all(self, event: Event) -> None:
        self._cur = self._node(event)
        self._root = self._cur
        if event.type != "app":
            self._root = Node.of(event, app=True)
            if not self._upstream:
                self._root.events = {}  # the event is counted when the inner workflow is added
            self._put(self._cur, self._root, event)

    def _end(self, event: Event) -> None:
        cur = self._cur
        match_ = next((node for node in cur.line() if node.is_of(event)), None) if cur is not None else None
        if cur is None or match_ is None:
            return
        assert self._root is not None, "a current workflow implies a root"
        outer = match_.parent or match_
        if cur.parent is not None and outer.is_like(cur.parent):
            if not cur.closed:
                self._end_of(cur, event, outer)
        elif outer.is_like(self._root):
            if match_.is_like(self._root):
                self._end_of(self._root, event, self._root)
            elif not match_.closed:
                self._end_of(match_, event, outer)
        elif not cur.closed:
            self._end_of(cur, event, outer)
        else:
            self._cur = outer

    def _end_of(self, node: Node, event: Event, then: Node) -> None:
        self._add(node, event)
        self._close_and_emit(node)
        self._cur = then

    def _other_event(self, event: Event) -> None:
        if self._cur is not None and not self._cur.closed:
            self._add(self._cur, event)
            return
        self._cur = self._node(event)
        self._cur.type = "app"
        if self._root is None or self._root.closed:
            self._root = self._cur

    def _node(self, event: Event) -> Node:
        node = Node.of(event)
        if not self._upstream:
            self._record(node, event)
        return node

    def _put(self, child: Node, parent: Node, event: Event) -> None:
        """Put a workflow into another one, for which the event counts too."""
        # closed workflows that do not contain the current one are no longer needed
        parent.children = [*(sibling for sibling in parent.children if not sibling.closed), child]
        child.parent = parent
        self._add(parent, event)

    def _add(self, innermost: Node, event: Event) -> None:
        """Count an event for a workflow and those around it."""
        for node in innermost.line():
            self._count(node, event)

    def _count(self, node: Node, event: Event) -> None:
        node.start = node.start or event.ets
        passed = event.ets - node.prev
        active = 0 if passed > self._idle * 1000 else passed
        node.prev = event.ets
        node.spent += seconds(active)
        node.interactions += int(event.is_interaction)
        node.events[event.eid] = node.events.get(event.eid, 0) + 1
        if node.on_page:
            # upstream counts idle time here, and the time before the next page twice
            times = 2 if event.eid == "IMPRESSION" else 1
            node.visits[-1][3] += passed * times if self._upstream else active
        node.end, node.synced = event.ets, event.synced
        self._record(node, event)

    @staticmethod
    def _record(node: Node, event: Event) -> None:
        """Record the visited page or the answer of an event."""
        if event.eid == "IMPRESSION":
            env = _part(event.whole, "context").get("env")
            page = (event.edata.get("pageid"), event.edata.get("type"), env)
            node.visits.append([*(None if part is None else _text(part) for part in page), 0])
            node.on_page = True
        elif event.eid == "ASSESS":
            node.items.append(_answer(event))

    def _close(self, node: Node) -> list[SummaryFacts]:
        """End a workflow and all workflows inside it. A workflow without time spent has no summary."""
        inner = [facts for child in node.children if not child.closed for facts in self._close(child)]
        if node.spent > 0:
            node.made += [*inner, SummaryFacts({name: getattr(node, name) for name in _FACTS})]
        node.closed = True
        if not self._upstream:
            self._emit(node)
        return node.made

    def _close_and_emit(self, node: Node) -> None:
        self._close(node)
        self._emit(node)

    def _emit(self, node: Node) -> None:
        fresh = [summary for summary in node.made if not summary.emitted]
        for summary in fresh:
            summary.emitted = True
        self._out += fresh

    def _take_output(self) -> list[dict[str, Any]]:
        out, self._out = self._out, []
        return [{"facts": msgspec.json.encode(summary.facts).decode()} for summary in out]

    def remember(self) -> dict[str, Any]:
        """Return the open workflows as JSON values."""
        nodes: list[Node] = []
        for node in (self._root, self._cur):
            if node is not None and node.top not in nodes:
                nodes += _within(node.top)
        waiting = list(
            {id(summary): summary for node in nodes for summary in node.made if not summary.emitted}.values()
        )
        indexes = {id(node): index for index, node in enumerate(nodes)}
        return {
            "prev": self._prev,
            "root": indexes.get(id(self._root)),
            "cur": indexes.get(id(self._cur)),
            "waiting": [summary.facts for summary in waiting],
            "nodes": [
                {
                    **{name: getattr(node, name) for name in _SAVED},
                    "parent": None if node.parent is None else indexes[id(node.parent)],
                    "made": [index for index, summary in enumerate(waiting) if summary in node.made],
                }
                for node in nodes
            ],
        }

    def recall(self, memory: dict[str, Any]) -> None:
        """Restore the workflows from the value of `remember`."""
        waiting = [SummaryFacts(facts) for facts in memory["waiting"]]
        nodes = [Node(**{name: saved[name] for name in _SAVED}) for saved in memory["nodes"]]
        for node, saved in zip(nodes, memory["nodes"], strict=True):
            node.made = [waiting[index] for index in saved["made"]]
            if saved["parent"] is not None:
                node.parent = nodes[saved["parent"]]
                node.parent.children.append(node)
        self._prev = memory["prev"]
        self._root, self._cur = (None if memory[name] is None else nodes[memory[name]] for name in ("root", "cur"))


_FACTS = ("about", "type", "mode", "start", "end", "spent", "interactions", "synced", "events", "visits", "items")
_SAVED = (*_FACTS, "prev", "on_page", "closed")


def _within(node: Node) -> list[Node]:
    """Return a workflow and all workflows inside it, outer ones first."""
    return [node, *(inner for child in node.children for inner in _within(child))]


def _answer(event: Event) -> dict[str, Any]:
    edata = event.edata
    item, results = _part(edata, "item"), edata.get("resvalues")
    values = (
        [value for value in results if isinstance(value, dict) and _is_flat(value)] if isinstance(results, list) else []
    )
    answer = {
        "itemId": item.get("id"),
        "timeSpent": edata.get("duration"),
        "res": [f"{key}:{_text(value)}" for entry in values for key, value in entry.items()],
        "resValues": values,
        "mc": item.get("mc"),
        "mmc": item.get("mmc"),
        "score": edata.get("score"),
        "time_stamp": event.ets,
        "maxScore": item.get("maxscore"),
        "pass": edata.get("pass"),
        "qtitle": item.get("title"),
        "qdesc": item.get("desc"),
    }
    return _present(answer)
