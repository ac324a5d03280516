"""Keeps the result of a view as its tables change: one batch of changes in, the changes of the result out."""

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
from headrace.views.algebra.texts import SMALL, KeyMatch, Within, listed, restricted, select
from headrace.views.maintain import deltas
from headrace.views.maintain.aligned import aligned
from headrace.views.maintain.changed import Changed, changed_rows
from headrace.views.maintain.direct import direct
from headrace.views.maintain.layout import layout, refuse_maps
from headrace.views.maintain.plain import OperatorTypes
from headrace.views.maintain.relations import Relations, Shown
from headrace.views.maintain.running import RelationRunner, local
from headrace.views.maintain.state import ViewState
from headrace.views.maintain.sums import Sums

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_WHOLE = 50_000
"""Sums of up to so many groups are read whole beside the changes; of more, only those that are touched."""
_FORM = "2"
"""Of what is kept: nothing goes on from another one."""


@dataclass(frozen=True)
class TableDelta:
    """One table in one batch."""

    delta: DataFrame | None
    """The weighted rows of this batch; None when nothing changed."""
    old: Callable[[], DataFrame]
    """Weighted rows that add up to the table before this batch. Not asked in the first, in which all rows change."""
    rows: int
    """How many rows `delta` has."""
    table_rows: int
    """About how many rows the table has."""
    version: Hashable = None
    """Tells what `old` gives: it is not asked again while this is the same. None tells nothing."""


