"""The rules of the house, each guarded by a test, so that nobody has to remember them."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from headrace.core.component import Component
from headrace.core.kinds import FAMILIES, kinds
from headrace.project.model import ProjectSpec
from headrace.reference.files import stale
from headrace.reference.models import nested_models

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "headrace"
MODULES = sorted(SOURCE.rglob("*.py"))
KINDS = [(family, name, kind) for family in FAMILIES for name, kind in kinds(family).items()]
KIND_IDS = [f"{family}/{name}" for family, name, _ in KINDS]

# what makes an error: the place of the code among the arguments
ERROR_MAKERS = {
    "RequestError": 0,
    "ProjectError": 0,
    "SqlError": 0,
    "PydanticCustomError": 0,
    "refused": 0,
    "error": 0,
    "error_at": 1,
}
CODE = re.compile(r"[a-z]+(-[a-z0-9]+)*")

# written so that this file does not break its own rule
REGISTRIES = ["repo1." + "maven", "repo.maven" + ".apache", "pypi" + ".org", "files.python" + "hosted"]
MACHINE_PATHS = [r"(?<![\w./-])/" + place + r"/" for place in ("work", "home/[a-z]+", "root", "Users/[A-Za-z]+")]


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def calls(tree: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            yield name, node


@cache
def error_codes() -> dict[str, str]:
    """Every code in the source, with a file it is in."""
    found: dict[str, str] = {}
    for path in MODULES:
        for name, call in calls(parsed(path)):
            place = ERROR_MAKERS.get(name)
            argument = call.args[place] if place is not None and len(call.args) > place else None
            if (
                isinstance(argument, ast.Constant)
                and isinstance(argument.value, str)
                and CODE.fullmatch(argument.value)
            ):
                found[argument.value] = relative(path)
    return found


def tracked_files() -> list[Path]:
    """What is, or would be, in the repository."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if listed.returncode:
        pytest.skip("not a git work tree")
    return [ROOT / name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]


@pytest.mark.parametrize(("family", "name", "kind"), KINDS, ids=KIND_IDS)
def test_every_kind_has_a_page_a_test_and_words_for_all_its_keys(family: str, name: str, kind: type[Component]) -> None:
    assert (ROOT / "docs" / "reference" / family / f"{name}.md").is_file(), "run: make docs"
    assert (ROOT / "tests" / family / f"test_{name}.py").is_file()
    assert "\n" in (kind.__doc__ or ""), "the docstring states delivery, order and scale after its first line"
    assert kind.family == family
    for model in (kind, *nested_models(kind)):
        assert model.__doc__, model.__name__
        bare = [key for key, field in model.model_fields.items() if key != "type" and not field.description]
        assert not bare, f"{model.__name__}: no description"


def test_every_key_of_the_project_file_is_described() -> None:
    for model in (ProjectSpec, *nested_models(ProjectSpec)):
        assert [key for key, field in model.model_fields.items() if not field.description] == [], model.__name__


def test_generated_documentation_is_what_the_code_says() -> None:
    assert stale(ROOT) == [], "run: make docs"


def test_every_error_code_is_documented() -> None:
    documented = set(
        re.findall(r"`([a-z0-9-]+)`", (ROOT / "docs" / "reference" / "errors.md").read_text(encoding="utf-8"))
    )
    codes = error_codes()
    assert len(codes) > 50
    assert {code: file for code, file in codes.items() if code not in documented} == {}


