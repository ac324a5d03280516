"""The fields of generated rows. Every value is a pure function of the seed, the field's name and the row's number."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import Discriminator, Field, Tag, ValidationInfo, field_validator

from headrace.core.component import Options
from headrace.core.schema import TIMESTAMP
from headrace.sources.generate.words import CITIES, PEOPLE, STREETS

Number = TypeVar("Number", int, float)
Share = Annotated[float, Field(ge=0, le=1)]
_KILOMETRES_PER_DEGREE = 111.32


@dataclass(frozen=True)
class Draw:
    """The random numbers of one field, for a range of rows."""

    index: NDArray[np.int64]
    event: NDArray[np.int64]
    arrival: NDArray[np.int64]
    seed: int
    field: str
    skew: float

    def bits(self, purpose: str = "value") -> NDArray[np.uint64]:
        """64 random-looking bits per row, independent for every field and purpose."""
        digest = hashlib.blake2b(f"{self.seed}/{self.field}/{purpose}".encode(), digest_size=8).digest()
        return _mix(self.index.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.frombuffer(digest, np.uint64)[0])

    def unit(self, purpose: str = "value") -> NDArray[np.float64]:
        """A number in [0, 1) per row."""
        return (self.bits(purpose) >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def pick(self, count: int, weights: list[float] | None = None) -> NDArray[np.int64]:
        """A number in [0, count) per row, by weight; skew makes the first ones the more frequent."""
        share = np.ones(count) if weights is None else np.asarray(weights, np.float64)
        share = share / np.arange(1, count + 1) ** self.skew
        bounds = np.cumsum(share) / share.sum()
        return np.minimum(np.searchsorted(bounds, self.unit(), side="right"), count - 1)


def _mix(bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finalizer of SplitMix64: neighbouring numbers become unrelated ones."""
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


class GeneratedField(Options):
    """One field: the key that names its kind, and what that kind needs."""

    nulls: Share = Field(0.0, description="Share of rows in which the field is null.")

    @property
    @abstractmethod
    def arrow_type(self) -> pa.DataType:
        """The type of the values."""

    @abstractmethod
    def values(self, draw: Draw) -> pa.Array:
        """The values of a range of rows, before some of them become null."""

    def column(self, draw: Draw) -> pa.Array:
        """The values of a range of rows."""
        values = self.values(draw)
        if not self.nulls:
            return values
        return pc.if_else(pa.array(draw.unit("null") < self.nulls), pa.scalar(None, values.type), values)


def _ordered(bounds: tuple[Number, Number]) -> tuple[Number, Number]:
    if bounds[0] > bounds[1]:
        raise ValueError(f"the least value {bounds[0]} is greater than the greatest {bounds[1]}")
    return bounds


class SequenceField(GeneratedField):
    """The row's number."""

    sequence: str | int = Field(
        description="Text in which {} stands for the row's number (0, 1, …), or the number of the first row.",
        examples=["order-{}", 1],
    )

    @property
    def arrow_type(self) -> pa.DataType:
        """Text for a template, else a number."""
        return pa.string() if isinstance(self.sequence, str) else pa.int64()

    def values(self, draw: Draw) -> pa.Array:
        """One more than the row before."""
        if isinstance(self.sequence, str):
            return _filled(self.sequence, draw.index)
        return pa.array(draw.index + self.sequence)


class KeyField(GeneratedField):
    """One of a number of keys, e.g. of 50 drivers."""

    key: str = Field(description="Text in which {} stands for the key's number.", examples=["driver-{}"])
    of: int = Field(100, ge=1, description="The number of different keys.")

    @property
    def arrow_type(self) -> pa.DataType:
        return pa.string()

    def values(self, draw: Draw) -> pa.Array:
        """A key per row; `skew` makes the first ones hot."""
        return _filled(self.key, draw.pick(self.of))


class ChoiceField(GeneratedField):
    """One of a list of values."""

    choice: list[bool] | list[int] | list[float] | list[str] = Field(
        description="The values, all of one type.", min_length=1, examples=[["RIDE", "FOOD"]]
    )
    weights: list[Annotated[float, Field(gt=0)]] | None = Field(
        None, description="How often each value is chosen, relative to the others.", examples=[[3, 1]]
    )

    @field_validator("weights")
    @classmethod
    def _one_weight_per_value(cls, weights: list[float] | None, info: ValidationInfo) -> list[float] | None:
        values = info.data.get("choice", [])
        if weights is not None and len(weights) != len(values):
            raise ValueError(f"{len(values)} values need {len(values)} weights, not {len(weights)}")
        return weights

    @property
    def arrow_type(self) -> pa.DataType:
        """The type of the listed values."""
        return pa.array(self.choice).type

    def values(self, draw: Draw) -> pa.Array:
        """A value per row."""
        return pa.array(self.choice).take(pa.array(draw.pick(len(self.choice), self.weights)))


class IntegerField(GeneratedField):
    """A whole number."""

    integer: tuple[int, int] = Field(description="Least and greatest value.", examples=[[1, 100]])

    @field_validator("integer")
    @classmethod
    def _least_first(cls, bounds: tuple[int, int]) -> tuple[int, int]:
        return _ordered(bounds)

    @property
    def arrow_type(self) -> pa.DataType:
        return pa.int64()

    def values(self, draw: Draw) -> pa.Array:
        """Uniform numbers, bounds included."""
        low, high = self.integer
        return pa.array(low + (draw.unit() * (high - low + 1)).astype(np.int64))


