from __future__ import annotations

import pytest

from headrace.core.kinds import kinds
from headrace.core.sink import Delivery, Sink
from headrace.reference.guarantees import guarantees
from headrace.sinks.noop import NoopSink


@pytest.mark.parametrize("name", kinds("sinks"))
def test_every_sink_states_its_guarantee_and_how_it_is_kept(name: str) -> None:
    rows = list(guarantees(name, kinds("sinks")[name]))
    assert rows
    assert all(row.how for row in rows)


def test_a_guarantee_that_depends_on_an_option_has_one_row_per_value() -> None:
    rows = {row.option: row.delivery for row in guarantees("kafka", kinds("sinks")["kafka"])}
    assert rows == {
        ", `delivery: at_least_once`": "at_least_once",
        ", `delivery: exactly_once`": "exactly_once",
    }


class Wrong(NoopSink):
    """Rows.

    Delivery: exactly once; by luck.
    """

    @property
    def guarantee(self) -> Delivery:
        return "best_effort"


class Silent(Sink):
    """Rows."""


@pytest.mark.parametrize("sink", [Wrong, Silent])
def test_a_docstring_that_does_not_state_the_guarantee_is_an_error(sink: type[Sink]) -> None:
    with pytest.raises(ValueError, match=r"guarantee"):
        list(guarantees("mine", sink))
