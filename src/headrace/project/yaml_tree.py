"""YAML as a tree of plain data with the file and line of every value."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from headrace.core.errors import Origin, ProjectError, ProjectErrors

Path_ = tuple[str | int, ...]

_MAX_BYTES = 4 * 1024 * 1024
# aliases are copied at each use, so a small file can expand to a huge tree
_MAX_VALUES = 100_000
_MAX_DEPTH = 100
_TEXT_TAGS = ("tag:yaml.org,2002:timestamp", "tag:yaml.org,2002:str")
_MERGE_TAG = "tag:yaml.org,2002:merge"
# in YAML the bracket of `{rate: ${RATE}}` starts a mapping
_BARE_REFERENCE = re.compile(r"[{\[](?:.*[:,\s])?[^\s\"',\[{]*\$\{")


@dataclass(frozen=True)
class TextOrigin(Origin):
    """The origin of a string on several lines of its file."""

    first_line: int = 1
    """The line of the file where `raw` begins."""
    raw: str = ""
    """The string as written in the file."""
    literal: bool = False
    """Whether lines of the string are lines of the file (`|`)."""

    def line_in_file(self, text: str, line: int, offset: int | None) -> int:
        """The line in the file of a position in the string, given as line and, if known, offset."""
        if self.literal:
            return self.first_line + line - 1
        # folding changes white space only: the n-th visible character is the same
        lines = text.splitlines(keepends=True)
        start = len("".join(lines[: line - 1])) if offset is None else offset
        visible = sum(not char.isspace() for char in text[:start])
        for index, char in enumerate(self.raw):
            if not char.isspace():
                if visible == 0:
                    return self.first_line + self.raw.count("\n", 0, index)
                visible -= 1
        return self.first_line


@dataclass(frozen=True)
class Tree:
    """Loaded data and the origin of every path in it. Immutable: edits return new trees."""

    data: dict[str, Any]
    origins: dict[Path_, Origin] = field(default_factory=dict)

    def origin(self, path: Path_) -> Origin | None:
        """The origin of the value at `path` or of its nearest parent."""
        for length in range(len(path), -1, -1):
            origin = self.origins.get(path[:length])
            if origin is not None:
                return Origin(origin.file, origin.line, dotted(path))
        return None


def dotted(path: Path_) -> str:
    """`flows.counts.sinks[0].path`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def load_tree(file: Path, shown: str, errors: list[ProjectError] | None = None) -> Tree:
    """The tree of a YAML file. `shown` is its name in errors; for `errors` see `parse_tree`."""
    try:
        if file.stat().st_size > _MAX_BYTES:
            raise _bad_yaml(shown, None, "is larger than 4 MB", "split it and use 'include:'")
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise _bad_yaml(shown, None, "is not UTF-8 text", "save it as UTF-8") from error
    except OSError as error:
        message = f"{shown} cannot be read: {error.strerror}"
        hint = "make it readable, e.g. chmod +r"
        raise ProjectError("file-unreadable", message, where=Origin(shown), hint=hint) from error
    return parse_tree(text, shown, errors)


def parse_tree(text: str, shown: str, errors: list[ProjectError] | None = None) -> Tree:
    """The tree of a YAML text, which must be a mapping.

    Duplicate keys are added to `errors`, so that the rest can be checked too; without `errors` they are raised.
    """
    node = _compose(text, shown)
    if node is None:
        return Tree({}, {(): Origin(shown, 1)})
    if not isinstance(node, yaml.MappingNode):
        raise _bad_yaml(shown, 1, "must be a mapping of keys to values", "start with e.g. 'project: rides'")
    builder = _Builder(shown, text)
    data = builder.build(node, ())
    if errors is None:
        builder.refuse_repeated()
    else:
        errors.extend(builder.repeated)
    return Tree(data, builder.origins)


def parse_value(text: str, shown: str) -> Any:
    """A single YAML value, such as the right side of `--set`."""
    node = _compose(text, shown)
    builder = _Builder(shown, text)
    data = None if node is None else builder.build(node, ())
    builder.refuse_repeated()
    return data


def _compose(text: str, shown: str) -> yaml.Node | None:
    hint = "check indentation, quotes and colons near this line"
    try:
        node: yaml.Node | None = yaml.compose(text, Loader=yaml.SafeLoader)
        return node
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else None
        if line is not None and _BARE_REFERENCE.search("".join(text.splitlines()[line - 1 : line])):
            hint = 'within { } and [ ] put references in quotes: {rate: "${RATE}"}'
        raise _bad_yaml(shown, line, f"is not valid YAML: {error.problem}", hint) from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise _bad_yaml(shown, line, "has a character that YAML does not allow", "remove it") from error
    except RecursionError:
        raise _bad_yaml(shown, None, "is nested too deeply", "flatten it") from None


def _bad_yaml(shown: str, line: int | None, problem: str, hint: str) -> ProjectError:
    return ProjectError("bad-yaml", f"{shown} {problem}", where=Origin(shown, line), hint=hint)


