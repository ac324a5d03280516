"""A class of the project: parsed when the flow is planned, run in the tasks.

Tasks receive the text of the file, so workers on other machines do not need the file.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import linecache
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from headrace.core.context import Context
from headrace.core.errors import Origin, ProjectError, did_you_mean

_PROCESS = {"process": "def process(self, batch: pa.RecordBatch) -> pa.RecordBatch"}


@dataclass(frozen=True)
class ProjectClass:
    """A class with the methods that a step calls."""

    file: str
    """The path in the project file, or the installed module."""
    path: str
    name: str
    text: str
    line: int
    pandas: bool
    """Whether its first method takes pandas frames."""
    columns: str | None
    keep: bool | None

    def make(self, options: dict[str, Any]) -> Any:
        """Run the file, once per process, and instantiate the class."""
        cls = getattr(self._module(), self.name)
        try:
            return cls(**options)
        except TypeError as error:
            raise self.error("python-step", f"cannot be instantiated with these options: {error}") from error

    def error(self, code: str, what: str, line: int | None = None, hint: str = "") -> ProjectError:
        """An error of the class. The message contains the place, since only texts leave a task."""
        where = Origin(self.file, line or self.line, self.name)
        return ProjectError(code, f"{self.name} ({self.file}:{line or self.line}) {what}", where=where, hint=hint)

    def failed(self, error: Exception) -> ProjectError:
        """The error for an exception in the class, with its line."""
        line, trace = None, error.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code.co_filename == self.path:
                line = trace.tb_lineno
            trace = trace.tb_next
        return self.error("python-step-failed", f"failed: {type(error).__name__}: {error}", line)

    def _module(self) -> ModuleType:
        if not self.file.endswith(".py"):
            return importlib.import_module(self.file)
        name = f"headrace_step_{hashlib.sha256(f'{self.path}|{self.text}'.encode()).hexdigest()[:16]}"
        known = sys.modules.get(name)
        if known is not None:
            return known
        module = ModuleType(name)
        module.__file__ = self.path
        linecache.cache[self.path] = (len(self.text), None, self.text.splitlines(keepends=True), self.path)
        sys.modules[name] = module
        try:
            exec(compile(self.text, self.path, "exec"), module.__dict__)  # noqa: S102
        except Exception as error:
            del sys.modules[name]
            raise self.failed(error) from error
        return module


def find_class(reference: str, context: Context, methods: Mapping[str, str] = _PROCESS) -> ProjectClass:
    """The class of `processors/my.py:MyProcessor` or `package.module:MyProcessor`.

    `methods` has the signatures of the methods that it must have.
    """
    file, _, name = reference.rpartition(":")
    path = _path(file, context)
    text = path.read_text(encoding="utf-8")
    try:
        tree = ast.parse(text, str(path))
    except SyntaxError as error:
        where = Origin(file, error.lineno)
        raise ProjectError("python-step", f"{file}:{error.lineno} is not Python: {error.msg}", where=where) from error
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    if name not in classes:
        hint = did_you_mean(name, classes, f"classes in {file}")
        raise ProjectError("python-step", f"class '{name}' does not exist in {file}", where=Origin(file), hint=hint)
    return _described(file, path, text, classes[name], methods)


def _path(file: str, context: Context) -> Path:
    if file.endswith(".py"):
        path = Path(context.path(file))
        if not path.is_file():
            raise ProjectError(
                "missing-file", f"file '{file}' does not exist", hint="paths start at the project folder"
            )
        return path
    try:
        spec = importlib.util.find_spec(file)
    except (ImportError, ValueError):
        spec = None
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        hint = "name a file of the project, e.g. processors/my.py:MyProcessor, or install the module"
        raise ProjectError("python-step", f"module '{file}' does not exist", hint=hint)
    return Path(spec.origin)


def _described(file: str, path: Path, text: str, node: ast.ClassDef, methods: Mapping[str, str]) -> ProjectClass:
    methods_of = {part.name: part for part in node.body if isinstance(part, ast.FunctionDef)}
    for name, written in methods.items():
        _check_method(file, node, name, methods_of.get(name), written)
    arguments = methods_of[next(iter(methods))].args.args
    annotation = arguments[1].annotation if len(arguments) > 1 else None
    pandas = annotation is not None and ast.unparse(annotation).strip("'\"").endswith("DataFrame")
    known = _constants(node)
    columns, keep = known.get("columns"), known.get("keep")
    return ProjectClass(
        file,
        str(path),
        node.name,
        text,
        node.lineno,
        pandas,
        columns if isinstance(columns, str) else None,
        keep if isinstance(keep, bool) else None,
    )


def _check_method(file: str, node: ast.ClassDef, name: str, method: ast.FunctionDef | None, written: str) -> None:
    if method is None:
        message = f"class '{node.name}' ({file}:{node.lineno}) has no method '{name}'"
        raise ProjectError("python-step", message, where=Origin(file, node.lineno, node.name), hint=written)
    if len(method.args.args) != 1 + written.count(": "):
        message = f"'{name}' of class '{node.name}' ({file}:{method.lineno}) has other parameters than expected"
        raise ProjectError("python-step", message, where=Origin(file, method.lineno, node.name), hint=written)


def _constants(node: ast.ClassDef) -> dict[str, Any]:
    """The attributes of a class that are literals."""
    constants: dict[str, Any] = {}
    for part in node.body:
        target = part.targets[0] if isinstance(part, ast.Assign) else getattr(part, "target", None)
        value = getattr(part, "value", None)
        if isinstance(target, ast.Name) and isinstance(value, ast.Constant):
            constants[target.id] = value.value
    return constants
