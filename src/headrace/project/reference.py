"""The reference pages and the JSON schema, made from the models: `python -m headrace.project.reference [--check]`."""

from __future__ import annotations

import argparse
import inspect
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from headrace.core.component import Component
from headrace.core.durations import format_duration
from headrace.core.kinds import FAMILIES, kinds
from headrace.functions.function import Function
from headrace.functions.library import families
from headrace.project.dashboards import ChartSpec, DashboardSpec
from headrace.project.json_schema import project_schema
from headrace.project.model import (
    BackfillSpec,
    Defaults,
    EventTime,
    FlowSpec,
    FunctionsSpec,
    LookupsSpec,
    ProjectSpec,
    SparkSpec,
    StreamSpec,
)
from headrace.project.shapes import family_of, keys_of
from headrace.project.tables import TableSpec
from headrace.project.wording import type_in_words

FOLDER = Path("docs/reference")
WRITTEN = frozenset({"errors.md", "rest.md", "queries.md", "events.md", "grpc.md", "view-sql.md"})  # not generated
_MADE = "<!-- Made from the models by `python -m headrace.project.reference`: edit the models instead. -->"
_SECTIONS: dict[str, type[BaseModel]] = {
    "The project": ProjectSpec,
    "A stream": StreamSpec,
    "Event time": EventTime,
    "Backfill": BackfillSpec,
    "A table": TableSpec,
    "A flow": FlowSpec,
    "A dashboard": DashboardSpec,
    "A chart": ChartSpec,
    "Functions": FunctionsSpec,
    "Lookups": LookupsSpec,
    "Defaults": Defaults,
    "Spark": SparkSpec,
}


@cache
def pages() -> Mapping[str, str]:
    """Every generated file by its path below the reference folder; made once, since models do not change."""
    made = {"project.md": _project_page(), "headrace.schema.json": _json_text(project_schema())}
    for family in FAMILIES:
        for name, kind in kinds(family).items():
            made[f"{family}/{name}.md"] = _kind_page(family, name, kind)
    for name, (about, functions) in families().items():
        made[f"functions/{name}.md"] = _functions_page(name, about, functions)
    return {"index.md": _index(), **made}


