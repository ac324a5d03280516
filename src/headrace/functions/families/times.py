"""Times in time zones. Results do not depend on the time zone of the session."""

from __future__ import annotations

import re
import zoneinfo
from itertools import groupby

from headrace.core.errors import nearest
from headrace.functions.function import Argument, Function, FunctionCall
from headrace.functions.template import fill, literal

_OFFSET = re.compile(r"(UTC|GMT|UT)?[+-]\d{1,2}(:?\d{2}(:?\d{2})?)?|Z")
# names of three letters that Java still supports
_SHORT = re.compile(
    "ACT|AET|AGT|ART|AST|BST|CAT|CNT|CST|CTT|[BE]ET|EAT|ECT|EST|HST|I[ES]T|JST|M[IS]T|N[ES]T|P[LNRS]T|[SV]ST"
)


def check_zone(call: FunctionCall, index: int) -> None:
    """Refuse an unknown time zone literal."""
    zone = call.text(index)
    known = zoneinfo.available_timezones()
    if zone is None or not known or zone in known or _SHORT.fullmatch(zone) or _OFFSET.fullmatch(zone):
        return
    guess = nearest(zone, known)
    hint = f"did you mean '{guess}'?" if guess else "zones are names such as Asia/Kolkata or offsets such as +05:30"
    raise call.error(f"unknown time zone '{zone}'", hint)


_DAY = "date_from_unix_date(CAST(floor(unix_seconds(from_utc_timestamp(:at, :tz)) / 86400) AS INT))"
_MIDNIGHT = "to_utc_timestamp(timestamp_seconds(CAST(unix_date({day}) AS BIGINT) * 86400), :tz)"


def _boundary(day: str) -> str:
    """The start of a day that is computed from the day of `:at`, both in the zone."""
    return _MIDNIGHT.format(day=day.format(day=_DAY))


_MONTH = _boundary("trunc({day}, 'MONTH')")
_NEXT_MONTH = _boundary("add_months(trunc({day}, 'MONTH'), 1)")
_WEEK = _boundary("trunc({day}, 'WEEK')")
_NEXT_WEEK = _boundary("date_add(trunc({day}, 'WEEK'), 7)")


def _of_seconds(template: str, call: FunctionCall) -> str:
    check_zone(call, 1)
    return fill(template.replace(":at", "timestamp_seconds(CAST(:s AS BIGINT))"), s=call.args[0], tz=call.args[1])


def _of_millis(template: str, call: FunctionCall) -> str:
    check_zone(call, 1)
    return fill(template.replace(":at", "timestamp_millis(CAST(:s AS BIGINT))"), s=call.args[0], tz=call.args[1])


def _time_in_date(call: FunctionCall) -> str:
    zone: Argument | str = "'UTC'"
    if len(call.args) == 4:
        check_zone(call, 3)
        zone = call.args[3]
    seconds, hour, minute = call.args[:3]
    day = _DAY.replace(":at", "timestamp_seconds(CAST(:s AS BIGINT))")
    local = f"CAST(unix_date({day}) AS BIGINT) * 86400 + CAST(:h AS BIGINT) * 3600 + CAST(:m AS BIGINT) * 60"
    template = f"unix_seconds(to_utc_timestamp(timestamp_seconds({local}), :tz))"
    return fill(template, s=seconds, h=hour, m=minute, tz=zone)


_LOCAL = "from_utc_timestamp(:t, :tz)"
# date_format uses the time zone of the session
_SHOWN = f"to_utc_timestamp({_LOCAL}, current_timezone())"
_MINUTES = f"CAST((unix_seconds({_LOCAL}) - unix_seconds(:t)) / 60 AS INT)"
_SIGN = f"CASE WHEN {_MINUTES} < 0 THEN '-' ELSE '+' END"
_COLON = f"format_string('%s%02d:%02d', {_SIGN}, abs({_MINUTES}) div 60, abs({_MINUTES}) % 60)"
_PLAIN = f"format_string('%s%02d%02d', {_SIGN}, abs({_MINUTES}) div 60, abs({_MINUTES}) % 60)"
_HOURS = f"format_string('%s%02d', {_SIGN}, abs({_MINUTES}) div 60)"
_ZERO = f"CASE WHEN {_MINUTES} = 0 THEN 'Z' ELSE {{}} END"
_COMPUTED = {
    "u": f"CAST(weekday({_SHOWN}) + 1 AS STRING)",
    "F": f"CAST(CAST((day({_SHOWN}) + 6) / 7 AS INT) AS STRING)",
    "V": "CAST(:tz AS STRING)",
}
_OFFSETS = {
    "Z": _PLAIN, "ZZ": _PLAIN, "ZZZ": _PLAIN, "ZZZZZ": _COLON, "X": _ZERO.format(_HOURS), "XX": _ZERO.format(_PLAIN),
    "XXX": _ZERO.format(_COLON), "x": _HOURS, "xx": _PLAIN, "xxx": _COLON,
}  # fmt: skip
_NATIVE = "GyMLDdEHkKhmsQq"
_PIECE = re.compile(r"'(?:[^']|'')*'|([A-Za-z])\1*|[^A-Za-z']+")


