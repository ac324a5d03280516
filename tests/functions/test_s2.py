"""S2 cells: what must hold of any of them, and some that are known."""

from __future__ import annotations

import math

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.functions.families.s2 import cell_area, cell_id

LATITUDES = st.floats(-90, 90)
LONGITUDES = st.floats(-180, 180)


def one_id(lat: float | None, lon: float | None, level: int | None) -> str | None:
    found = cell_id(pa.array([lat], pa.float64()), pa.array([lon], pa.float64()), pa.array([level], pa.int32()))
    return found.to_pylist()[0]  # type: ignore[no-any-return]


def one_area(text: str | None) -> float | None:
    return cell_area(pa.array([text], pa.string())).to_pylist()[0]  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("lat", "lon", "level", "expected"),
    [
        (-6.170024, 106.8243203, 13, "3344474489181175808"),
        (0.0, 0.0, 0, "1152921504606846976"),
        (90.0, 0.0, 0, "5764607523034234880"),
        (-90.0, 0.0, 0, "-5764607523034234880"),
        (91.0, 0.0, 5, None),
        (0.0, -180.5, 5, None),
        (float("nan"), 0.0, 5, None),
        (0.0, 0.0, 31, None),
        (0.0, 0.0, -1, None),
        (None, 0.0, 5, None),
        (0.0, 0.0, None, None),
    ],
)
def test_known_cells(lat: float | None, lon: float | None, level: int | None, expected: str | None) -> None:
    assert one_id(lat, lon, level) == expected


@settings(deadline=None, max_examples=40)
@given(LATITUDES, LONGITUDES, st.integers(0, 29))
def test_a_cell_lies_in_its_parent_and_is_about_a_quarter_of_it(lat: float, lon: float, level: int) -> None:
    parent, child = one_id(lat, lon, level), one_id(lat, lon, level + 1)
    assert parent is not None
    assert child is not None
    last = 1 << 2 * (30 - level)
    assert abs(int(child) - int(parent)) < last
    areas = one_area(parent), one_area(child)
    assert areas[0] is not None
    assert areas[1] is not None
    assert 0.1 < areas[1] / areas[0] < 0.5


@settings(deadline=None, max_examples=40)
@given(LATITUDES, LONGITUDES, st.integers(0, 28))
def test_four_children_are_as_large_as_their_parent(lat: float, lon: float, level: int) -> None:
    parent = int(one_id(lat, lon, level) or 0)
    last = 1 << 2 * (30 - level)
    children = [parent - last + (2 * n + 1) * (last >> 2) for n in range(4)]
    areas = cell_area(pa.array([str(child) for child in children])).to_pylist()
    assert math.isclose(sum(areas), one_area(str(parent)) or 0, rel_tol=1e-6)


def test_the_six_faces_are_the_earth() -> None:
    faces = [(face << 61 | 1 << 60) - (1 << 64 if face > 3 else 0) for face in range(6)]
    assert math.isclose(sum(cell_area(pa.array([str(face) for face in faces])).to_pylist()), 510_072_000)


@pytest.mark.parametrize("text", [None, "", "abc", "0", "9999999999999999999", "-1152921504606846976", "2", "1.5"])
def test_what_is_no_cell_has_no_area(text: str | None) -> None:
    assert one_area(text) is None
