"""Spark functions that are more than a scalar expression to a view, by what they do, in lower case."""

from __future__ import annotations

_REGRESSION = ("avgx", "avgy", "count", "intercept", "r2", "slope", "sxx", "sxy", "syy")
AGGREGATES = {
    "any", "any_value", "approx_count_distinct", "approx_percentile", "approx_top_k", "array_agg", "avg", "bit_and",
    "bit_or", "bit_xor", "bool_and", "bool_or", "collect_list", "collect_set", "corr", "count", "count_if",
    "covar_pop", "covar_samp", "every", "first", "first_value", "histogram_numeric", "kurtosis",
    "last", "last_value", "listagg", "max", "max_by", "mean", "median", "min", "min_by", "mode", "percentile",
    "percentile_approx", "percentile_cont", "percentile_disc", "skewness", "some", "std", "stddev", "stddev_pop",
    "stddev_samp", "string_agg", "sum", "try_avg", "try_sum", "var_pop", "var_samp", "variance",
    "bitmap_and_agg", "bitmap_construct_agg", "bitmap_or_agg", "count_min_sketch", "hll_sketch_agg", "hll_union_agg",
    "approx_top_k_accumulate", "approx_top_k_combine", "schema_of_variant_agg", "vector_avg", "vector_sum",
    *(f"regr_{name}" for name in _REGRESSION),
    *(f"theta_{name}_agg" for name in ("sketch", "union", "intersection")),
    *(f"tuple_{name}_agg_{kind}" for name in ("sketch", "union", "intersection") for kind in ("double", "integer")),
    *(f"kll_{name}_agg_{kind}" for name in ("sketch", "merge") for kind in ("bigint", "double", "float")),
}  # fmt: skip
"""Aggregate functions."""

RENAMED = {"max_append_only": "max", "min_append_only": "min"}
"""Dozer's aggregate names and Spark's."""

UNSTABLE = {
    "rand": "it returns a different value each time", "randn": "it returns a different value each time",
    "random": "it returns a different value each time", "randstr": "it returns a different value each time",
    "uniform": "it returns a different value each time", "uuid": "it returns a different value each time",
    "shuffle": "it returns a different value each time", "aes_encrypt": "it returns a different value each time",
    "monotonically_increasing_id": "it depends on how rows are spread over tasks",
    "spark_partition_id": "it depends on how rows are spread over tasks",
    "input_file_name": "it depends on which file a row is read from",
    "input_file_block_start": "it depends on which file a row is read from",
    "input_file_block_length": "it depends on which file a row is read from",
    "current_timestamp": "it depends on the clock", "now": "it depends on the clock",
    "current_date": "it depends on the clock", "curdate": "it depends on the clock",
    "current_time": "it depends on the clock", "localtimestamp": "it depends on the clock",
    "current_user": "it depends on the user", "session_user": "it depends on the user",
    "user": "it depends on the user", "java_method": "the called method may return anything",
    "reflect": "the called method may return anything", "try_reflect": "the called method may return anything",
    "session_window": "a new row can merge two sessions, which cannot be maintained incrementally",
}  # fmt: skip
"""Functions whose result does not depend on table rows alone, and the reason."""

GENERATORS = {"explode", "explode_outer", "posexplode", "posexplode_outer"}
"""Table-generating functions that can be maintained incrementally."""

OTHER_GENERATORS = {
    "inline": "explode an array of structs, and take the fields of its elements",
    "inline_outer": "explode_outer an array of structs, and take the fields of its elements",
    "json_tuple": "get_json_object for each field",
    "stack": "UNION ALL of one SELECT for each row",
    "variant_explode": "cast the variant to an array or a map, and explode it",
    "variant_explode_outer": "cast the variant to an array or a map, and explode it",
}
"""Table-generating functions whose columns only Spark knows, and what to write instead."""

NUMBERED = {"row_number", "ntile", "lag", "lead"}
"""Window functions that depend on the order of single rows, ties of ORDER BY included."""

PEERS = {"rank", "dense_rank", "percent_rank", "cume_dist"}
"""Window functions that treat ties of ORDER BY as one row."""

ORDER_DEPENDENT = {
    "first", "first_value", "last", "last_value", "nth_value", "any_value", "collect_list", "array_agg", "collect_set",
    "listagg", "string_agg", "mode", "max_by", "min_by",
}  # fmt: skip
"""Functions whose result depends on which of several rows comes first."""
