from __future__ import annotations

from pathlib import Path

import pytest

from headrace.core.errors import ProjectError
from headrace.project.yaml_tree import Tree, dotted, load_tree, merge, parse_tree, parse_value, subtree


def tree(text: str) -> Tree:
    return parse_tree(text, "f.yaml")


def lines(found: Tree, *path: str | int) -> int | None:
    origin = found.origin(path)
    return None if origin is None else origin.line


def test_every_value_remembers_its_line() -> None:
    found = tree("a: 1\nb:\n  - x\n  - y: 2\n    z: 3\n")
    assert (lines(found, "a"), lines(found, "b"), lines(found, "b", 0), lines(found, "b", 1, "z")) == (1, 2, 3, 5)
    assert str(found.origin(("b", 1, "z"))) == "f.yaml:5 (b[1].z)"


def test_a_value_that_is_not_written_has_the_place_of_its_parent() -> None:
    assert str(tree("a:\n  b: 1").origin(("a", "c"))) == "f.yaml:1 (a.c)"


def test_paths_are_written_with_dots_and_brackets() -> None:
    assert dotted(("flows", "counts", "sinks", 0, "path")) == "flows.counts.sinks[0].path"


def test_dates_stay_text_and_numbers_do_not() -> None:
    assert parse_value("2026-01-31", "x") == "2026-01-31"
    assert parse_value("[1, 2.5, true, ~, '3']", "x") == [1, 2.5, True, None, "3"]
    assert parse_value("", "x") is None


@pytest.mark.parametrize(
    ("text", "line", "code"),
    [
        ("a: [1\nb: 2", 2, "bad-yaml"),
        ("a: 1\na: 2", 2, "duplicate-key"),
        ("a:\n  b: 1\n  b: 2", 3, "duplicate-key"),
        ("- 1", 1, "bad-yaml"),
        ("text", 1, "bad-yaml"),
        ("a: 1\n--- \nb: 2", 2, "bad-yaml"),
        ("a: 1\nb: !custom x", 2, "bad-yaml"),
        ("a: 1\nb: !!int x", 2, "bad-yaml"),
        ("a: 1\n? [x]\n: 2", 2, "bad-yaml"),
        ("a: 1\nb: \x00", 2, "bad-yaml"),
        ("a: 1\n<<: 5", 2, "bad-yaml"),
        ("a: *nowhere", 1, "bad-yaml"),
    ],
)
def test_broken_yaml_is_refused_with_its_line(text: str, line: int, code: str) -> None:
    with pytest.raises(ProjectError) as caught:
        tree(text)
    assert caught.value.code == code
    assert caught.value.where is not None
    assert caught.value.where.line == line
    assert caught.value.hint


def test_a_reference_without_quotes_in_brackets_is_explained() -> None:
    for text in ("a: {b: 1, rate: ${RATE}}", "a:\n  - {b: x${RATE}, c: 1}", "a: [${RATE}]"):
        with pytest.raises(ProjectError) as caught:
            tree(text)
        assert "put references in quotes" in str(caught.value.hint), text
    with pytest.raises(ProjectError) as caught:
        tree('a: {b: "${RATE}"')
    assert "check indentation" in str(caught.value.hint)


def test_aliases_and_merge_keys_work() -> None:
    found = tree("base: &b {x: 1, y: {z: 2}}\nother: &o {x: 8, w: 9}\nmade:\n  <<: [*b, *o]\n  y: 3\nsame: *b\n")
    assert found.data["made"] == {"x": 1, "w": 9, "y": 3}
    assert found.data["same"] == {"x": 1, "y": {"z": 2}}
    assert (lines(found, "made"), lines(found, "made", "x"), lines(found, "made", "y")) == (3, 1, 5)
    assert ("made", "y", "z") not in found.origins


def test_an_alias_bomb_is_refused_quickly() -> None:
    layers = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    layers += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    with pytest.raises(ProjectError, match="too many values"):
        tree("\n".join(layers))


@pytest.mark.parametrize("text", ["a: &a [*a]", "a: " + "[" * 300 + "]" * 300, "a: " + "[" * 50_000])
def test_endless_nesting_is_refused(text: str) -> None:
    with pytest.raises(ProjectError) as caught:
        tree(text)
    assert caught.value.code == "bad-yaml"


def test_files_are_bounded_and_must_be_text(tmp_path: Path) -> None:
    huge, binary = tmp_path / "huge.yaml", tmp_path / "binary.yaml"
    huge.write_bytes(b"#" * (4 * 1024 * 1024 + 1))
    binary.write_bytes(b"a: \xff\xfe")
    for file in (huge, binary):
        with pytest.raises(ProjectError) as caught:
            load_tree(file, file.name)
        assert caught.value.code == "bad-yaml"
    with pytest.raises(ProjectError) as caught:
        load_tree(tmp_path, "folder.yaml")  # read by an administrator too, this is not
    assert (caught.value.code, str(caught.value.where)) == ("file-unreadable", "folder.yaml")


def test_merging_replaces_values_and_their_places() -> None:
    base = tree("a: {x: 1, y: [1, 2, 3]}\nb: 2\n")
    over = parse_tree("\n\na:\n  y: [9]\nc: 3\n", "over.yaml")
    found = merge(base, over)
    assert found.data == {"a": {"x": 1, "y": [9]}, "b": 2, "c": 3}
    assert str(found.origin(("a", "x"))) == "f.yaml:1 (a.x)"
    assert str(found.origin(("a", "y", 0))) == "over.yaml:4 (a.y[0])"
    assert ("a", "y", 2) not in found.origins
    assert base.data["a"]["y"] == [1, 2, 3]


def test_a_part_of_a_tree_can_be_laid_over_the_whole() -> None:
    whole = tree("a: {x: 1}\nprofiles:\n  dev:\n    a:\n      x: 2\n      y: {z: 3}\n")
    found = merge(whole, subtree(whole, ("profiles", "dev")), at=("profiles", "dev"))
    assert found.data["a"] == {"x": 2, "y": {"z": 3}}
    assert (lines(found, "a"), lines(found, "a", "x"), lines(found, "a", "y", "z")) == (1, 5, 6)


def test_a_component_of_another_type_is_replaced_whole() -> None:
    base = tree("streams: {a: {source: {type: files, path: in}, format: raw}}\nvariables: {type: a, b: 1}\n")
    over = tree("streams: {a: {source: {type: kafka, topic: t}}}\nvariables: {type: c}\n")
    found = merge(base, over).data
    assert found["streams"]["a"] == {"source": {"type": "kafka", "topic": "t"}, "format": "raw"}
    assert found["variables"] == {"type": "c", "b": 1}
    same = merge(base, tree("streams: {a: {source: {path: elsewhere}}}")).data["streams"]["a"]["source"]
    assert same == {"type": "files", "path": "elsewhere"}
