"""Features for a feature store: a key, its value in one of eight typed slots, and the key again as name."""

from __future__ import annotations

from headrace.core.errors import did_you_mean
from headrace.functions.function import Argument, Function, FunctionCall
from headrace.functions.template import fill

# slot: its Spark type, its name in Dagger, and the Spark types that it holds by default
_SLOTS = {
    "bytes_value": ("BINARY", "ByteType", ("binary",)),
    "string_value": ("STRING", "StringType", ("string",)),
    "int32_value": ("INT", "IntegerType", ("tinyint", "smallint", "int")),
    "int64_value": ("BIGINT", "LongType", ("bigint",)),
    "double_value": ("DOUBLE", "DoubleType", ("double",)),
    "float_value": ("FLOAT", "FloatType", ("float",)),
    "bool_value": ("BOOLEAN", "BooleanType", ("boolean",)),
    "timestamp_value": ("TIMESTAMP", "TimestampType", ("timestamp",)),
}
_REFUSED = (
    "WHEN NOT (:known) THEN raise_error(concat('Features: there is no slot for a value of type ', typeof(:v), "
    "'; cast it, or name the slot with FeaturesWithType')) "
)
_BY_TYPE = {name.lower(): slot for slot, (_, name, _) in _SLOTS.items()}


def _feature(key: Argument, slots: list[str], value: Argument) -> str:
    row = "named_struct('key', CAST(:key AS STRING), 'value', :value, 'name', CAST(:key AS STRING))"
    return fill(row, key=key, value=fill(f"named_struct({', '.join(slots)})", v=value))


def _cast(kind: str) -> str:
    # cast to a string first, which works for a value of any type
    return f"CAST(CAST(:v AS STRING) AS {kind})"


def _by_own_type(key: Argument, value: Argument) -> str:
    """The value in the slot of its type, which Spark knows when it plans; a type without a slot is an error."""
    slots, known = [], ["typeof(:v) = 'void'"]
    for slot, (kind, _, types) in _SLOTS.items():
        listed = ", ".join(f"'{one}'" for one in types)
        fits = f"typeof(:v) IN ({listed})"
        if slot == "double_value":
            fits += " OR typeof(:v) LIKE 'decimal%'"
        known.append(fits)
        slots.append(f"'{slot}', CASE WHEN {fits} THEN {_cast(kind)} {_REFUSED if slot == 'string_value' else ''}END")
    slots = [slot.replace(":known", " OR ".join(known)) for slot in slots]
    return _feature(key, slots, value)


def _by_named_type(call: FunctionCall, index: int) -> str:
    key, value = call.args[index], call.args[index + 1]
    word = call.written(index + 2, "a type")
    wanted = _BY_TYPE.get(word.lower())
    if wanted is None:
        names = [name for _, name, _ in _SLOTS.values()]
        raise call.error(f"unknown type '{word}'", did_you_mean(word, names, "types"))
    slots = [
        f"'{slot}', {_cast(kind)}" if slot == wanted else f"'{slot}', CAST(NULL AS {kind})"
        for slot, (kind, _, _) in _SLOTS.items()
    ]
    return _feature(key, slots, value)


def _groups(call: FunctionCall, size: int) -> range:
    if call.distinct or len(call.args) % size:
        what = "key and value" if size == 2 else "key, value and type"
        raise call.error(f"the arguments come {size} by {size}: {what}; there are {len(call.args)}")
    return range(0, len(call.args), size)


def _features(call: FunctionCall) -> str:
    pairs = [_by_own_type(call.args[index], call.args[index + 1]) for index in _groups(call, 2)]
    return f"flatten({_collected(call, ', '.join(pairs))})"


def _collected(call: FunctionCall, features: str) -> str:
    return call.aggregate(f"collect_list(array({features}))")


def _with_type(call: FunctionCall) -> str:
    return ", ".join(_by_named_type(call, index) for index in _groups(call, 3))


_ROW = (
    f"Each feature is a struct of key, value and name; the value has the slots {', '.join(_SLOTS)}, all but one NULL. "
)
_NAMES = ", ".join(name for _, name, _ in _SLOTS.values())
_TYPES = f"Types are {_NAMES}, as literals; a value of another type fails the flow."

FUNCTIONS = (
    Function(
        "SingleFeatureWithType",
        ("key STRING, value T, type STRING, … -> ARRAY<STRUCT>",),
        f"The features of one row, three arguments each. {_ROW}{_TYPES}",
        "SingleFeatureWithType('fare', 12.5, 'DoubleType')[0].value.double_value",
        "12.5",
        lambda call: f"array({_with_type(call)})",
    ),
    Function(
        "Features",
        ("key STRING, value T, … -> ARRAY<STRUCT>",),
        f"The features of all rows of a group, two arguments each. {_ROW}The slot is that of the value's own "
        "type; a value of another type fails the flow.",
        "Features('city', city)",
        "[{city, {NULL, Paris, …}, city}, …]",
        _features,
        kind="aggregate",
    ),
    Function(
        "FeaturesWithType",
        ("key STRING, value T, type STRING, … -> ARRAY<STRUCT>",),
        f"The features of all rows of a group, three arguments each, without duplicates. {_ROW}{_TYPES}",
        "FeaturesWithType('city', city, 'StringType')",
        "[{city, {NULL, Paris, …}, city}, …]",
        lambda call: f"array_distinct(flatten({_collected(call, _with_type(call))}))",
        kind="aggregate",
    ),
)
