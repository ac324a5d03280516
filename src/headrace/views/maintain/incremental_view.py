"""Maintains a view incrementally: takes the deltas of its tables in one batch, returns the delta of its result."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.core.schema import from_ddl, quoted, to_ddl
from headrace.core.tables import WEIGHT, TableShape
from headrace.views.algebra.fingerprint import view_text
from headrace.views.algebra.operators import ID, Aggregate, Match, Operator, Projection, Ranked, Selection, ViewPlan
from headrace.views.algebra.sql_text import SMALL_BATCH, KeyMatch, Restriction, column_list, restrict, select
from headrace.views.maintain import deltas
from headrace.views.maintain.batch_query import OperatorTypes
from headrace.views.maintain.fused_aggregate import fused_aggregate
from headrace.views.maintain.join_types import align_join_types
from headrace.views.maintain.layout import layout, refuse_maps
from headrace.views.maintain.relations import Relations, TempRelation
from headrace.views.maintain.result_delta import ResultDelta, result_delta
from headrace.views.maintain.runner import RelationRunner, local_rows
from headrace.views.maintain.state import ViewState
from headrace.views.maintain.sums import Sums

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_READ_ALL_GROUPS = 50_000
"""Sums of up to this many groups are read completely; of more groups, only the touched ones."""
_STATE_FORMAT = "2"
"""Version of the state layout; a view does not resume from another one."""


@dataclass(frozen=True)
class TableDelta:
    """The delta of one table in one batch."""

    delta: DataFrame | None
    """The weighted rows of this batch; None if nothing changed."""
    old: Callable[[], DataFrame]
    """Weighted rows that add up to the table before this batch. Not called in the first batch: all rows are new."""
    rows: int
    """The row count of `delta`."""
    table_rows: int
    """The approximate row count of the table."""
    version: Hashable = None
    """Identifies the rows of `old`, which is not called again for the same version. None: unknown."""


class IncrementalView:
    """One view and its state.

    `spark` is a session used by this view and its inputs only: its settings are changed, and temporary views are
    registered in it. With `identified` the rows of a view without a key get the key `_id`, which stays the same as
    long as the row exists.
    """

    def __init__(
        self,
        spark: SparkSession,
        view: ViewPlan,
        tables: Mapping[str, TableShape],
        state: ViewState,
        *,
        identified: bool = False,
    ) -> None:
        self.state = state
        self._spark, self._columns, self._identified = spark, view.columns, identified
        self._runner = RelationRunner(spark, state)
        self._prefix = f"__view_{uuid.uuid4().hex[:8]}"
        self._numbers = {name: number for number, name in enumerate(tables)}
        self._versions: dict[str, Hashable] = {}
        """The table versions registered in Spark."""
        spark.conf.set("spark.sql.adaptive.enabled", "false")
        for name, shape in tables.items():
            spark.createDataFrame([], to_ddl(shape.columns)).createOrReplaceTempView(self._table("empty", name))
        spark.conf.set("spark.sql.debug.maxToStringFields", "10000")  # plans are searched as text
        self._types = OperatorTypes(spark, {name: self._table("empty", name) for name in tables})
        view = replace(view, root=align_join_types(view.root, self._types))
        self._types.refuse_clock(view.root)
        # copies of a row are counted as a group by all columns
        self._root: Operator = Aggregate(view.root, view.root.columns, ()) if identified else view.root
        self._layout = layout(self._root, self._types)
        refuse_maps(view.root, self._types)
        self._stored_schemas = {operator: self._stored_schema(operator) for operator in self._layout.stored}
        self._definition = hashlib.sha256(f"{_STATE_FORMAT} {identified} {view_text(view)}".encode()).hexdigest()
        fields = [
            pa.field(name, kind) for name, kind in zip(view.columns, self._types.schema(view.root).types, strict=True)
        ]
        self.schema = pa.schema([*([pa.field(ID, pa.string())] if identified else []), *fields])
        self._result_ddl = f"{to_ddl(self.schema)}, {WEIGHT} BIGINT"
        self._fused = None if identified else fused_aggregate(view.root)

    def _table(self, role: str, name: str) -> str:
        return f"{self._prefix}_{role}_{self._numbers[name]}"

    def _stored_schema(self, operator: Operator) -> StructType:
        from pyspark.sql.types import StructType

        types = self._types.of(operator)
        sums = self._layout.sums.get(operator)
        if sums is None or not isinstance(operator, Aggregate):
            types = {**types, WEIGHT: "BIGINT"}
        else:
            types = {**{key: types[key] for key in operator.keys}, **{sum_.name: sum_.type for sum_ in sums.columns}}
        # parsed once: Spark would parse DDL at every use
        schema = StructType.fromDDL(", ".join(f"{quoted(name)} {kind}" for name, kind in types.items()))
        assert isinstance(schema, StructType)
        return schema

    def apply(self, batch: int, inputs: Mapping[str, TableDelta]) -> ResultDelta:
        """The consolidated delta of the result in this batch.

        The state after the batch is durable when this returns. Batches are numbered from 0; a repeated batch starts
        from the state of the batch before it. Read the returned rows before the next batch.
        """
        first = not self.state.begin(batch, self._definition)
        small = sum(table_delta.rows for table_delta in inputs.values()) <= SMALL_BATCH
        self._runner.tune(small)
        relations, collected = self._relations(inputs, first), None
        for operator, name in self._layout.delta_names.items():
            sums = self._layout.sums.get(operator)
            if sums is not None and isinstance(operator, Aggregate):
                collected = self._compute_sums(relations, operator, sums, name)
            else:
                self._compute_delta(relations, operator, name)
        # before the state is consolidated: the delta reads stored rows under the same names
        result = (
            self._local_result(collected)
            if collected is not None
            else result_delta(self._spark, self._result(relations), small)
        )
        for operator in self._layout.stored:
            self._consolidate(operator)
        self.state.commit(batch, self._definition)
        return result

    def _relations(self, inputs: Mapping[str, TableDelta], first: bool) -> Relations:
        changed = {}
        for name, table_delta in inputs.items():
            if table_delta.delta is not None and table_delta.rows:
                changed[name] = TempRelation(self._table("delta", name), table_delta.rows)
                table_delta.delta.createOrReplaceTempView(changed[name].name)

        @cache
        def old(name: str) -> TempRelation:
            """Registered on demand: few tables are needed, and listing the files of one is slow."""
            name_in_spark, version = self._table("old", name), inputs[name].version
            if version is None or self._versions.get(name) != version:
                inputs[name].old().createOrReplaceTempView(name_in_spark)
                self._versions[name] = version
            return TempRelation(name_in_spark, inputs[name].table_rows)

        stored = {
            table_delta: self._register(table_delta)
            for table_delta in self._layout.stored
            if self.state.rows(self._layout.delta_names[table_delta])
        }
        return Relations(self._layout, self._types, changed, old, stored, first)

    def _register(self, operator: Operator) -> TempRelation:
        relation = self._layout.delta_names[operator]
        name = f"{self._prefix}_kept_{relation}"
        return TempRelation(name, self._runner.register(relation, name, self._stored_schemas[operator]))

    def _compute_delta(self, relations: Relations, operator: Operator, relation: str) -> None:
        sql = relations.delta(operator)
        if sql is None:
            relations.set_delta(operator, None, 0)
            return
        name, columns = f"{self._prefix}_{relation}", [*operator.columns, WEIGHT]
        stored_as = relation if operator in self._layout.stored else None
        rows = self._runner.run(sql, name, relations.delta_size(operator) <= SMALL_BATCH, stored_as, columns)
        relations.set_delta(operator, select(column_list(columns), name), rows)

    def _compute_sums(self, relations: Relations, operator: Aggregate, sums: Sums, relation: str) -> pa.Table | None:
        """Compute the delta of sums; returns the result delta if the same query gives it."""
        input_delta = relations.delta(operator.input)
        if input_delta is None and (operator.keys or not relations.first):
            relations.set_delta(operator, None, 0)
            return None
        name, small = f"{self._prefix}_{relation}", relations.delta_size(operator.input) <= SMALL_BATCH
        terms = None if input_delta is None else deltas.sum_terms(operator, sums, input_delta)
        before = relations.stored.get(operator)
        touched = None
        if terms is not None and before is not None and before.rows > _READ_ALL_GROUPS and operator.keys:
            self._runner.run(deltas.total_sums(operator, sums, terms), f"{name}_added", small)
            terms = f"{name}_added"
            touched = Restriction(
                select(column_list(operator.keys), terms), tuple(KeyMatch(key, key) for key in operator.keys), small
            )
        old_sums = restrict(before.name, touched) if before else None
        sql = deltas.sums_delta(operator, sums, terms, old_sums, relations.in_one_task(operator.input))
        columns = [*operator.keys, *(sum_.name for sum_ in sums.columns)]
        if small and self._fused is not None and self._fused.aggregate == operator:
            collected = self._runner.collect_into(self._fused.query_sql(sums, sql, relations.first), relation, columns)
            if collected is not None:
                return self._fused.rows(collected, self._columns)
        rows = self._runner.run(sql, name, small, relation, columns)
        if self._identified and operator is self._root:
            relations.set_delta(operator, deltas.copies_with_id(operator, name, self._columns), rows)
        else:
            relations.set_delta(operator, deltas.aggregate_delta(operator, sums, name, relations.first), rows)
        return None

    def _consolidate(self, operator: Operator) -> None:
        relation = self._layout.delta_names[operator]
        if not self.state.needs_consolidation(relation):
            return
        stored = self._register(operator)
        sums = self._layout.sums.get(operator)
        if sums is not None and isinstance(operator, Aggregate):
            sql = deltas.consolidate_sums(operator, sums, stored.name)
        else:
            sql = deltas.consolidate(stored.name, operator.columns)
        self._runner.consolidate(relation, sql, stored.rows <= 5 * SMALL_BATCH)

    def _local_result(self, collected: pa.Table) -> ResultDelta:
        rows = collected.cast(from_ddl(self._result_ddl))
        return ResultDelta(rows, lambda: local_rows(self._spark, rows, self._result_ddl))

    def _result(self, relations: Relations) -> DataFrame:
        sql = relations.delta(self._root)
        if sql is None:
            return self._spark.createDataFrame([], self._result_ddl)
        if self._identified:
            return self._spark.sql(sql)
        names = zip(self._root.columns, self._columns, strict=True)
        sql = select([*(f"{quoted(generated)} AS {quoted(name)}" for generated, name in names), WEIGHT], sql)
        return self._spark.sql(sql if _is_consolidated(self._root) else deltas.consolidate(sql, self._columns))


def _is_consolidated(operator: Operator) -> bool:
    """Whether the delta rule of an operator gives each changed row once."""
    match operator:
        case Aggregate() | Ranked() | Match():
            return True
        case Selection(below):
            return _is_consolidated(below)
        case Projection(below, expressions):
            # other expressions may map two rows to one, or one to several
            return {sql for _, sql in expressions} == set(column_list(below.columns)) and _is_consolidated(below)
        case _:
            return False
