"""Places on Earth: distances, geohashes, S2 cells."""

from __future__ import annotations

from headrace.functions.families.s2 import cell_area, cell_id
from headrace.functions.function import Arrow, Function, FunctionCall
from headrace.functions.template import fill

_BASE32 = "0123456789bcdefghjkmnpqrstuvwxyz"
# the five bits of a character alternate between the coordinates: three bits of one and two of the other
_INTERLEAVED = "".join(
    _BASE32[(major & 4) << 2 | (minor & 2) << 2 | (major & 2) << 1 | (minor & 1) << 1 | major & 1]
    for major in range(8)
    for minor in range(4)
)
_HALF = (
    "pow(sin(radians(CAST(:lat2 AS DOUBLE) - CAST(:lat1 AS DOUBLE)) / 2), 2) + "
    "cos(radians(CAST(:lat1 AS DOUBLE))) * cos(radians(CAST(:lat2 AS DOUBLE))) * "
    "pow(sin(radians(CAST(:lon2 AS DOUBLE) - CAST(:lon1 AS DOUBLE)) / 2), 2)"
)
# rounding may make the value for opposite points slightly larger than 1
_DISTANCE = f"2 * 6371 * atan2(sqrt({_HALF}), sqrt(abs(1 - ({_HALF}))))"


def _distance(call: FunctionCall) -> str:
    return fill(_DISTANCE, **dict(zip(("lat1", "lon1", "lat2", "lon2"), call.args, strict=True)))


def _cells(name: str, limit: int) -> str:
    """The number of a coordinate's cell among 2^30; NULL if it is out of range."""
    return (
        f"CASE WHEN CAST(:{name} AS DOUBLE) = {limit} THEN 1073741823 WHEN abs(CAST(:{name} AS DOUBLE)) <= {limit} "
        f"THEN CAST(floor((CAST(:{name} AS DOUBLE) + {limit}) / {2 * limit} * 1073741824) AS BIGINT) END"
    )


def _character(place: int) -> str:
    """The character of a geohash at a place: even ones have more bits of the longitude, odd ones of the latitude."""
    major, minor = ("lon", "lat") if place % 2 == 0 else ("lat", "lon")
    half = place // 2
    first, second = (27 - 5 * half, 28 - 5 * half) if place % 2 == 0 else (25 - 5 * half, 25 - 5 * half)
    limits = {"lat": 90, "lon": 180}
    bits = [
        f"(shiftright({_cells(name, limits[name])}, {shift}) & {mask})"
        for name, shift, mask in ((major, first, 7), (minor, second, 3))
    ]
    return f"substring('{_INTERLEAVED}', CAST({bits[0]} * 4 + {bits[1]} + 1 AS INT), 1)"


def _geohash(call: FunctionCall) -> str:
    call.whole_number(2, 1, 12, "the length")
    lat, lon, length = call.args
    count = call.number(2)
    if count is not None:
        return fill(f"concat({', '.join(_character(place) for place in range(int(count)))})", lat=lat, lon=lon)
    whole = f"concat({', '.join(_character(place) for place in range(12))})"
    return fill(f"left({whole}, CASE WHEN :n BETWEEN 1 AND 12 THEN CAST(:n AS INT) END)", lat=lat, lon=lon, n=length)


def _s2_id(call: FunctionCall) -> str:
    call.whole_number(2, 0, 30, "the level")
    lat, lon, level = call.args
    # Spark reports a value that is not a number better than a worker
    return f"{call.function.name}({', '.join(fill('CAST(:v AS DOUBLE)', v=one) for one in (lat, lon, level))})"


FUNCTIONS = (
    Function(
        "Distance",
        ("lat1 DOUBLE, lon1 DOUBLE, lat2 DOUBLE, lon2 DOUBLE -> DOUBLE",),
        "Kilometres between two points in degrees, on a sphere of 6371 km.",
        "Distance(48.8566, 2.3522, 51.5074, 0.1278)",
        "334.5761379805",
        _distance,
    ),
    Function(
        "GeoHash",
        ("lat DOUBLE, lon DOUBLE, length INT -> STRING",),
        "The geohash of a point, 1 to 12 characters long. NULL for a point that is not on Earth or another length.",
        "GeoHash(-6.170024, 106.8243203, 6)",
        "qqguyu",
        _geohash,
    ),
    Function(
        "S2Id",
        ("lat DOUBLE, lon DOUBLE, level INT -> STRING",),
        "The id of the S2 cell around a point, as a signed decimal number; levels are 0 to 30. NULL for a point that "
        "is not on Earth or another level.",
        "S2Id(-6.170024, 106.8243203, 13)",
        "3344474489181175808",
        _s2_id,
        Arrow(cell_id, "string"),
    ),
    Function(
        "S2AreaInKm2",
        ("id STRING -> DOUBLE",),
        "The area of an S2 cell in square kilometres; the Earth has 510,072,000. NULL for an invalid id.",
        "S2AreaInKm2('3267730965564227584')",
        "909.97058",
        None,
        Arrow(cell_area, "double"),
    ),
)
