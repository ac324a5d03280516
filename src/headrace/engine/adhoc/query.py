"""Ad-hoc batch SQL over the streams, tables, lake tables, dead letters and late rows of a project."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import sqlglot
from sqlglot import exp

from headrace.core.capabilities import lake_paths
from headrace.core.errors import ProjectError, did_you_mean
from headrace.core.records import spark_schema
from headrace.engine.inputs.inputs import ReadOptions, read_stream
from headrace.engine.inputs.lake import is_table
from headrace.engine.letters.dead_letters import read_dead_letters
from headrace.engine.letters.late_rows import read_late_rows
from headrace.engine.spark.failures import from_worker
from headrace.engine.spark.functions import register as register_functions
from headrace.engine.spark.sql_errors import from_failure, from_query_analysis
from headrace.engine.state.schemas import infer_schema
from headrace.engine.state.state import StateDir
from headrace.engine.tables.table_rows import register_table
from headrace.functions.expansion import expand_text
from headrace.functions.user import user_functions
from headrace.plan.model import StreamInput
from headrace.plan.planner import declared_schema
from headrace.project.loader import Project
from headrace.project.model import EventTime
from headrace.sql.dialect.translate import DialectInput, translate
from headrace.sql.query import SqlError, parse

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

DEAD_LETTERS = "dead_letters"
LATE_ROWS = "late_rows"
# quoted text, comments and semicolons; the last two alternatives match a quote or comment that is not closed
_PIECE = re.compile(
    r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|`[^`]*`|--[^\n]*|/\*.*?\*/|;|['"`].*\Z|/\*.*\Z""", re.DOTALL
)


def split_statements(text: str) -> list[str]:
    """The statements of a script, split at semicolons outside quotes and comments."""
    statements, start = [], 0
    try:
        tokens = sqlglot.tokenize(text, dialect="spark")
        cuts = [(token.start, token.end + 1) for token in tokens if token.token_type.name == "SEMICOLON"]
    except sqlglot.errors.TokenError:  # an open quote in one statement must not affect those before it
        cuts = [piece.span() for piece in _PIECE.finditer(text) if piece[0] == ";"]
    for end, following in cuts:
        statements.append(text[start:end])
        start = following
    statements.append(text[start:])
    return [statement.strip() for statement in statements if statement.strip()]