class _Builder:
    """Builds plain data from YAML nodes and records the origin of each value."""

    def __init__(self, shown: str, text: str) -> None:
        self.shown = shown
        self.text = text
        self.origins: dict[Path_, Origin] = {}
        self.repeated: list[ProjectError] = []
        """Duplicate keys; the first one is used."""
        self.built = 0
        self.scalars = yaml.SafeLoader("")

    def build(self, node: yaml.Node, path: Path_) -> Any:
        """The data of a node and its children."""
        self.built += 1
        if self.built > _MAX_VALUES or len(path) > _MAX_DEPTH:
            line = node.start_mark.line + 1
            raise _bad_yaml(self.shown, line, "has too many values or levels", "use fewer aliases ('*name') here")
        self.origins[path] = self._origin(node, path)
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.build(child, (*path, index)) for index, child in enumerate(node.value)]
        return self._scalar(node)

    def refuse_repeated(self) -> None:
        """Raise the errors about duplicate keys, if any."""
        if self.repeated:
            raise ProjectErrors(self.repeated)

    def _scalar(self, node: yaml.Node) -> Any:
        # dates stay strings, as in JSON: kinds parse their own times
        if node.tag in _TEXT_TAGS:
            return node.value
        try:
            return self.scalars.construct_object(node)
        except (yaml.YAMLError, ValueError) as error:
            line = node.start_mark.line + 1
            tag = node.tag.rpartition(":")[2]
            raise _bad_yaml(self.shown, line, f"has a value that is not a YAML '{tag}'", "put it in quotes") from error

    def _origin(self, node: yaml.Node, path: Path_, key: yaml.Node | None = None) -> Origin:
        line = (key or node).start_mark.line + 1
        start, end = node.start_mark, node.end_mark
        if not isinstance(node, yaml.ScalarNode) or start.line == end.line:
            return Origin(self.shown, line, dotted(path))
        raw, first = self.text[start.index : end.index], start.line + 1
        if node.style in ("|", ">"):  # the string begins on the next line
            raw, first = raw.partition("\n")[2], first + 1
        elif node.style in ("'", '"'):
            raw = raw[1:]
        return TextOrigin(self.shown, line, dotted(path), first, raw, node.style == "|")

    def _mapping(self, node: yaml.MappingNode, path: Path_) -> dict[str, Any]:
        result: dict[str, Any] = {}
        own = [(key, value) for key, value in node.value if key.tag != _MERGE_TAG]
        for key, value in node.value:
            if key.tag == _MERGE_TAG:
                self._merge_key(value, path, result)
        lines: dict[str, int] = {}
        for key_node, value_node in own:
            key = self._key(key_node)
            if key in lines:
                self._note_repeated(key_node, (*path, key), lines[key])
                continue
            lines[key] = key_node.start_mark.line + 1
            self._forget((*path, key))
            result[key] = self.build(value_node, (*path, key))
            self.origins[(*path, key)] = self._origin(value_node, (*path, key), key_node)
        return result

    def _key(self, node: yaml.Node) -> str:
        if not isinstance(node, yaml.ScalarNode):
            line = node.start_mark.line + 1
            raise _bad_yaml(self.shown, line, "has a key that is not a name", "a key is one word before a colon")
        return str(node.value)

    def _note_repeated(self, node: yaml.Node, path: Path_, first: int) -> None:
        message = f"duplicate key '{path[-1]}' (first on line {first})"
        where = Origin(self.shown, node.start_mark.line + 1, dotted(path))
        self.repeated.append(ProjectError("duplicate-key", message, where=where, hint="keep one of them"))

    def _merge_key(self, node: yaml.Node, path: Path_, result: dict[str, Any]) -> None:
        """`<<: *base`: the keys of another mapping (the first of several wins), unless set here."""
        sources = node.value if isinstance(node, yaml.SequenceNode) else [node]
        here = self.origins[path]
        for source in reversed(sources):
            if not isinstance(source, yaml.MappingNode):
                line = node.start_mark.line + 1
                raise _bad_yaml(self.shown, line, "has a '<<' that is not a mapping", "write <<: *name of a mapping")
            result.update(self.build(source, path))
            self.origins[path] = here

    def _forget(self, path: Path_) -> None:
        for child in [p for p in self.origins if len(p) > len(path) and p[: len(path)] == path]:
            del self.origins[child]


def merge(base: Tree, over: Tree, at: Path_ = ()) -> Tree:
    """Merge `over` into `base`: mappings are merged, all other values replaced.

    A component of another `type` is replaced too: options of Kafka do not apply to files. `at` is the path of the
    values of `over` in its origins.
    """
    origins = dict(base.origins)
    data = _merge(base.data, over.data, (), over, origins, at)
    return Tree(data, origins)


def _merge(base: Any, over: Any, path: Path_, tree: Tree, origins: dict[Path_, Origin], at: Path_) -> Any:
    if isinstance(base, dict) and isinstance(over, dict) and not _another_kind(base, over, path):
        merged = dict(base)
        for key, value in over.items():
            merged[key] = _merge(base.get(key), value, (*path, key), tree, origins, at)
        return merged
    for child in [p for p in origins if p[: len(path)] == path]:
        del origins[child]
    for child, origin in tree.origins.items():
        if child[: len(at) + len(path)] == (*at, *path):
            origins[child[len(at) :]] = origin
    return over


def _another_kind(base: dict[str, Any], over: dict[str, Any], path: Path_) -> bool:
    """Whether both are components of different kinds. Variables are excluded: one may be named `type`."""
    return path[:1] != ("variables",) and "type" in base and over.get("type", base["type"]) != base["type"]


def subtree(tree: Tree, path: Path_) -> Tree:
    """The mapping at `path` with the origins of the whole tree (for `merge` with `at=path`)."""
    data: Any = tree.data
    for part in path:
        data = data[part]
    return Tree(data if isinstance(data, dict) else {}, tree.origins)
