"""Headrace: declare streams, tables, SQL and endpoints in one project; it runs and serves them.

This package is the public API: `load` for projects, `function` for functions of a project, and the contracts to
subclass for kinds of your own. What only some sinks can do is in `headrace.core.capabilities`. The test kit is
`headrace.testing`. All other modules are internal and may change.

    >>> import headrace
    >>> try:
    ...     headrace.load("no/such/project")
    ... except headrace.ProjectError as error:
    ...     print(error.code)
    no-project

A name is imported at first use, so `import headrace` is fast.
"""

from typing import TYPE_CHECKING

from headrace.core.runtime.lazy import lazy_names

if TYPE_CHECKING:
    from headrace.core.context import Batch, Context
    from headrace.core.errors import ProjectError
    from headrace.core.format import Format
    from headrace.core.processor import ArrowProcessor, Processor
    from headrace.core.sink import Delivery, Sink
    from headrace.core.source import RecordSource, RowSource
    from headrace.core.tables import TableSource
    from headrace.functions.marks import function
    from headrace.project.loader import Project, load
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "ArrowProcessor": "headrace.core.processor",
            "Batch": "headrace.core.context",
            "Context": "headrace.core.context",
            "Delivery": "headrace.core.sink",
            "Format": "headrace.core.format",
            "Processor": "headrace.core.processor",
            "Project": "headrace.project.loader",
            "ProjectError": "headrace.core.errors",
            "RecordSource": "headrace.core.source",
            "RowSource": "headrace.core.source",
            "Sink": "headrace.core.sink",
            "TableSource": "headrace.core.tables",
            "function": "headrace.functions.marks",
            "load": "headrace.project.loader",
        },
    )

__version__ = "0.1.0"

__all__ = [
    "ArrowProcessor",
    "Batch",
    "Context",
    "Delivery",
    "Format",
    "Processor",
    "Project",
    "ProjectError",
    "RecordSource",
    "RowSource",
    "Sink",
    "TableSource",
    "__version__",
    "function",
    "load",
]
