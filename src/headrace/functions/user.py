"""The functions of a project: every function with type hints in `functions/*.py`.

Names, parameters and kinds are parsed without running a file; it is run when SQL uses one of its functions.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import sys
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from headrace.core.errors import Origin, ProjectError
from headrace.core.schema import ddl_type
from headrace.functions.columns import Grouped, RowWise, Whole
from headrace.functions.function import Arrow, Function, FunctionCall
from headrace.functions.hints import HintError, annotated_type, arrow_type, from_arrow, is_optional, to_arrow
from headrace.functions.library import library
from headrace.functions.marks import MARK
from headrace.functions.template import fill

FOLDER = "functions"
_COLUMNS = ("Series", "Array")


@dataclass(frozen=True)
class UserFunction:
    """A function of a project, and where it is defined."""

    function: Function
    path: Path
    line: int
    digest: str
    """A hash of the whole file: a function may use all of it."""

    @property
    def name(self) -> str:
        return self.function.name

    @property
    def origin(self) -> Origin:
        return Origin(f"{FOLDER}/{self.path.name}", self.line, self.name)

    def arrow(self) -> Arrow:
        """The function over Arrow columns. Raises `function-hints` for a missing or unknown hint."""
        function = getattr(load(self), self.name)
        try:
            hints = typing.get_type_hints(function, include_extras=True)
        except Exception as error:
            raise self._wrong(f"has hints that cannot be read: {error}") from error
        names = function.__code__.co_varnames[: function.__code__.co_argcount]
        for name in (*names, "return"):
            if name not in hints:
                what = "has no hint for its result" if name == "return" else f"has no hint for '{name}'"
                raise self._wrong(what)
        try:
            return _over_columns(function, [hints[name] for name in names], hints["return"])
        except (HintError, ProjectError) as error:
            raise self._wrong(f"cannot be used: {getattr(error, 'message', error)}") from None

    def _wrong(self, what: str) -> ProjectError:
        return ProjectError(
            "function-hints",
            f"function '{self.name}' {what}",
            where=self.origin,
            hint="hints are int, float, str, bool, bytes, datetime, date, Decimal, list[…], dict[…, …], Optional, "
            "dataclasses and TypedDicts; or pa.Array and pd.Series with @headrace.function(returns='double')",
        )


def _over_columns(function: Any, hints: list[Any], returns: Any) -> Arrow:
    """The function over Arrow columns, by its hints."""
    mark = getattr(function, MARK, {"returns": None, "aggregate": False})
    columns = tuple(kind for kind in map(_column_kind, hints) if kind)
    if not columns:
        result = arrow_type(mark["returns"] or returns)
        return _arrow(
            RowWise(
                function,
                tuple(arrow_type(hint) for hint in hints),
                tuple(is_optional(hint) for hint in hints),
                tuple(from_arrow(hint) for hint in hints),
                result,
                to_arrow(returns),
            )
        )
    if len(columns) < len(hints):
        raise HintError("columns (pa.Array, pd.Series) and single values cannot be mixed")
    if _column_kind(returns):
        named = mark["returns"] or annotated_type(returns)
        if named is None:
            raise HintError("the type of its result is missing: @headrace.function(returns='double')")
        return _arrow(Whole(function, columns, arrow_type(named)))
    return _arrow(Grouped(function, columns, arrow_type(mark["returns"] or returns)))


def _arrow(compute: RowWise | Whole | Grouped) -> Arrow:
    return Arrow(compute, ddl_type(compute.returns))


def _column_kind(hint: Any) -> str | None:
    """`pa.Array` or `pd.Series`, also inside Annotated."""
    if typing.get_origin(hint) is typing.Annotated:
        hint = typing.get_args(hint)[0]
    name = getattr(hint, "__name__", "")
    module = getattr(hint, "__module__", "").split(".")[0]
    return name if name in _COLUMNS and module in ("pandas", "pyarrow") else None


def load(function: UserFunction) -> ModuleType:
    """The module of a function, run once per version of its file."""
    name = f"headrace_{FOLDER}_{function.path.stem}_{function.digest[:12]}"
    known = sys.modules.get(name)
    if known is not None:
        return known
    spec = importlib.util.spec_from_file_location(name, function.path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        where = Origin(f"{FOLDER}/{function.path.name}", _line_of(error, function.path))
        message = f"{FOLDER}/{function.path.name} cannot be run: {type(error).__name__}: {error}"
        raise ProjectError("function-not-loadable", message, where=where) from error
    return module


def _line_of(error: Exception, path: Path) -> int | None:
    line, trace = None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == str(path):
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


def user_functions(root: Path) -> dict[str, UserFunction]:
    """All functions of a project by name in lower case."""
    functions: dict[str, UserFunction] = {}
    for path in sorted((root / FOLDER).glob("*.py")):
        for function in _in_file(path):
            taken = functions.get(function.name.lower())
            if taken is not None or function.name.lower() in library():
                by = str(taken.origin) if taken is not None else "the function library"
                raise ProjectError(
                    "function-name-taken",
                    f"function '{function.name}' exists already, in {by}",
                    where=function.origin,
                    hint="SQL ignores case: give it another name, or begin it with _",
                )
            functions[function.name.lower()] = function
    return functions


def _in_file(path: Path) -> Iterator[UserFunction]:
    """The public functions of a file; those without any hint are helpers."""
    text = path.read_bytes()
    try:
        tree = ast.parse(text, str(path))
    except (SyntaxError, ValueError) as error:
        where = Origin(f"{FOLDER}/{path.name}", getattr(error, "lineno", None))
        raise ProjectError("function-not-loadable", f"{path.name} is not Python: {error}", where=where) from error
    digest = hashlib.sha256(text).hexdigest()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_") and _hinted(node):
            yield UserFunction(_described(node), path, node.lineno, digest)


def _hinted(node: ast.FunctionDef) -> bool:
    return node.returns is not None or any(parameter.annotation for parameter in node.args.args)


def _described(node: ast.FunctionDef) -> Function:
    arguments = node.args.args
    parameters = [f"{arg.arg} {ast.unparse(arg.annotation) if arg.annotation else '?'}" for arg in arguments]
    result = ast.unparse(node.returns) if node.returns else "?"
    signatures = [
        f"{', '.join(_flat(parameter) for parameter in parameters[: len(parameters) - left_out])} -> {result}"
        for left_out in range(len(node.args.defaults), -1, -1)
    ]
    about = (ast.get_docstring(node) or "").partition("\n")[0]
    example = f"{node.name}({', '.join(arg.arg for arg in arguments)})"
    aggregate = _is_aggregate(node)
    expand = _collected if aggregate else None
    kind: typing.Literal["aggregate", "scalar"] = "aggregate" if aggregate else "scalar"
    return Function(node.name, tuple(signatures), about, example, result, expand, kind=kind)


def _flat(parameter: str) -> str:
    """The parameter without commas, which would look like further parameters."""
    return parameter.replace(", ", " ")


def _is_aggregate(node: ast.FunctionDef) -> bool:
    """Whether it takes columns and returns a value, or its decorator says so."""
    for decorator in node.decorator_list:
        for keyword in decorator.keywords if isinstance(decorator, ast.Call) else ():
            if keyword.arg == "aggregate" and isinstance(keyword.value, ast.Constant) and keyword.value.value is True:
                return True
    hints = [parameter.annotation for parameter in node.args.args]
    return bool(hints) and all(map(_is_column, hints)) and not _is_column(node.returns)


def _is_column(hint: ast.expr | None) -> bool:
    if isinstance(hint, ast.Subscript) and ast.unparse(hint.value).endswith("Annotated"):
        inner = hint.slice
        hint = inner.elts[0] if isinstance(inner, ast.Tuple) else inner
    return hint is not None and ast.unparse(hint).strip("'\"").rsplit(".", 1)[-1] in _COLUMNS


def _collected(call: FunctionCall) -> str:
    """The call with the values of its group as arrays, which streams support too."""
    collect = "collect_set" if call.distinct else "collect_list"
    if len(call.args) == 1:
        return f"{call.function.name}({call.aggregate(fill(f'{collect}(:v)', v=call.args[0]))})"
    parts = ", ".join(f"'_{place}', {argument.sql}" for place, argument in enumerate(call.args))
    rows = call.aggregate(f"{collect}(named_struct({parts}))")
    columns = (fill(f"transform(:rows, _e -> _e._{place})", rows=rows) for place in range(len(call.args)))
    return f"{call.function.name}({', '.join(columns)})"


def used_by(names: set[str], own: Mapping[str, UserFunction]) -> dict[str, UserFunction]:
    return {name: own[name] for name in sorted(names & own.keys())}
