"""Workflow summaries: what someone did with an app, from the events of one key in the order of their times.

Events between a START and its END are a workflow; workflows lie within each other (app > session > player), so the open
ones are a tree. An event counts for the innermost one and all around it. When a workflow ends, what is known of it is
given as JSON, of which summary.py makes an event.
The step `sessions` gives the events and calls `finish` when there were none for a while.
Whatever stands in an event, it counts: what cannot be read of it is as if it were not there.
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
"""Workflows within each other; a START within more of them is an event like any other."""
_LATEST = 253_402_300_799_999
_LEVELS = 32
"""Of lists and objects within each other that are taken over into a summary."""
_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])


def seconds(milliseconds: int) -> float:
    """To two digits, halves up, as upstream rounds every span of time."""
    return (milliseconds + 5) // 10 / 100


def _part(event: Any, name: str) -> dict[str, Any]:
    found = event.get(name)
    return found if isinstance(found, dict) else {}


def _read(text: str) -> dict[str, Any]:
    """A document; where there is a number beyond all bounds, or too much within each other, without that member."""
    found: dict[str, Any] = {}
    try:
        whole = msgspec.json.decode(text)
        return whole if isinstance(whole, dict) else found
    except (msgspec.DecodeError, RecursionError):
        with suppress(msgspec.DecodeError, RecursionError):
            for name, member in _MEMBERS.decode(text).items():
                with suppress(msgspec.DecodeError, RecursionError):
                    found[name] = msgspec.json.decode(member)
    return found


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return msgspec.json.encode(value).decode() if _is_flat(value) else ""


def _is_flat(value: Any, levels: int = _LEVELS) -> bool:
    """Whether a value can be written wherever it goes."""
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels > 0 and all(_is_flat(one, levels - 1) for one in inside)


@dataclass(frozen=True)
class Event:
    """What is looked at in an event."""

    eid: str
    ets: int
    type: str | None
    mode: str
    whole: dict[str, Any]

    @staticmethod
    def of(text: str, ets: int) -> Event:
        """The event in a document, with its time in milliseconds."""
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
        """Whether someone really did something."""
        return self.eid == "INTERACT" and self.type in INTERACTIONS

    @cached_property
    def edata(self) -> dict[str, Any]:
        """What is special about it."""
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
class Made:
    """A summary, and whether it has been given."""

    facts: dict[str, Any]
    given: bool = False


@dataclass(eq=False)
class Node:
    """A workflow that has begun."""

    about: dict[str, Any]
    """Who and where, from its first event."""
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
    """Whether the last of the visits goes on."""
    items: list[dict[str, Any]] = field(default_factory=list)
    closed: bool = False
    parent: Node | None = None
    children: list[Node] = field(default_factory=list)
    made: list[Made] = field(default_factory=list)
    """Its summary and those of workflows within it."""

    @staticmethod
    def of(event: Event, *, app: bool = False) -> Node:
        """A workflow that begins with an event; `app`: the whole stay in the app, whatever the event says."""
        node = Node(_about(event.whole), event.type or "app", event.mode, event.ets, event.ets)
        if app:
            node.type, node.mode = "app", ""
        node.synced = event.synced
        node.events = {event.eid: 1}
        node.interactions = int(event.is_interaction)
        return node

    def is_of(self, event: Event) -> bool:
        """Whether an event is about a workflow like this."""
        return self.type == event.type and self.mode == event.mode

    def is_like(self, other: Node) -> bool:
        """Whether upstream would take them for the same."""
        return (self.type, self.mode.lower(), self.start) == (other.type, other.mode.lower(), other.start)

    def line(self) -> Iterator[Node]:
        """Itself and those around it, from the inside."""
        node: Node | None = self
        while node is not None:
            yield node
            node = node.parent

    @property
    def top(self) -> Node:
        """The outermost around it."""
        return list(self.line())[-1]

    def reset(self) -> None:
        """Begin anew in the same place: nothing has happened yet."""
        self.start = self.end = self.interactions = 0
        self.spent = 0.0
        self.events, self.visits, self.items, self.made = {}, [], [], []
        self.on_page = self.closed = False

    def reset_all(self) -> None:
        """With all within it."""
        for child in self.children:
            child.reset_all()
        self.reset()


def _about(event: dict[str, Any]) -> dict[str, Any]:
    context, actor = _part(event, "context"), _part(event, "actor")
    pdata = _part(context, "pdata")
    said = {
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
    return _present(said)


def _present(said: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in said.items() if value is not None and _is_flat(value)}


class Workflow:
    """The workflows of one key. `compat: sunbird` counts as upstream does, else its faults are mended.

    Mended: time without activity is on no page, a page's time counts once, every visit counts, a workflow's first event
    counts fully, every summary that was made is given, and a pause ends all workflows whatever comes after it.
    """

    columns = "facts string"

    def __init__(self, compat: str = "none", idle: float = 600, pause: float = 1800) -> None:
        """Times in seconds: how long someone may do nothing; in upstream's way also how long a session may pause."""
        self._upstream = compat == "sunbird"
        self._idle = idle
        self._pause = pause
        self._root: Node | None = None
        self._cur: Node | None = None
        self._prev: int | None = None
        self._out: list[Made] = []

    def add(self, row: dict[str, Any]) -> list[dict[str, Any]]:
        """The summaries that are due with one more event."""
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
                self._other(event)
        return self._given()

    def finish(self) -> list[dict[str, Any]]:
        """The summaries of all that is open. What comes later goes on in the same workflows."""
        cur, root = self._cur, self._root
        if cur is None or root is None:
            return []
        if self._upstream:
            if not cur.closed:
                self._close_and_give(cur)
                if not cur.is_like(root) and not root.closed:
                    self._close_and_give(root)
            return self._given()
        opened = not cur.closed
        for one in (cur.top, root):
            if not one.closed:
                self._close_and_give(one)
        if opened:
            self._begin_anew(cur)
        else:
            self._root = self._cur = None
        return self._given()

    def _break(self, event: Event) -> None:
        cur = self._cur
        if event.type != "app" and cur is not None and not cur.closed:
            self._close_and_give(cur.top)
            self._begin_anew(cur)

    def _begin_anew(self, cur: Node) -> None:
        self._root = cur.top
        self._root.reset_all()
        cur.reset()

    def _start(self, event: Event) -> None:
        if self._root is None or self._root.closed:
            self._start_of_all(event)
            return
        cur = self._cur
        assert cur is not None, "where there is a root there is a current workflow"
        again = next((one for one in cur.line() if one.is_of(event)), None)
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
            self._give(again)
            self._cur = self._node(event)
            self._put(self._cur, again.parent, event)
            return
        self._give(cur.parent or cur)
        self._cur = self._node(event)
        if self._root.closed:
            self._give(self._root)
            self._root = self._cur

    def _start_of_all(self, event: Event) -> None:
        self._cur = self._node(event)
        self._root = self._cur
        if event.type != "app":
            self._root = Node.of(event, app=True)
            if not self._upstream:
                self._root.events = {}  # it is counted when the inner one is put into it
            self._put(self._cur, self._root, event)

    def _end(self, event: Event) -> None:
        cur = self._cur
        match_ = next((one for one in cur.line() if one.is_of(event)), None) if cur is not None else None
        if cur is None or match_ is None:
            return
        assert self._root is not None, "where there is a current workflow there is a root"
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
        self._close_and_give(node)
        self._cur = then

    def _other(self, event: Event) -> None:
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
            self._look(node, event)
        return node

    def _put(self, child: Node, parent: Node, event: Event) -> None:
        """One workflow into another, for which the event counts too."""
        # what is closed and not on the way to the current one has no part in anything any more
        parent.children = [*(one for one in parent.children if not one.closed), child]
        child.parent = parent
        self._add(parent, event)

    def _add(self, innermost: Node, event: Event) -> None:
        """One more event for a workflow and those around it."""
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
        self._look(node, event)

    @staticmethod
    def _look(node: Node, event: Event) -> None:
        """At what was seen and answered."""
        if event.eid == "IMPRESSION":
            env = _part(event.whole, "context").get("env")
            said = (event.edata.get("pageid"), event.edata.get("type"), env)
            node.visits.append([*(None if one is None else _text(one) for one in said), 0])
            node.on_page = True
        elif event.eid == "ASSESS":
            node.items.append(_answer(event))

    def _close(self, node: Node) -> list[Made]:
        """End a workflow and all within it. Without time spent there is nothing to tell."""
        inner = [made for child in node.children if not child.closed for made in self._close(child)]
        if node.spent > 0:
            node.made += [*inner, Made({name: getattr(node, name) for name in _FACTS})]
        node.closed = True
        if not self._upstream:
            self._give(node)
        return node.made

    def _close_and_give(self, node: Node) -> None:
        self._close(node)
        self._give(node)

    def _give(self, node: Node) -> None:
        fresh = [one for one in node.made if not one.given]
        for one in fresh:
            one.given = True
        self._out += fresh

    def _given(self) -> list[dict[str, Any]]:
        out, self._out = self._out, []
        return [{"facts": msgspec.json.encode(one.facts).decode()} for one in out]

    def remember(self) -> dict[str, Any]:
        """The open workflows, as JSON can hold them."""
        nodes: list[Node] = []
        for node in (self._root, self._cur):
            if node is not None and node.top not in nodes:
                nodes += _within(node.top)
        waiting = list({id(one): one for node in nodes for one in node.made if not one.given}.values())
        places = {id(node): place for place, node in enumerate(nodes)}
        return {
            "prev": self._prev,
            "root": places.get(id(self._root)),
            "cur": places.get(id(self._cur)),
            "waiting": [one.facts for one in waiting],
            "nodes": [
                {
                    **{name: getattr(node, name) for name in _KEPT},
                    "parent": None if node.parent is None else places[id(node.parent)],
                    "made": [place for place, one in enumerate(waiting) if one in node.made],
                }
                for node in nodes
            ],
        }

    def recall(self, memory: dict[str, Any]) -> None:
        """Go on with what was remembered."""
        waiting = [Made(facts) for facts in memory["waiting"]]
        nodes = [Node(**{name: one[name] for name in _KEPT}) for one in memory["nodes"]]
        for node, said in zip(nodes, memory["nodes"], strict=True):
            node.made = [waiting[place] for place in said["made"]]
            if said["parent"] is not None:
                node.parent = nodes[said["parent"]]
                node.parent.children.append(node)
        self._prev = memory["prev"]
        self._root, self._cur = (None if memory[one] is None else nodes[memory[one]] for one in ("root", "cur"))


_FACTS = ("about", "type", "mode", "start", "end", "spent", "interactions", "synced", "events", "visits", "items")
_KEPT = (*_FACTS, "prev", "on_page", "closed")


def _within(node: Node) -> list[Node]:
    """A workflow and all within it, the outer ones first."""
    return [node, *(one for child in node.children for one in _within(child))]


def _answer(event: Event) -> dict[str, Any]:
    """An answer to a question."""
    edata = event.edata
    item, given = _part(edata, "item"), edata.get("resvalues")
    values = [one for one in given if isinstance(one, dict) and _is_flat(one)] if isinstance(given, list) else []
    said = {
        "itemId": item.get("id"),
        "timeSpent": edata.get("duration"),
        "res": [f"{key}:{_text(value)}" for one in values for key, value in one.items()],
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
    return _present(said)
