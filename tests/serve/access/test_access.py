"""What a caller sees of an endpoint, by every way to its rows."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from tests.serve.kit import FILMS, VISITS, Served, film

from headrace.core.endpoints import Op
from headrace.core.errors import RequestError
from headrace.project.serving import Access
from headrace.serve.access.access import AccessControl, EndpointAccess
from headrace.serve.access.grants import Grant
from headrace.serve.access.stores import Stores
from headrace.store.endpoint.reader import StoreEvent, StoreReader

ALL = Grant("all", frozenset({"read"}))


@pytest.fixture
def stores(shelf: Served) -> Iterator[Stores]:
    found = Stores(shelf.settings())
    yield found
    found.close()


@pytest.fixture
def doors(shelf: Served, stores: Stores) -> AccessControl:
    return AccessControl.of(shelf.settings(), stores)


def some(**endpoints: dict[str, Any]) -> Grant:
    return Grant("some", frozenset({"read"}), {name: Access.model_validate(one) for name, one in endpoints.items()})


def narrow(doors: AccessControl, **access: Any) -> EndpointAccess:
    return doors.open(some(films=access), "films")


def code(call: Any, *arguments: Any) -> tuple[str, int]:
    with pytest.raises(RequestError) as error:
        call(*arguments)
    return error.value.code, error.value.status


def test_nothing_hidden_passes_as_stored(doors: AccessControl) -> None:
    door = doors.open(ALL, "films")
    assert door.whole
    found = door.get([7])
    assert found is not None
    assert found.version == 7
    assert json.loads(found.json) == film(7)
    assert door.etag(found.version) == b'"v1-7"'
    assert door.get([99]) is None
    assert doors.open(ALL, "films") is door


def test_hidden_columns_are_not_there(doors: AccessControl) -> None:
    door = narrow(doors, fields=["title", "id", "gone"])
    assert door.endpoint.columns.names == ["id", "title"]
    assert (door.endpoint.key, door.endpoint.indexes, door.endpoint.text) == (("id",), (), ("title",))
    found = door.get([7])
    assert found is not None
    assert found.json == b'{"id":7,"title":"Film 7"}'
    assert door.etag(7) not in (b'"v1-7"', narrow(doors, fields=["id"]).etag(7))
    for asked in ({"$filter": {"year": 1997}}, {"$order_by": {"year": "asc"}}):
        assert code(door.query, asked) == ("unknown-column", 400)
        assert code(door.count, asked) == ("unknown-column", 400)
    with pytest.raises(RequestError) as error:
        door.filter({"yeer": 1})
    assert "year" not in str(error.value)


def test_hidden_rows_are_not_there(doors: AccessControl) -> None:
    door = narrow(doors, filter={"region": "EU"})
    assert not door.whole
    assert door.get([3]) is None
    assert door.get([4]) is not None
    with door.transaction() as view:
        seen = [json.loads(row.json)["id"] for row in door.scan(view)]
        narrowed = [json.loads(row.json)["id"] for row in door.scan(view, door.filter({"id": {"$lt": 5}}))]
    assert seen == [number for number in range(1, 21) if number % 3]
    assert narrowed == [1, 2, 4]


def test_queries_and_counts_see_no_more(doors: AccessControl) -> None:
    door = narrow(doors, fields=["id", "title"], filter={"region": "EU"})
    page = door.query({"$order_by": {"id": "desc"}, "$limit": 3})
    assert [row.json for row in page.rows] == [b'{"id":%d,"title":"Film %d"}' % (n, n) for n in (20, 19, 17)]
    after = door.query({"$order_by": {"id": "desc"}, "$limit": 3, "$after": page.next})
    assert [json.loads(row.json)["id"] for row in after.rows] == [16, 14, 13]
    assert door.count({}) == 14
    assert door.count({"$filter": {"$or": [{"id": 3}, {"id": 4}]}}) == 1
    assert door.count({"$filter": {"$not": {"id": 4}}}) == 13


def test_who_does_not_see_the_key_cannot_ask_by_it_nor_read_it_in_cursors(doors: AccessControl, shelf: Served) -> None:
    door = narrow(doors, fields=["title"])
    assert door.endpoint.key == ()
    assert code(door.get, [7]) == ("no-key", 422)
    page = door.query({"$limit": 3})
    assert page.next is not None
    plain = doors.open(ALL, "films").query({"$limit": 3}).next
    assert plain is not None
    assert page.next[:20] != plain[:20]
    again = door.query({"$limit": 3, "$after": page.next})
    assert [json.loads(row.json) for row in again.rows] == [{"title": f"Film {n}"} for n in (4, 5, 6)]
    assert code(door.query, {"$limit": 3, "$after": plain}) == ("bad-cursor", 400)
    # another node that reads the same logs goes on with it
    other = AccessControl.of(shelf.settings(), Stores(shelf.settings()))
    assert narrow(other, fields=["title"]).query({"$limit": 3, "$after": page.next}).rows == again.rows


def stored(number: int, **more: Any) -> bytes:
    return json.dumps(film(number, **more)).encode()


def event(op: Op, new: bytes | None, old: bytes | None) -> StoreEvent:
    return StoreEvent(9, op, b"key", new, old)


EU, US = {"region": "EU"}, {"region": "US"}
MOVES = {
    "stays in sight": (stored(1, **EU), stored(1, **EU, title="x"), Op.UPDATE),
    "moves in": (stored(1, **US), stored(1, **EU), Op.INSERT),
    "moves out": (stored(1, **EU), stored(1, **US), Op.DELETE),
    "stays out": (stored(1, **US), stored(1, **US, title="x"), None),
    "changes where it is hidden": (stored(1, **EU), stored(1, **EU, year=1), None),
    "comes": (None, stored(1, **EU), Op.INSERT),
    "comes out of sight": (None, stored(1, **US), None),
    "goes": (stored(1, **EU), None, Op.DELETE),
    "goes out of sight": (stored(1, **US), None, None),
}


@pytest.mark.parametrize("case", MOVES)
def test_a_change_as_it_looks_from_here(case: str, doors: AccessControl) -> None:
    old, new, op = MOVES[case]
    door = narrow(doors, fields=["id", "title"], filter=EU)
    happened = Op.UPDATE if old and new else Op.INSERT if new else Op.DELETE
    seen = door.event(event(happened, new, old))
    assert (None if seen is None else seen.op) == op
    for shown in () if seen is None else [one for one in (seen.new, seen.old) if one is not None]:
        assert list(json.loads(shown)) == ["id", "title"]
        assert door.key_of(shown) == {"id": 1}


def test_a_subscriber_sees_changes_by_its_own_filter_too(doors: AccessControl) -> None:
    door = narrow(doors, filter=EU)
    own = door.filter({"year": {"$gt": 2000}})
    seen = door.event(event(Op.UPDATE, stored(1, **EU, year=2001), stored(1, **EU, year=1999)), own)
    assert seen is not None
    assert (seen.op, seen.key, seen.old) == (Op.INSERT, b"key", None)
    hidden = narrow(doors, fields=["title"]).event(event(Op.INSERT, stored(1), None))
    assert hidden is not None
    assert (hidden.key, hidden.new) == (b"", b'{"title":"Film 1"}')


def test_what_a_token_does_not_name_is_forbidden_whether_or_not_it_is_there(doors: AccessControl) -> None:
    grant = some(films={})
    assert doors.names(grant) == ["films"]
    for name in ("visits", "nothing", "visits@v1", "../films", "Films"):
        assert code(doors.open, grant, name) == ("endpoint-forbidden", 403)
    assert code(doors.open, Grant("none", frozenset()), "films") == ("wrong-scope", 403)


def test_an_unknown_endpoint_names_the_nearest_in_sight(doors: AccessControl) -> None:
    with pytest.raises(RequestError) as error:
        doors.open(ALL, "film")
    assert (error.value.code, error.value.status) == ("unknown-endpoint", 404)
    assert "did you mean 'films'? endpoints: films, notes, visits" in (error.value.hint or "")
    for name in ("..", "films@v9", "films@", "films@v0", "", "a/b", "\0", "x" * 1000):
        assert code(doors.open, ALL, name) == ("unknown-endpoint", 404)


def test_a_row_filter_that_does_not_fit_shows_nothing(doors: AccessControl) -> None:
    with pytest.raises(RequestError) as error:
        narrow(doors, filter={"secret_column": 1})
    assert (error.value.code, error.value.status) == ("bad-restriction", 403)
    assert "secret_column" not in str(error.value)


def test_a_new_version_is_taken_up(served: Served) -> None:
    doors = AccessControl.of(served.settings(), Stores(served.settings()))
    assert doors.open(ALL, "visits").version == 1
    served.put(replace(VISITS, version=2, columns=pa.schema([*VISITS.columns, ("more", pa.string())])))
    deadline = time.monotonic() + 10
    while doors.open(ALL, "visits").version == 1:  # which is looked at every now and then
        assert time.monotonic() < deadline
    assert "more" in doors.open(ALL, "visits").endpoint.columns.names
    assert "more" not in doors.open(ALL, "visits@v1").endpoint.columns.names
    assert doors.open(ALL, "films").endpoint == FILMS


class Swapping(Stores):
    """Gives a reader that is closed a moment later, as when a store was built anew."""

    swaps = 0

    def reader(self, name: str, version: int | None = None) -> StoreReader:
        found = super().reader(name, version)
        if self.swaps:
            self.swaps -= 1
            self._close_others(name, set())
        return found


def test_a_store_that_is_exchanged_under_a_question(served: Served) -> None:
    served.close()  # else this process would keep it open by its writer
    stores = Swapping(served.settings())
    door = AccessControl.of(served.settings(), stores).open(ALL, "films")
    stores.swaps = 1
    assert door.get([7]) is not None
    stores.swaps = 1
    assert len(door.query({}).rows) == 20
    stores.swaps = 1
    assert door.count({}) == 20
    stores.close()


def test_a_damaged_store_is_told_and_answers_nothing(served: Served) -> None:
    served.close()
    stores = Stores(served.settings())
    door = AccessControl.of(served.settings(), stores).open(ALL, "films")
    assert door.get([7]) is not None
    stores.close()
    file = served.folder / "store" / "films" / "v1-a" / "data.mdb"
    content = file.read_bytes()
    file.write_bytes(content.replace(b"Film 7", b"Filn 7"))
    assert code(door.get, [7]) == ("hydrating", 503)
    assert code(door.get, [8]) == ("hydrating", 503)
    assert code(door.query, {}) == ("hydrating", 503)
    stores.close()