def _piece(call: FunctionCall, text: str) -> tuple[str, bool]:
    """A piece of a Java pattern as letters of Spark, or as an expression."""
    letter = text[0]
    if letter == "'" or not letter.isalpha():
        # old Java formats have no optional sections
        return text if letter == "'" else re.sub(r"[\[\]{}#]+", r"'\g<0>'", text), False
    if letter in _NATIVE:
        return text, False
    if letter == "a":
        return "a", False
    if letter == "S":
        if len(text) == 3:
            return text, False
        return f"format_string('%0{len(text)}d', CAST(floor(pmod(unix_micros(:t), 1000000) / 1000) AS INT))", True
    if letter in "Yw":
        return _week_based(text), True
    found = _OFFSETS.get(text) or _COMPUTED.get(letter)
    if found is None:
        hint = "names of zones are not to be had: VV gives the zone as given, XXX its offset" if letter == "z" else None
        raise call.error(f"'{text}' in the pattern is not known", hint)
    return found, True


def _week_based(text: str) -> str:
    """The week-based year or the week number of ISO 8601."""
    if text[0] == "w":
        return f"format_string('%0{len(text)}d', extract(WEEK FROM {_SHOWN}))"
    if len(text) == 2:
        return f"format_string('%02d', extract(YEAROFWEEK FROM {_SHOWN}) % 100)"
    return f"format_string('%0{len(text)}d', extract(YEAROFWEEK FROM {_SHOWN}))"


def _format_time(call: FunctionCall) -> str:
    check_zone(call, 1)
    time, zone, pattern = call.args
    written = call.text(2)
    if written is None:
        return fill(f"date_format({_SHOWN}, regexp_replace(:p, 'a+', 'a'))", t=time, tz=zone, p=pattern)
    if "".join(found[0] for found in _PIECE.finditer(written)) != written:
        raise call.error(f'a quote in the pattern "{written}" is not closed')
    parts: list[str] = []
    natives: dict[str, str] = {}
    for computed, group in groupby((_piece(call, found[0]) for found in _PIECE.finditer(written)), lambda one: one[1]):
        texts = [text for text, _ in group]
        if computed:
            parts += texts
            continue
        name = f"p{len(natives)}"
        natives[name] = literal("".join(texts))
        parts.append(f"date_format({_SHOWN}, :{name})")
    whole = parts[0] if len(parts) == 1 else f"concat({', '.join(parts) or literal('')})"
    return fill(whole, t=time, tz=zone, **natives)


_ZONES = "Zones are names such as Asia/Kolkata or offsets such as +05:30; an unknown one is refused."

FUNCTIONS = (
    Function(
        "StartOfMonth",
        ("seconds BIGINT, zone STRING -> BIGINT",),
        f"The first second of the month of a time, both in Unix seconds. {_ZONES}",
        "StartOfMonth(1562224758, 'Asia/Kolkata')",
        "1561919400",
        lambda call: _of_seconds(f"unix_seconds({_MONTH})", call),
    ),
    Function(
        "EndOfMonth",
        ("seconds BIGINT, zone STRING -> BIGINT",),
        f"The last second of the month of a time, both in Unix seconds. {_ZONES}",
        "EndOfMonth(1562224758, 'Asia/Kolkata')",
        "1564597799",
        lambda call: _of_seconds(f"unix_seconds({_NEXT_MONTH}) - 1", call),
    ),
    Function(
        "StartOfWeek",
        ("milliseconds BIGINT, zone STRING -> BIGINT",),
        f"The first millisecond of the week of a time, both in Unix milliseconds; weeks begin on Monday. {_ZONES}",
        "StartOfWeek(1562224758000, 'Asia/Kolkata')",
        "1561919400000",
        lambda call: _of_millis(f"unix_millis({_WEEK})", call),
    ),
    Function(
        "EndOfWeek",
        ("milliseconds BIGINT, zone STRING -> BIGINT",),
        f"The last millisecond of the week of a time, both in Unix milliseconds; weeks end on Sunday. {_ZONES}",
        "EndOfWeek(1562224758000, 'Asia/Kolkata')",
        "1562524199999",
        lambda call: _of_millis(f"unix_millis({_NEXT_WEEK}) - 1", call),
    ),
    Function(
        "TimeInDate",
        (
            "seconds BIGINT, hour INT, minute INT -> BIGINT",
            "seconds BIGINT, hour INT, minute INT, zone STRING -> BIGINT",
        ),
        "A time of day on the date of a time, both in Unix seconds; without a zone in UTC. Hours from 24 on mean the "
        f"next day. A time that a clock change skips is shifted by the change. {_ZONES}",
        "TimeInDate(1562224758, 21, 0, 'Asia/Kolkata')",
        "1562254200",
        _time_in_date,
    ),
    Function(
        "TimestampFromUnix",
        ("seconds NUMBER -> TIMESTAMP",),
        "The timestamp of Unix seconds, which may have a fraction.",
        "TimestampFromUnix(1554101494)",
        "2019-04-01 06:51:34",
        lambda call: fill("timestamp_seconds(:s)", s=call.args[0].typed("BIGINT")),
    ),
    Function(
        "FormatTimeInZone",
        ("time TIMESTAMP, zone STRING, pattern STRING -> STRING",),
        "A time as text, in a zone, by a pattern of Java's SimpleDateFormat: yyyy-MM-dd HH:mm:ss, hh:mm aa, EEEE, XXX "
        f"and so on. Weeks (Y, w) are ISO weeks; names of zones (z) are refused. {_ZONES} A pattern that is computed "
        "may only have letters that Spark's date_format knows.",
        "FormatTimeInZone(timestamp_seconds(1607003114), 'Asia/Kolkata', 'hh:mm aa')",
        "07:15 PM",
        _format_time,
    ),
)