class Maintained:
    """One view and its state. `spark` is to be a session of its own, and that of all inputs: its settings are changed,
    and temporary views come into being in it, under names that only this object uses.

    With `identified` the rows of a view without a key get one, `_id`: the same for as long as the row is there.
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
        """Of the tables as Spark knows them."""
        spark.conf.set("spark.sql.adaptive.enabled", "false")
        for name, shape in tables.items():
            spark.createDataFrame([], to_ddl(shape.columns)).createOrReplaceTempView(self._table("empty", name))
        spark.conf.set("spark.sql.debug.maxToStringFields", "10000")  # plans are looked at
        self._types = OperatorTypes(spark, {name: self._table("empty", name) for name in tables})
        view = replace(view, root=aligned(view.root, self._types))
        self._types.refuse_clock(view.root)
        # copies of rows are counted as groups of all columns are
        self._root: Operator = Aggregate(view.root, view.root.columns, ()) if identified else view.root
        self._layout = layout(self._root, self._types)
        refuse_maps(view.root, self._types)
        self._kept = {operator: self._kept_columns(operator) for operator in self._layout.kept}
        self._definition = hashlib.sha256(f"{_FORM} {identified} {view_text(view)}".encode()).hexdigest()
        found = [
            pa.field(name, kind) for name, kind in zip(view.columns, self._types.schema(view.root).types, strict=True)
        ]
        self.schema = pa.schema([*([pa.field(ID, pa.string())] if identified else []), *found])
        self._result_ddl = f"{to_ddl(self.schema)}, {WEIGHT} BIGINT"
        self._direct = None if identified else direct(view.root)

    def _table(self, what: str, name: str) -> str:
        return f"{self._prefix}_{what}_{self._numbers[name]}"

    def _kept_columns(self, operator: Operator) -> StructType:
        from pyspark.sql.types import StructType

        types = self._types.of(operator)
        sums = self._layout.sums.get(operator)
        if sums is None or not isinstance(operator, Aggregate):
            types = {**types, WEIGHT: "BIGINT"}
        else:
            types = {**{key: types[key] for key in operator.keys}, **{one.name: one.type for one in sums.columns}}
        # once: a text is parsed by Spark, every time it is used
        schema = StructType.fromDDL(", ".join(f"{quoted(name)} {kind}" for name, kind in types.items()))
        assert isinstance(schema, StructType)
        return schema

    def apply(self, batch: int, inputs: Mapping[str, TableDelta]) -> Changed:
        """The rows of the result that this batch changes, each once, with its weight. What is kept after the batch is
        durable when this returns. Batches are numbered from 0; one that runs again begins where the one before it
        ended. What is given back is to be read before the next batch."""
        first = not self.state.begin(batch, self._definition)
        small = sum(one.rows for one in inputs.values()) <= SMALL
        self._runner.tune(small)
        relations, few = self._relations(inputs, first), None
        for operator, name in self._layout.taken.items():
            sums = self._layout.sums.get(operator)
            if sums is not None and isinstance(operator, Aggregate):
                few = self._take_sums(relations, operator, sums, name)
            else:
                self._take(relations, operator, name)
        # before anything is added up: it reads what was kept under the same names
        result = self._here(few) if few is not None else changed_rows(self._spark, self._result(relations), small)
        for operator in self._layout.kept:
            self._fold(operator)
        self.state.commit(batch, self._definition)
        return result

    def _relations(self, inputs: Mapping[str, TableDelta], first: bool) -> Relations:
        changed = {}
        for name, one in inputs.items():
            if one.delta is not None and one.rows:
                changed[name] = Shown(self._table("delta", name), one.rows)
                one.delta.createOrReplaceTempView(changed[name].name)

        @cache
        def old(name: str) -> Shown:
            """Few of the tables are needed, and it takes a while to look for the files of one."""
            shown, version = self._table("old", name), inputs[name].version
            if version is None or self._versions.get(name) != version:
                inputs[name].old().createOrReplaceTempView(shown)
                self._versions[name] = version
            return Shown(shown, inputs[name].table_rows)

        kept = {one: self._shown(one) for one in self._layout.kept if self.state.rows(self._layout.taken[one])}
        return Relations(self._layout, self._types, changed, old, kept, first)

    def _shown(self, operator: Operator) -> Shown:
        relation = self._layout.taken[operator]
        name = f"{self._prefix}_kept_{relation}"
        return Shown(name, self._runner.show(relation, name, self._kept[operator]))

    def _take(self, relations: Relations, operator: Operator, relation: str) -> None:
        text = relations.delta(operator)
        if text is None:
            relations.took(operator, None, 0)
            return
        name, columns = f"{self._prefix}_{relation}", [*operator.columns, WEIGHT]
        kept = relation if operator in self._layout.kept else None
        rows = self._runner.run(text, name, relations.changes(operator) <= SMALL, kept, columns)
        relations.took(operator, select(listed(columns), name), rows)

    def _take_sums(self, relations: Relations, operator: Aggregate, sums: Sums, relation: str) -> pa.Table | None:
        """Computes the changes of sums, and gives those of the result if they come with them."""
        change = relations.delta(operator.input)
        if change is None and (operator.keys or not relations.first):
            relations.took(operator, None, 0)
            return None
        name, small = f"{self._prefix}_{relation}", relations.changes(operator.input) <= SMALL
        added = None if change is None else deltas.added(operator, sums, change)
        before = relations.kept.get(operator)
        within = None
        if added is not None and before is not None and before.rows > _WHOLE and operator.keys:
            self._runner.run(deltas.added_up(operator, sums, added), f"{name}_added", small)
            added = f"{name}_added"
            within = Within(
                select(listed(operator.keys), added), tuple(KeyMatch(key, key) for key in operator.keys), small
            )
        kept = restricted(before.name, within) if before else None
        text = deltas.linear_aggregate(operator, sums, added, kept, relations.in_one_task(operator.input))
        columns = [*operator.keys, *(one.name for one in sums.columns)]
        if small and self._direct is not None and self._direct.aggregate == operator:
            brought = self._runner.bring(self._direct.query(sums, text, relations.first), relation, columns)
            if brought is not None:
                return self._direct.rows(brought, self._columns)
        rows = self._runner.run(text, name, small, relation, columns)
        if self._identified and operator is self._root:
            relations.took(operator, deltas.numbered(operator, name, self._columns), rows)
        else:
            relations.took(operator, deltas.answers_changed(operator, sums, name, relations.first), rows)
        return None

    def _fold(self, operator: Operator) -> None:
        relation = self._layout.taken[operator]
        if not self.state.is_due(relation):
            return
        found = self._shown(operator)
        sums = self._layout.sums.get(operator)
        if sums is not None and isinstance(operator, Aggregate):
            text = deltas.groups_left(operator, sums, found.name)
        else:
            text = deltas.consolidated(found.name, operator.columns)
        self._runner.fold(relation, text, found.rows <= 5 * SMALL)

    def _here(self, few: pa.Table) -> Changed:
        rows = few.cast(from_ddl(self._result_ddl))
        return Changed(rows, lambda: local(self._spark, rows, self._result_ddl))

    def _result(self, relations: Relations) -> DataFrame:
        text = relations.delta(self._root)
        if text is None:
            return self._spark.createDataFrame([], self._result_ddl)
        if self._identified:
            return self._spark.sql(text)
        names = zip(self._root.columns, self._columns, strict=True)
        text = select([*(f"{quoted(made_up)} AS {quoted(name)}" for made_up, name in names), WEIGHT], text)
        return self._spark.sql(text if _is_consolidated(self._root) else deltas.consolidated(text, self._columns))


def _is_consolidated(operator: Operator) -> bool:
    """Whether the rule of an operator gives each changed row once."""
    match operator:
        case Aggregate() | Ranked() | Match():
            return True
        case Selection(below):
            return _is_consolidated(below)
        case Projection(below, expressions):
            # of anything but columns two rows may come to be the same, or one become several
            return {sql for _, sql in expressions} == set(listed(below.columns)) and _is_consolidated(below)
        case _:
            return False