class DecimalField(GeneratedField):
    """A number with a fraction."""

    decimal: tuple[float, float] = Field(description="Least and greatest value.", examples=[[2.5, 80]])
    digits: int = Field(2, ge=0, le=12, description="Digits after the point.")

    @field_validator("decimal")
    @classmethod
    def _least_first(cls, bounds: tuple[float, float]) -> tuple[float, float]:
        return _ordered(bounds)

    @property
    def arrow_type(self) -> pa.DataType:
        return pa.float64()

    def values(self, draw: Draw) -> pa.Array:
        low, high = self.decimal
        return pa.array(np.round(low + draw.unit() * (high - low), self.digits))


class BooleanField(GeneratedField):
    """A boolean."""

    boolean: Share = Field(description="Share of rows in which it is true.", examples=[0.5])

    @property
    def arrow_type(self) -> pa.DataType:
        return pa.bool_()

    def values(self, draw: Draw) -> pa.Array:
        """True in the given share of rows."""
        return pa.array(draw.unit() < self.boolean)


class TimeField(GeneratedField):
    """The time of the row."""

    time: Literal["event", "arrival"] = Field(description="`event` is up to `disorder` before `arrival`.")

    @property
    def arrow_type(self) -> pa.DataType:
        return TIMESTAMP

    def values(self, draw: Draw) -> pa.Array:
        """The row's time, in microseconds."""
        return pa.array(draw.event if self.time == "event" else draw.arrival).cast(TIMESTAMP)


class ConstantField(GeneratedField):
    """The same value in every row."""

    constant: bool | int | float | str = Field(description="The value.", examples=["EUR"])

    @property
    def arrow_type(self) -> pa.DataType:
        """The value's type."""
        return pa.scalar(self.constant).type

    def values(self, draw: Draw) -> pa.Array:
        return pa.repeat(self.constant, len(draw.index))


class UuidField(GeneratedField):
    """A random (version 4) UUID, different in every row."""

    uuid: Literal[True] = Field(description="Always `true`.")

    @property
    def arrow_type(self) -> pa.DataType:
        return pa.string()

    def values(self, draw: Draw) -> pa.Array:
        """UUIDs of 122 drawn bits."""
        octets = np.stack([draw.bits("high"), draw.bits("low")], axis=1).astype(">u8").view(np.uint8)
        octets[:, 6] = octets[:, 6] & 0x0F | 0x40
        octets[:, 8] = octets[:, 8] & 0x3F | 0x80
        text = octets.tobytes().hex()
        rows = (text[at : at + 32] for at in range(0, len(text), 32))
        return pa.array([f"{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-{h[20:]}" for h in rows], pa.string())


class NameField(GeneratedField):
    """A name from a small list."""

    name: Literal["person", "city", "street"] = Field(description="What the name is of.")

    @property
    def arrow_type(self) -> pa.DataType:
        return pa.string()

    def values(self, draw: Draw) -> pa.Array:
        """A name per row."""
        names = {"person": PEOPLE, "city": CITIES, "street": STREETS}[self.name]
        return pa.array(names).take(pa.array(draw.pick(len(names))))


class PointField(GeneratedField):
    """A place on the map: a struct of `lat` and `lon`."""

    point: tuple[float, float] = Field(description="Latitude and longitude of the centre.", examples=[[52.52, 13.405]])
    radius_km: float = Field(5.0, gt=0, description="How far from the centre it may be, in kilometres.")

    @property
    def arrow_type(self) -> pa.DataType:
        return pa.struct([("lat", pa.float64()), ("lon", pa.float64())])

    def values(self, draw: Draw) -> pa.Array:
        """Places spread evenly over the circle."""
        angle = draw.unit("angle") * 2 * np.pi
        distance = np.sqrt(draw.unit("distance")) * self.radius_km / _KILOMETRES_PER_DEGREE
        lat = self.point[0] + distance * np.sin(angle)
        lon = self.point[1] + distance * np.cos(angle) / np.cos(np.radians(self.point[0]))
        return pa.StructArray.from_arrays(
            [pa.array(np.round(lat, 6)), pa.array(np.round(lon, 6))], names=["lat", "lon"]
        )


def _filled(template: str, numbers: NDArray[np.int64]) -> pa.Array:
    before, _, after = template.partition("{}")
    return pc.binary_join_element_wise(before, pa.array(numbers).cast(pa.string()), after, "")


_FIELDS: dict[str, type[GeneratedField]] = {
    "sequence": SequenceField,
    "key": KeyField,
    "choice": ChoiceField,
    "integer": IntegerField,
    "decimal": DecimalField,
    "boolean": BooleanField,
    "time": TimeField,
    "constant": ConstantField,
    "uuid": UuidField,
    "name": NameField,
    "point": PointField,
}


def _field_kind(value: Any) -> str | None:
    keys = value.keys() if isinstance(value, dict) else vars(value) if isinstance(value, GeneratedField) else ()
    return next((name for name in _FIELDS if name in keys), None)


AnyField = Annotated[
    Annotated[SequenceField, Tag("sequence")]
    | Annotated[KeyField, Tag("key")]
    | Annotated[ChoiceField, Tag("choice")]
    | Annotated[IntegerField, Tag("integer")]
    | Annotated[DecimalField, Tag("decimal")]
    | Annotated[BooleanField, Tag("boolean")]
    | Annotated[TimeField, Tag("time")]
    | Annotated[ConstantField, Tag("constant")]
    | Annotated[UuidField, Tag("uuid")]
    | Annotated[NameField, Tag("name")]
    | Annotated[PointField, Tag("point")],
    Discriminator(
        _field_kind,
        custom_error_type="generated-field",
        custom_error_message=f"a field has one of the keys {', '.join(_FIELDS)}, e.g. {{choice: [RIDE, FOOD]}}",
    ),
]