@dataclass
class AdHocSession:
    """A session for ad-hoc statements. Outside a project it is plain Spark with Headrace's settings."""

    spark: SparkSession
    project: Project | None
    state: StateDir
    letters: Path
    """A temporary folder for records that cannot be decoded; the project's dead letters are those of its flows."""

    def run(self, statement: str) -> pa.Table:
        from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
        from pyspark.errors import AnalysisException, PySparkException

        inputs: dict[str, DialectInput] = {}
        if self.project is not None:
            for name in self._mentioned(statement):
                inputs[name] = self._register(name, statement)
        own = {} if self.project is None else user_functions(self.project.root)
        expanded = expand_text(_translated(statement, inputs), own)
        try:
            register_functions(self.spark, [expanded.sql], self.project)
            return _variants_as_json(self.spark.sql(expanded.sql)).toArrow()
        except AnalysisException as error:
            raise self._with_known_inputs(from_query_analysis(error, expanded, self._functions)) from error
        except (PySparkException, Py4JJavaError) as error:
            raise from_worker(str(error)) or from_failure(str(error)) from error
        except ValueError as error:
            # Arrow has no type for an array of untyped nulls
            message = f"a column of the result has an unsupported type: {error}"
            raise ProjectError("sql-failed", message, hint="cast it to another type") from error

    def _with_known_inputs(self, error: ProjectError) -> ProjectError:
        """Add the existing inputs to an error about an unknown input."""
        if error.code == "unknown-input":
            if self.project is None:
                error.hint = "no project here: change to its folder, or name it with -p; SHOW TABLES lists the tables"
            else:
                error.hint = did_you_mean(_quoted_in(error.message), self._inputs(), "streams, tables and flows")
        return error

    def _inputs(self) -> set[str]:
        """The names that a statement can use."""
        assert self.project is not None
        spec = self.project.spec
        return {*spec.streams, *spec.tables, *spec.flows, DEAD_LETTERS, LATE_ROWS}

    def _functions(self) -> list[str]:
        return [row[0] for row in self.spark.sql("SHOW FUNCTIONS").collect()]

    def undecoded(self) -> dict[str, int]:
        """The number of records of each stream that could not be decoded since the last call."""
        counts = Counter(read_dead_letters(self.letters)["stream"].to_pylist())
        shutil.rmtree(self.letters, ignore_errors=True)
        return dict(counts)

    def _mentioned(self, statement: str) -> Iterator[str]:
        known = self._inputs()
        try:
            trees = [tree for tree in sqlglot.parse(statement, dialect="spark") if tree is not None]
            names = {table.name.lower() for tree in trees for table in tree.find_all(exp.Table)}
        except sqlglot.errors.SqlglotError:
            names = {name for name in known if name in statement.lower()}
        yield from sorted(name for name in known if name.lower() in names)

    def _register(self, name: str, statement: str) -> DialectInput:
        assert self.project is not None
        if name == DEAD_LETTERS:
            self.spark.createDataFrame(read_dead_letters(self.state.dead_letters)).createOrReplaceTempView(name)
        elif name == LATE_ROWS:
            self.spark.createDataFrame(read_late_rows(self.state.late)).createOrReplaceTempView(name)
        elif name in self.project.spec.streams:
            self._register_stream(self.project, name, statement)
            return self._known(name, self.project.spec.streams[name].event_time)
        elif name in self.project.spec.tables:
            register_table(self.spark, self.project, name)
        else:
            self._register_flow(self.project, name)
            return self._known(name, self.project.spec.flows[name].event_time)
        return self._known(name, None)

    def _known(self, name: str, time: EventTime | None) -> DialectInput:
        schema = spark_schema(self.spark.table(name))
        return DialectInput(schema) if time is None else DialectInput(schema, time.column, time.alias)

    def _register_stream(self, project: Project, name: str, statement: str) -> None:
        spec = project.spec.streams[name]
        schema = declared_schema(project, name, spec) or infer_schema(project, self.state, name, spec)
        reading = ReadOptions("sql", project.context, streaming=False, until_caught_up=True, letters=self.letters)
        spec.source.check(project.context)
        metadata = tuple(column for column in spec.source.metadata if column in statement.lower())
        frame = read_stream(self.spark, StreamInput(name, spec, schema, None, (), metadata), reading, self.state)
        frame.createOrReplaceTempView(name)

    def _register_flow(self, project: Project, name: str) -> None:
        path = next(iter(lake_paths(project.spec.flows[name].sinks)), None)
        if path is None:
            raise ProjectError(
                "flow-without-table",
                f"flow '{name}' has no lake table to query",
                where=project.origin("flows", name),
                hint="add a sink of type lake, or use the SQL of the flow in your statement",
            )
        location = project.context.path(path)
        if not is_table(location):
            raise ProjectError(
                "lake-missing", f"flow '{name}' has written no lake table yet", hint=f"run it: headrace run {name}"
            )
        self.spark.read.format("delta").load(location).createOrReplaceTempView(name)


def _variants_as_json(result: DataFrame) -> DataFrame:
    """The result with VARIANT columns as JSON: Arrow has only their bytes."""
    from pyspark.sql import functions as sf
    from pyspark.sql.types import VariantType

    if not any(isinstance(field.dataType, VariantType) for field in result.schema):
        return result
    numbered = result.toDF(*(f"c{number}" for number in range(len(result.columns))))  # column names may repeat
    columns = [
        (sf.to_json(f"c{number}") if isinstance(field.dataType, VariantType) else sf.col(f"c{number}")).alias(
            field.name
        )
        for number, field in enumerate(result.schema)
    ]
    return numbered.select(*columns)


def _quoted_in(message: str) -> str:
    return message.rpartition("'")[0].rpartition("'")[2]


def _translated(statement: str, inputs: Mapping[str, DialectInput]) -> str:
    """The statement in Spark's SQL dialect. A statement that is not a query or cannot be parsed is unchanged."""
    try:
        query = parse(statement)
    except SqlError:
        return statement
    return translate(query, inputs).sql