def test_no_documented_error_code_is_gone() -> None:
    rows = re.findall(
        r"^\| (`[^|]*) \|", (ROOT / "docs" / "reference" / "errors.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    documented = {code for row in rows for code in re.findall(r"`([a-z0-9-]+)`", row)}
    made_elsewhere = {"wrong-type"}
    assert documented - set(error_codes()) - made_elsewhere == set()


def imported_at_load(tree: ast.Module) -> Iterator[str]:
    """Modules imported when the file is, not inside functions or for type checkers only."""
    for node in tree.body:
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=str() as module):
                yield module


def may_load_spark(path: Path) -> bool:
    """A private module and a helper of a kind may: they are loaded when they are used, which the next test shows."""
    room, *inside = path.relative_to(SOURCE).parts
    is_helper = path.name.startswith("_") or (room in FAMILIES and len(inside) > 1)
    return room == "engine" or (is_helper and path.name != "__init__.py")


def test_only_the_engine_loads_spark() -> None:
    found = [
        f"{relative(path)}: {name}"
        for path in MODULES
        if not may_load_spark(path)
        for name in imported_at_load(parsed(path))
        if name.split(".")[0] in ("pyspark", "py4j")
    ]
    assert found == []


def test_all_kinds_projects_and_plans_are_known_without_spark() -> None:
    code = "import sys, headrace.plan.planner, headrace.cli.main; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(("family", "name", "kind"), KINDS, ids=KIND_IDS)
def test_kinds_never_import_each_other(family: str, name: str, kind: type[Component]) -> None:
    tree = parsed(Path(str(sys.modules[kind.__module__].__file__)))
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
    others = {f"headrace.{f}.{n}" for f, n, _ in KINDS} - {f"headrace.{family}.{name}"}
    assert imported & others == set()


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def imports() -> dict[str, set[str]]:
    """The own modules that each module imports, also inside functions; not what only type checkers see."""
    known = {module_name(path) for path in MODULES}
    found: dict[str, set[str]] = {name: set() for name in known}
    for path in MODULES:
        for node in runtime_nodes(parsed(path)):
            match node:
                case ast.Import(names=names):
                    found[module_name(path)] |= {alias.name for alias in names} & known
                case ast.ImportFrom(module=str() as module, names=names) if module.startswith("headrace"):
                    inside = {f"{module}.{alias.name}" for alias in names}
                    found[module_name(path)] |= (inside & known) or ({module} & known)
    return found


def runtime_nodes(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        yield child
        yield from runtime_nodes(child)


def test_a_folder_has_at_most_twenty_modules() -> None:
    folders = Counter(relative(path.parent) for path in MODULES)
    assert {folder: count for folder, count in folders.items() if count > 20} == {}


def test_private_modules_are_imported_only_inside_their_package() -> None:
    found = []
    for importer, names in imports().items():
        for name in names:
            owner = re.split(r"\._(?!_)", name)[0]
            if owner != name and not (importer == owner or importer.startswith(f"{owner}.")):
                found.append(f"{importer}: {name}")
    assert found == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Also with imports inside functions: remove modules that import none of the rest, until none is left."""
    left = {name: set(names) - {name} for name, names in imports().items()}
    while free := [name for name, names in left.items() if not names & left.keys()]:
        for name in free:
            del left[name]
    assert left == {}


def test_a_class_name_means_one_thing() -> None:
    classes = Counter(
        node.name for path in MODULES for node in ast.walk(parsed(path)) if isinstance(node, ast.ClassDef)
    )
    assert {name: count for name, count in classes.items() if count > 1} == {}


# words of a private language; the field's own words are in the glossary of CONTRIBUTING.md
PRIVATE_WORDS = re.compile(
    r"\b(mend(s|ed|ing)?|told|somebody|nobody|anew|for eyes|who asks|ways? through python|goes on|go on|is away|"
    r"let in|twice is as good as once|takes its time|letterbook|what is there)\b",
    re.IGNORECASE,
)


def texts() -> Iterator[tuple[Path, str]]:
    """Every string and docstring of the source, and every page; all of them may be read by users."""
    for path in MODULES:
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield path, node.value
    for path in tracked_files():
        if path.suffix == ".md":
            yield path, path.read_text(encoding="utf-8")


def test_texts_are_in_plain_words() -> None:
    found = {(relative(path), match[0]) for path, text in texts() for match in PRIVATE_WORDS.finditer(text)}
    # a suffix in logs that stores have written
    assert found - {("src/headrace/sinks/endpoint/views.py", "anew")} == set()


def test_modules_are_small() -> None:
    lines = {relative(path): len(path.read_text(encoding="utf-8").splitlines()) for path in MODULES}
    assert {path: count for path, count in lines.items() if count > 450} == {}


def test_no_file_names_a_registry_or_a_path_of_some_machine() -> None:
    forbidden = re.compile("|".join([*map(re.escape, REGISTRIES), *MACHINE_PATHS]))
    found = []
    for path in tracked_files():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        found += [f"{relative(path)}: {match[0]}" for match in forbidden.finditer(text)]
    assert found == []
