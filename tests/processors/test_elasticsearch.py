from __future__ import annotations

from headrace.core.kinds import kinds


def test_it_is_opensearch_by_another_name() -> None:
    family = kinds("processors")
    one, other = family["elasticsearch"].model_fields, family["opensearch"].model_fields
    assert one.keys() == other.keys()
    assert one["type"].default == "elasticsearch"
