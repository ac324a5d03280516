"""The inbox of a pushed table: what is added is there once, whoever adds it, however often and whatever is cut off."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.endpoints import Op
from headrace.log.inbox import Inbox, InboxEntry, Pushed, RepeatedIdError, id_of
from headrace.log.log import LogDamagedError

DAY = timedelta(days=1)


def request(number: int, key: str | None = None, id: str | None = None) -> Pushed:
    row = b'{"id":%d}' % number
    entry = InboxEntry(Op.UPSERT, row, None if id is None else id_of(id, row, request=False))
    return Pushed([entry], None if key is None else id_of(key, row, request=True))


def rows(inbox: Inbox, after: int = 0) -> list[bytes]:
    return [row for _, changes in inbox.after(after) for _, row in changes]


def test_requests_of_one_step_share_a_position_and_come_in_order(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path, "t", DAY)
    assert inbox.add([request(1), request(2)]) == [1, 1]
    assert inbox.add([request(3)]) == [2]
    assert rows(inbox) == [b'{"id":1}', b'{"id":2}', b'{"id":3}']
    assert rows(inbox, 1) == [b'{"id":3}']


def test_a_request_that_comes_again_to_whom_it_may_is_where_it_was(tmp_path: Path) -> None:
    one, other = Inbox(tmp_path, "t", DAY), Inbox(tmp_path, "t", DAY)
    assert one.add([request(1, key="a")]) == [1]
    assert other.add([request(2, key="b")]) == [2]
    assert one.add([request(2, key="b"), request(1, key="a"), request(3, key="c"), request(3, key="c")]) == [2, 1, 3, 3]
    assert Inbox(tmp_path, "t", DAY).add([request(3, key="c")]) == [3]
    assert len(rows(one)) == 3


def test_a_change_that_comes_again_is_passed_over_within_another_request(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path, "t", DAY)
    inbox.add([request(1, id="a")])
    both = Pushed([*request(1, id="a").entries, *request(2, id="b").entries])
    assert inbox.add([both]) == [2]
    assert inbox.add([both]) == [2]
    assert rows(inbox) == [b'{"id":1}', b'{"id":2}']


def test_a_key_cannot_stand_for_something_else(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path, "t", DAY)
    refused, taken = inbox.add([request(1, key="a"), request(2, key="a")])[::-1]
    assert isinstance(refused, RepeatedIdError)
    assert taken == 1
    assert rows(inbox) == [b'{"id":1}']


def test_ids_outlive_what_is_cut_off(tmp_path: Path) -> None:
    late, inbox = Inbox(tmp_path, "t", DAY), Inbox(tmp_path, "t", DAY)
    late.add([request(0, key="first")])
    for number in (1, 2, 3):
        inbox.add([request(number, key=f"k{number}")])
    inbox.cut(2)
    inbox.cut(4)
    assert inbox.begin() == inbox.end() == 4
    for one in (late, Inbox(tmp_path, "t", DAY)):
        assert one.add([request(3, key="k3"), request(1, key="k1"), request(0, key="first")]) == [4, 2, 1]
    assert late.add([request(9, key="new")]) == [5]


def test_ids_are_forgotten_when_they_are_old_enough(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path, "t", timedelta(0))
    inbox.add([request(1, key="a")])
    time.sleep(0.002)
    inbox.cut(1)
    assert Inbox(tmp_path, "t", timedelta(0)).add([request(1, key="a")]) == [2]
    assert [file.name for file in (tmp_path / ".inbox" / "t").rglob("*-*.json")] == []


def test_many_writers_at_once_add_each_request_once(tmp_path: Path) -> None:
    found: dict[int, list[int | RepeatedIdError]] = {}

    def write(writer: int) -> None:
        inbox = Inbox(tmp_path, "t", DAY)
        for number in range(3):
            # every writer also sends what another sends
            found[writer * 10 + number] = inbox.add(
                [request(number, key=f"both{number}"), request(writer * 10 + number)]
            )

    threads = [threading.Thread(target=write, args=(writer,)) for writer in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    there = rows(Inbox(tmp_path, "t", DAY))
    assert len(there) == 3 + 9
    assert len({places[0] for places in found.values()}) == 3


def test_a_damaged_segment_is_not_taken(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path, "t", DAY)
    inbox.add([request(1)])
    (part,) = (tmp_path / ".inbox" / "t" / "parts").iterdir()
    part.write_bytes(part.read_bytes()[:-4] + b"oops")
    with pytest.raises(LogDamagedError):
        rows(inbox)


@dataclass
class Model:
    """What must come out: each key's first request, in order."""

    taken: list[bytes] = field(default_factory=list)
    places: dict[str, int | RepeatedIdError] = field(default_factory=dict)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 2), st.lists(st.integers(0, 5), min_size=1, max_size=3)),
        st.tuples(st.just("cut"), st.integers(0, 2), st.just([])),
        st.tuples(st.just("restart"), st.integers(0, 2), st.just([])),
    ),
    min_size=3,
    max_size=12,
)


@settings(max_examples=15)
@given(steps=STEPS)
def test_whatever_happens_each_key_adds_once(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int, list[int]]]
) -> None:
    root = tmp_path_factory.mktemp("inbox")
    writers = [Inbox(root, "t", DAY) for _ in range(3)]
    reader, position, out = Inbox(root, "t", DAY), 0, list[bytes]()
    model = Model()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _file: None)  # no power fails here, and each costs milliseconds
        for what, who, keys in steps:
            if what == "restart":
                writers[who] = Inbox(root, "t", DAY)
            elif what == "add":
                places = writers[who].add([request(key, key=str(key)) for key in keys])
                for key, place in zip(keys, places, strict=True):
                    if str(key) not in model.places:
                        model.taken.append(b'{"id":%d}' % key)
                    assert model.places.setdefault(str(key), place) == place
            else:
                for segment, changes in reader.after(position):
                    out += [row for _, row in changes]
                    position = segment.position
                if position > reader.begin():
                    reader.cut(position)
        out += rows(reader, position)
    assert out == model.taken
