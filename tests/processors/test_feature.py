from __future__ import annotations

import pyarrow as pa
import pytest

from headrace.core.errors import ProjectError
from headrace.processors.feature import Feature, FeatureOf

GIVEN = pa.schema([("k", pa.string()), ("n", pa.int16()), ("tags", pa.list_(pa.string())), ("old", pa.string())])


def test_one_column_more() -> None:
    step = Feature(
        column="old", features=[FeatureOf(key="k", value="n"), FeatureOf(key="k", value="tags", type="string")]
    )
    made = step.output(GIVEN)
    assert made.names == GIVEN.names
    feature = made.field("old").type.value_type
    assert [part.name for part in feature] == ["key", "value", "name"]
    assert len(feature.field("value").type) == 8
    assert step.uses(frozenset({"old", "x"})) == {"x", "k", "n", "tags"}


def test_a_value_without_a_slot_is_refused() -> None:
    with pytest.raises(ProjectError) as caught:
        Feature(features=[FeatureOf(key="k", value="tags")]).output(GIVEN)
    assert caught.value.code == "step-type"
