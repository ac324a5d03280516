"""Reads the configuration of Dagger: a Java properties file, an env file or a shell script of exports."""

from __future__ import annotations

import json
import re

from headrace.core.errors import Origin, ProjectError

_ASSIGNMENT = re.compile(r"\s*(?:export\s+)?([A-Za-z_][A-Za-z0-9_.]*)\s*[=:]\s*")
_JAVA_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def read_properties(text: str, name: str) -> dict[str, str]:
    """The values by key; the last one wins. A value may be quoted, continue after a backslash, or be JSON."""
    settings: dict[str, str] = {}
    position = 0
    while position < len(text):
        end = _line_end(text, position)
        if text[position:end].strip()[:1] in ("", "#", "!"):
            position = end + 1
            continue
        match = _ASSIGNMENT.match(text, position, end)
        if match is None:
            raise ProjectError(
                "migrate-unreadable",
                f"this line is not a setting: '{text[position:end].strip()[:40]}'",
                where=Origin(name, text.count("\n", 0, position) + 1),
                hint="expected KEY=value; a multi-line value needs quotes, or a backslash at the end of each line",
            )
        settings[match[1]], position = _value(text, match.end(), name)
    return settings


def _line_end(text: str, position: int) -> int:
    end = text.find("\n", position)
    return len(text) if end < 0 else end


def _value(text: str, position: int, name: str) -> tuple[str, int]:
    """A value, and the start of the next line."""
    if text[position : position + 1] in ("'", '"'):
        return _quoted(text, position, name)
    if text[position : position + 1] in ("[", "{"):
        value_and_next = _json(text, position)
        if value_and_next is not None:
            return value_and_next
    return _plain(text, position)


def _quoted(text: str, position: int, name: str) -> tuple[str, int]:
    """One shell word: a sequence of quoted and unquoted pieces."""
    start, pieces = position, []
    while position < len(text) and not text[position].isspace():
        char = text[position]
        if char not in "'\"":
            pieces.append(text[position + 1] if char == "\\" else char)
            position += 2 if char == "\\" else 1
            continue
        body = r"'([^']*)'" if char == "'" else r'"((?:[^"\\]|\\.)*)"'
        match = re.compile(body, re.DOTALL).match(text, position)
        if match is None:
            where = Origin(name, text.count("\n", 0, start) + 1)
            raise ProjectError("migrate-unreadable", f"a {char} is not closed", where=where, hint="check the quotes")
        pieces.append(match[1] if char == "'" else re.sub(r'\\(["\\$`])|\\\n', r"\1", match[1]))
        position = match.end()
    return "".join(pieces), _line_end(text, position) + 1


def _json(text: str, position: int) -> tuple[str, int] | None:
    """A JSON document of any number of lines."""
    try:
        _, end = json.JSONDecoder(strict=False).raw_decode(text, position)
    except ValueError:
        return None
    return text[position:end], _line_end(text, end) + 1


def _plain(text: str, position: int) -> tuple[str, int]:
    """A value of a properties file: the rest of the line, and the next lines after a backslash."""
    lines = []
    while True:
        end = _line_end(text, position)
        line = text[position:end]
        continues = (len(line) - len(line.rstrip("\\"))) % 2 == 1 and end < len(text)
        lines.append(line[:-1] if continues else line)
        position = end + 1
        if not continues:
            break
        while position < len(text) and text[position] in " \t":
            position += 1
    return re.sub(r"\\(u[0-9a-fA-F]{4}|.)", _unescaped, "".join(lines)).strip(), position


def _unescaped(match: re.Match[str]) -> str:
    char = match[1]
    return chr(int(char[1:], 16)) if len(char) == 5 else _JAVA_ESCAPES.get(char, char)