def _json_text(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def _index() -> str:
    lines = [_MADE, "", "# Reference", "", "* [headrace.yaml](project.md): every key of a project file"]
    lines.append("* [JSON schema](headrace.schema.json) for editors, the same that `headrace schema` prints")
    lines.append("* [Errors](errors.md): every code and what to do about it")
    for family in FAMILIES:
        lines += ["", f"## {family.capitalize()}", "", "| type | |", "|---|---|"]
        lines += [f"| [{name}]({family}/{name}.md) | {_first_line(kind)} |" for name, kind in kinds(family).items()]
    lines += [
        "",
        "## Functions",
        "",
        "Beside Spark's own, in any case of letters.",
        "",
    ]
    lines += ["| | family |", "|---|---|"]
    found = [(one.name, family) for family, (_, functions) in families().items() for one in functions]
    lines += [f"| [{name}](functions/{family}.md#{name.lower()}) | {family} |" for name, family in sorted(found)]
    return "\n".join(lines) + "\n"


def _functions_page(name: str, about: str, functions: Sequence[Function]) -> str:
    lines = [_MADE, "", f"# {name} (functions)", "", *about.splitlines(), ""]
    for one in functions:
        how = "runs inside Spark" if one.arrow is None and one.build is None else "runs in Python, over Arrow batches"
        signatures = [f"{one.name}({given.replace(' -> ', ') -> ', 1)}" for given in one.signatures]
        lines += [f"## {one.name}", "", one.about, "", f"A {one.kind} function; {how}.", ""]
        lines += ["```sql", *signatures, "```", "", f"For example `{one.example}` gives `{one.gives}`.", ""]
    lines.append("[All functions](../index.md#functions) · [headrace.yaml](../project.md)")
    return "\n".join(lines) + "\n"


def _project_page() -> str:
    lines = [
        _MADE,
        "",
        "# headrace.yaml",
        "",
        "Unknown keys are refused, with the nearest name. [All kinds](index.md).",
    ]
    for title, model in _SECTIONS.items():
        lines += ["", f"## {title}", "", *_docstring(model), "", *_table(model, home="")]
    return "\n".join(lines) + "\n"


def _kind_page(family: str, name: str, kind: type[Component]) -> str:
    title = f"# {name} ({family.removesuffix('s')})"
    lines = [_MADE, "", title, "", *_docstring(kind), "", *_table(kind), ""]
    for nested in nested_models(kind):
        lines += [f"## {_heading(nested)}", "", *_docstring(nested), "", *_table(nested), ""]
    lines.append("[All kinds](../index.md) · [headrace.yaml](../project.md)")
    return "\n".join(lines) + "\n"


def _docstring(model: type[BaseModel]) -> list[str]:
    return inspect.cleandoc(model.__doc__ or "").splitlines()


def _first_line(model: type[BaseModel]) -> str:
    return _cell(_docstring(model)[0])


def _heading(model: type[BaseModel]) -> str:
    words = "".join(f" {c.lower()}" if c.isupper() else c for c in model.__name__).strip()
    return words.capitalize()


def nested_models(model: type[BaseModel]) -> list[type[BaseModel]]:
    """Models of further mappings within a kind, in the order their keys come; kinds have pages of their own."""
    found: dict[str, type[BaseModel]] = {}
    for field in model.model_fields.values():
        for inner in _models_in(field.annotation):
            if not issubclass(inner, Component) and inner.__name__ not in found:
                found[inner.__name__] = inner
                found.update({deeper.__name__: deeper for deeper in nested_models(inner)})
    return list(found.values())


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in getattr(annotation, "__args__", ()):
        yield from _models_in(part)


def _table(model: type[BaseModel], home: str = "../") -> list[str]:
    schema = model.model_json_schema(mode="validation")
    rows = ["| key | type | default | |", "|---|---|---|---|"]
    # `type` comes first, wherever a kind's class says it
    for name, field in sorted(keys_of(model).items(), key=lambda item: item[0] != "type"):
        words = _type(field, schema["properties"][name], schema.get("$defs", {}), home)
        about = " ".join([field.description or "", *_examples(field.examples)])
        rows.append(f"| `{name}` | {_cell(words)} | {_default(field)} | {_cell(about)} |")
    return rows


def _type(field: FieldInfo, node: dict[str, Any], models: dict[str, Any], home: str) -> str:
    """The type in plain words; a mapping with keys of its own is described elsewhere on the page."""
    if "timedelta" in str(field.annotation):
        return "duration"
    words = type_in_words(_resolved(node, models))
    family = family_of(field)
    return words if family is None else words.replace("kind", f"[{family.removesuffix('s')}]({home}index.md#{family})")


def _resolved(node: Any, models: dict[str, Any]) -> Any:
    if isinstance(node, list):
        return [_resolved(child, models) for child in node]
    if not isinstance(node, dict):
        return node
    if "discriminator" in node:
        return {"type": "kind"}
    if "$ref" in node:
        model = models[node["$ref"].rsplit("/", 1)[-1]]
        return {"type": "object"} if "properties" in model else _resolved(model, models)
    return {key: _resolved(child, models) for key, child in node.items()}


def _examples(examples: Sequence[Any] | None) -> list[str]:
    return [f"For example: {', '.join(f'`{_plain(one)}`' for one in examples)}."] if examples else []


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    default = field.get_default(call_default_factory=True, validated_data={})
    if default is None or default in ("", [], {}, ()) or isinstance(default, BaseModel):
        return ""
    return f"`{_plain(format_duration(default) if isinstance(default, timedelta) else default)}`"


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def stale(folder: Path) -> list[str]:
    """The files below `folder` that differ from what the models say, are missing or have lost their kind."""
    made = pages()
    there = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()} - WRITTEN
    differing = [name for name, text in made.items() if name not in there or (folder / name).read_text("utf-8") != text]
    return sorted({*differing, *(there - set(made))})


def write(folder: Path) -> list[str]:
    """Write every page and remove those of kinds that are gone; gives the files that changed."""
    changed, made = stale(folder), pages()
    for name in changed:
        path = folder / name
        if name not in made:
            path.unlink()
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(made[name], encoding="utf-8")
    return changed


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the reference, or with --check say what is stale."""
    parser = argparse.ArgumentParser(prog="python -m headrace.project.reference", description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; fail when a page is stale")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the pages are")
    options = parser.parse_args(arguments)
    found = stale(options.folder) if options.check else write(options.folder)
    for name in found:
        print(f"{'stale' if options.check else 'written'}: {options.folder / name}")
    if options.check and found:
        print("run: python -m headrace.project.reference", file=sys.stderr)
    return 1 if options.check and found else 0


if __name__ == "__main__":
    sys.exit(main())
