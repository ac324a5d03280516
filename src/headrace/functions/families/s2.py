"""S2 cells over whole columns: the id of the cell around a point, and the area of a cell.

A cell id is the face of a cube around the Earth (3 bits), then two bits per level along a Hilbert curve, then a 1.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_LEVELS = 30
_SIZE = 1 << _LEVELS
_EARTH_KM2 = 510_072_000
# the order of the four quarters of a square, by the orientation of the curve in it
_QUARTER_TO_PLACE = np.array([[0, 1, 3, 2], [0, 3, 1, 2], [2, 3, 1, 0], [2, 1, 3, 0]])
_PLACE_TO_QUARTER = np.argsort(_QUARTER_TO_PLACE, axis=1)
# how the orientation changes with the place on the curve: 1 swaps the axes, 2 turns them round
_TURN = np.array([1, 0, 0, 3])

_Floats = np.ndarray[Any, np.dtype[np.float64]]
_Integers = np.ndarray[Any, np.dtype[np.int64]]


def _floats(column: pa.Array) -> _Floats:
    numbers: _Floats = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    return numbers


def cell_id(lat: pa.Array, lon: pa.Array, level: pa.Array) -> pa.Array:
    """The ids of cells as decimal texts; null if the cell does not exist."""
    lats, lons, levels = _floats(lat), _floats(lon), _floats(level)
    good = (np.abs(lats) <= 90) & (np.abs(lons) <= 180) & (levels >= 0) & (levels <= _LEVELS)
    good &= levels == np.floor(levels)
    lats, lons = np.where(good, lats, 0.0), np.where(good, lons, 0.0)
    face, i, j = _face_ij(lats, lons)
    place, orientation = np.zeros_like(i), face & 1
    for bit in range(_LEVELS - 1, -1, -1):
        quarter = ((i >> bit) & 1) << 1 | (j >> bit) & 1
        step = _QUARTER_TO_PLACE[orientation, quarter]
        place = place << 2 | step
        orientation = orientation ^ _TURN[step]
    whole = face.astype(np.uint64) << np.uint64(61) | place.astype(np.uint64) << np.uint64(1) | np.uint64(1)
    last = np.uint64(1) << (2 * (_LEVELS - np.where(good, levels, 0))).astype(np.uint64)
    ids = (whole & (~last + np.uint64(1))) | last
    return pc.cast(pa.array(ids.view(np.int64), mask=~good), pa.string())


def _face_ij(lat: _Floats, lon: _Floats) -> tuple[_Integers, _Integers, _Integers]:
    """The face of the cube that a point lies on, and its square among 2^30 x 2^30 there."""
    phi, theta = np.radians(lat), np.radians(lon)
    xyz = np.stack([np.cos(phi) * np.cos(theta), np.cos(phi) * np.sin(theta), np.sin(phi)])
    size = np.abs(xyz)
    axis = np.where(size[0] > size[1], np.where(size[0] > size[2], 0, 2), np.where(size[1] > size[2], 1, 2))
    face = axis + 3 * (np.take_along_axis(xyz, axis[None], axis=0)[0] < 0)
    x, y, z = xyz
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        u = np.choose(face, [y / x, -x / y, -x / z, z / x, z / y, -y / z])
        v = np.choose(face, [z / x, z / y, -y / z, y / x, -x / y, -x / z])
    return face, _square(u), _square(v)


def _square(u: _Floats) -> _Integers:
    """A coordinate on a face as the number of its square; the curve makes squares about equally large on Earth."""
    root = 0.5 * np.sqrt(1 + 3 * np.abs(u))
    s = np.where(u >= 0, root, 1 - root)
    squares: _Integers = np.clip(np.floor(s * _SIZE), 0, _SIZE - 1).astype(np.int64)
    return squares


def cell_area(ids: pa.Array) -> pa.Array:
    """The areas of cells in square kilometres; null for an invalid id."""
    numbers, good = _cell_ids(ids)
    last = numbers & (~numbers + np.uint64(1))
    level = _LEVELS - np.log2(last.astype(np.float64)).astype(np.int64) // 2
    face = (numbers >> np.uint64(61)).astype(np.int64)
    i, j, orientation = np.zeros_like(face), np.zeros_like(face), face & 1
    for bit in range(_LEVELS - 1, -1, -1):
        within = _LEVELS - bit <= level
        step = ((numbers >> np.uint64(2 * bit + 1)) & np.uint64(3)).astype(np.int64)
        quarter = _PLACE_TO_QUARTER[orientation, step]
        i = np.where(within, i | (quarter >> 1) << bit, i)
        j = np.where(within, j | (quarter & 1) << bit, j)
        orientation = np.where(within, orientation ^ _TURN[step], orientation)
    side = np.int64(1) << (_LEVELS - level)
    area = _area(_edge(i), _edge(i + side), _edge(j), _edge(j + side))
    return pa.array(area * _EARTH_KM2 / (4 * np.pi), mask=~good)


def _cell_ids(ids: pa.Array) -> tuple[np.ndarray[Any, np.dtype[np.uint64]], np.ndarray[Any, np.dtype[np.bool_]]]:
    """The ids as numbers, and which are valid: a face below 6, and the final 1 at an even place."""
    texts = pc.utf8_trim_whitespace(ids.cast(pa.string()))
    number = pc.match_substring_regex(texts, r"^-?\d{1,19}$")
    texts = pc.if_else(pc.fill_null(number, False), texts, "0")
    numbers = _int64(texts).to_numpy(zero_copy_only=False).view(np.uint64)
    last = numbers & (~numbers + np.uint64(1))
    good = (numbers != 0) & ((numbers >> np.uint64(61)) < 6) & (last & np.uint64(0x1555555555555555) != 0)
    return np.where(good, numbers, np.uint64(1) << np.uint64(60)), good


def _int64(texts: pa.Array) -> pa.Array:
    try:
        return texts.cast(pa.int64())
    except pa.ArrowInvalid:  # a number of 19 digits may be too large
        numbers = [int(text) for text in texts.to_pylist()]
        return pa.array([number if -(1 << 63) <= number < 1 << 63 else 0 for number in numbers], pa.int64())


def _edge(square: _Integers) -> _Floats:
    """Where a square begins on a face, from -1 to 1."""
    s = square / _SIZE
    return np.where(s >= 0.5, (4 * s * s - 1) / 3, (1 - 4 * (1 - s) * (1 - s)) / 3)


def _area(u0: _Floats, u1: _Floats, v0: _Floats, v1: _Floats) -> _Floats:
    """The area of a rectangle of a face, seen from the middle of the unit sphere, as two triangles."""
    box = (u1 - u0) * (v1 - v0)
    return _triangle(box, (u0, v0), (u1, v0), (u1, v1)) + _triangle(box, (u0, v0), (u1, v1), (u0, v1))


_Corner = tuple[_Floats, _Floats]


def _triangle(box: _Floats, a: _Corner, b: _Corner, c: _Corner) -> _Floats:
    """tan(E/2) = |a·(b×c)| / (1 + a·b + b·c + c·a) of unit vectors; the product of the raw ones is the box."""
    lengths = [np.sqrt(1 + u * u + v * v) for u, v in (a, b, c)]

    def cosine(first: int, second: int) -> _Floats:
        (u, v), (s, t) = (a, b, c)[first], (a, b, c)[second]
        product: _Floats = (1 + u * s + v * t) / (lengths[first] * lengths[second])
        return product

    volume = np.abs(box) / (lengths[0] * lengths[1] * lengths[2])
    area: _Floats = 2 * np.arctan2(volume, 1 + cosine(0, 1) + cosine(1, 2) + cosine(2, 0))
    return area
