--- linear

-- star
SELECT * FROM {a}

-- where
SELECT {a.id}, {a.s}, {a.n} FROM {a} WHERE {a.n} {cmp} {lit}

-- where_nulls
SELECT {a.id}, {a.p} FROM {a} WHERE {a.s} IS NULL OR {a.n} IN (1, 3) OR NOT {a.f}

-- where_between
SELECT {a.id}, {a.d} FROM {a} WHERE {a.d} BETWEEN DATE'2026-02-01' AND DATE'2026-02-28' OR {a.s} LIKE '%a%'

-- expressions
SELECT {a.id}, coalesce({a.n}, 0) + 1 AS more, CAST({a.n} AS STRING) AS text, {a.x} * 2 AS twice, CASE WHEN
{a.f} THEN upper({a.s}) WHEN {a.n} > 1 THEN 'many' ELSE {a.s} END AS word, {a.s} || '!' AS loud FROM {a}

-- times
SELECT {a.id}, year({a.d}) AS y, date_trunc('HOUR', {a.t}) AS h, {a.d} + INTERVAL 1 DAY AS later,
datediff({a.d}, DATE'2026-01-01') AS days FROM {a} WHERE {a.t} > TIMESTAMP'2026-03-01 12:00:00'

-- constants
SELECT 'x' AS word, 1 AS one, CAST(NULL AS INT) AS nothing FROM {a} WHERE {a.f}

-- explode
SELECT {a.id}, e FROM {a} LATERAL VIEW explode(array({a.n}, {a.n} + 1, NULL)) made AS e

-- subquery
SELECT q.i, q.m * 2 AS m FROM (SELECT {a.id} AS i, {a.n} + 1 AS m, {a.f} AS f FROM {a}) q WHERE q.f

-- aliases
SELECT {a.id}, {a.n} + 1 AS more, more * 2 AS twice FROM {a} WHERE {a.n} {cmp} {lit}

--- inner joins

-- inner
SELECT {a.id}, {b.id} AS other, {a.n}, {b.s} FROM {a} JOIN {b} ON {a.k} = {b.k}

-- inner_condition
SELECT {a.id}, {b.id} AS other FROM {a} JOIN {b} ON {a.k} = {b.k} AND {a.n} {cmp} {b.n}

-- inner_two_columns
SELECT {a.id}, {b.id} AS other FROM {a} JOIN {b} ON {b.k} = {a.k} AND {a.p} = {b.p}

-- inner_filtered
SELECT {a.id}, {b.n} FROM {a} JOIN {b} ON {a.k} = {b.k} WHERE {a.f} AND {b.n} {cmp} {lit}

-- inner_expression
SELECT {a.id}, {b.id} AS other FROM {a} JOIN {b} ON {a.n} + 1 = {b.n} * 1

-- inner_null_safe
SELECT {a.id}, {b.id} AS other FROM {a} JOIN {b} ON {a.k} <=> {b.k}

-- comma
SELECT {a.s}, {b.s} AS other FROM {a}, {b} WHERE {a.k} = {b.k} AND {a.p} >= {b.p}

-- cross
SELECT {a.id}, {b.id} AS other FROM {a} CROSS JOIN {b} WHERE {a.n} {cmp} {b.n}

-- using
SELECT {k}, {a.n}, {b.n} AS other FROM {a} JOIN {b} USING ({k})

-- natural
SELECT * FROM {a} NATURAL JOIN {b}

-- self
SELECT {a.id}, {a2.id} AS other FROM {a} JOIN {a2} ON {a.k} = {a2.k} AND {a.n} <= {a2.n}

-- three
SELECT {a.id}, {b.id} AS i, {c.n} FROM {a} JOIN {b} ON {a.k} = {b.k} JOIN {c} ON {b.p} = {c.p} WHERE {c.n} {cmp}
{lit}

-- triangle
SELECT {a.s}, {b.s} AS s2, {c.s} AS s3 FROM {a}, {b}, {c} WHERE {a.k} = {b.k} AND {b.k} = {c.k} AND {a.p} =
{c.p}

--- outer joins

-- left
SELECT {a.id}, {a.n}, {b.id} AS other, {b.s} FROM {a} LEFT JOIN {b} ON {a.k} = {b.k}

-- left_condition
SELECT {a.id}, {b.id} AS other FROM {a} LEFT JOIN {b} ON {a.k} = {b.k} AND {a.n} {cmp} {b.n}

-- left_condition_of_one
SELECT {a.id}, {b.id} AS other FROM {a} LEFT JOIN {b} ON {a.k} = {b.k} AND {a.f} AND {b.n} {cmp} {lit}

-- left_null_safe
SELECT {a.s}, {b.s} AS other FROM {a} LEFT JOIN {b} ON {a.k} <=> {b.k}

-- left_missing
SELECT {a.id} FROM {a} LEFT JOIN {b} ON {a.k} = {b.k} WHERE {b.k} IS NULL

-- right
SELECT {a.id}, {b.id} AS other FROM {a} RIGHT JOIN {b} ON {a.k} = {b.k}

-- full
SELECT {a.id}, {b.id} AS other, {a.k}, {b.k} AS k2 FROM {a} FULL JOIN {b} ON {a.k} = {b.k}

-- full_condition
SELECT {a.id}, {b.id} AS other FROM {a} FULL JOIN {b} ON {a.k} = {b.k} AND {a.p} <> {b.p}

-- full_using
SELECT {k}, {a.n}, {b.n} AS other FROM {a} FULL JOIN {b} USING ({k})

-- right_using
SELECT {k}, {a.n}, {b.n} AS other FROM {a} RIGHT JOIN {b} USING ({k})

-- full_of_groups
SELECT l.k, l.c, r.k AS k2, r.c AS c2 FROM (SELECT {a.k} AS k, count(*) AS c FROM {a} GROUP BY {a.k}) l
FULL JOIN (SELECT {b.k} AS k, max({b.n}) AS c FROM {b} GROUP BY {b.k}) r ON l.k = r.k

-- left_then_inner
SELECT {a.id}, {b.id} AS i, {c.id} AS j FROM {a} LEFT JOIN {b} ON {a.k} = {b.k} JOIN {c} ON {a.p} = {c.p}

-- inner_then_left
SELECT {a.id}, {b.id} AS i, {c.id} AS j FROM {a} JOIN {b} ON {a.k} = {b.k} LEFT JOIN {c} ON {b.k} = {c.k} AND
{a.p} = {c.p}

-- left_left
SELECT {a.id}, {b.s}, {c.s} AS s2 FROM {a} LEFT JOIN {b} ON {a.k} = {b.k} LEFT JOIN {c} ON {b.n} = {c.n}

-- self_left
SELECT {a.id}, {a2.id} AS other FROM {a} LEFT JOIN {a2} ON {a.n} = {a2.p}

--- semi and anti joins

-- semi
SELECT {a.id}, {a.s} FROM {a} LEFT SEMI JOIN {b} ON {a.k} = {b.k}

-- anti
SELECT {a.id}, {a.s} FROM {a} LEFT ANTI JOIN {b} ON {a.k} = {b.k}

-- in
SELECT {a.id}, {a.n} FROM {a} WHERE {a.k} IN (SELECT {b.k} FROM {b} WHERE {b.n} {cmp} {lit})

-- exists
SELECT {a.id} FROM {a} WHERE EXISTS (SELECT 1 FROM {b} WHERE {b.k} = {a.k} AND {b.n} {cmp} {a.n})

-- not_exists
SELECT {a.s}, {a.n} FROM {a} WHERE {a.n} {cmp} {lit} AND NOT EXISTS (SELECT * FROM {b} WHERE {b.k} = {a.k})

-- in_and_exists
SELECT {a.id} FROM {a} WHERE {a.k} IN (SELECT {b.k} FROM {b}) AND NOT EXISTS (SELECT 1 FROM {c} WHERE {c.p} =
{a.p} AND {c.k} = {a.k})

-- in_groups
SELECT {a.id} FROM {a} WHERE {a.k} IN (SELECT {b.k} FROM {b} GROUP BY {b.k} HAVING count(*) > 1)

-- in_correlated
SELECT {a.id} FROM {a} WHERE {a.k} IN (SELECT {b.k} FROM {b} WHERE {b.p} = {a.p})

-- exists_or
SELECT {a.id}, {a.s} FROM {a} WHERE {a.f} OR EXISTS (SELECT 1 FROM {b} WHERE {b.k} = {a.k})

--- sets

-- union_all
SELECT {a.id}, {a.n} FROM {a} UNION ALL SELECT {a.id}, {a.n} + 1 FROM {a} WHERE {a.f}

-- union
SELECT {a.n} AS v, {a.s} AS w FROM {a} UNION SELECT {b.n}, {b.s} FROM {b}

-- union_three
SELECT {a.n} AS v FROM {a} UNION ALL SELECT {b.x} FROM {b} UNION SELECT {c.p} FROM {c}

-- union_filtered
SELECT q.v FROM (SELECT {a.p} AS v FROM {a} UNION ALL SELECT {b.x} FROM {b}) q WHERE CAST(q.v AS STRING) LIKE '%.0'

-- union_limit
SELECT {a.n} AS v FROM {a} UNION SELECT {b.n} FROM {b} ORDER BY v DESC LIMIT 3

-- distinct
SELECT DISTINCT {a.g}, {a.f} FROM {a}

-- distinct_join
SELECT DISTINCT {a.s}, {b.f} FROM {a} JOIN {b} ON {a.k} = {b.k}

-- intersect
SELECT {a.k}, {a.p} FROM {a} INTERSECT SELECT {b.k}, {b.p} FROM {b}

-- except
SELECT {a.k}, {a.p} FROM {a} EXCEPT SELECT {b.k}, {b.p} FROM {b}

-- except_all
SELECT {a.k}, {a.p} FROM {a} EXCEPT ALL SELECT {b.k}, {b.p} FROM {b}

-- intersect_all
SELECT {a.n}, {a.f} FROM {a} INTERSECT ALL SELECT {b.x}, {b.f} FROM {b}

-- except_groups
SELECT {a.s}, count(*) AS c FROM {a} GROUP BY {a.s} EXCEPT SELECT {b.s}, count(*) FROM {b} GROUP BY {b.s}

--- aggregates

-- sums
SELECT {a.g}, count(*) AS c, count({a.n}) AS cn, sum({a.n}) AS s, avg({a.n}) AS m FROM {a} GROUP BY {a.g}

-- sums_of_doubles
SELECT {a.s}, sum({a.x}) AS s, avg({a.x}) AS m, count({a.x}) AS c FROM {a} GROUP BY {a.s}

-- extremes
SELECT {a.k}, min({a.n}) AS low, max({a.x}) AS high, min({a.s}) AS one, max({a.t}) AS newest FROM {a} GROUP BY
{a.k}

-- count_distinct
SELECT {a.s}, count(DISTINCT {a.n}) AS d, count(DISTINCT {a.k}, {a.f}) AS two, sum(DISTINCT {a.n}) AS s,
count(*) AS c FROM {a} GROUP BY {a.s}

-- spread
SELECT {a.f}, stddev({a.n}) AS sd, var_pop({a.x}) AS v, corr({a.n}, {a.x}) AS r FROM {a} GROUP BY {a.f}

-- percentiles
SELECT {a.f}, percentile({a.n}, 0.5) AS p, median({a.x}) AS m, percentile_cont(0.9) WITHIN GROUP (ORDER BY
{a.n}) AS high FROM {a} GROUP BY {a.f}

-- collect
SELECT {a.g}, collect_list({a.n}) AS listed, sort_array(collect_set({a.s})) AS kinds FROM {a} GROUP BY {a.g}

-- filtered
SELECT {a.g}, count(*) FILTER (WHERE {a.n} {cmp} {lit}) AS c, sum({a.n}) FILTER (WHERE {a.f}) AS s, max({a.d})
FILTER (WHERE {a.s} = 'a') AS d FROM {a} GROUP BY {a.g}

-- flags
SELECT {a.k}, count_if({a.f}) AS c, bool_and({a.f}) AS whole, bool_or({a.n} > 1) AS part FROM {a} GROUP BY {a.k}

-- having
SELECT {a.k}, count(*) AS c, sum({a.n}) AS s FROM {a} GROUP BY {a.k} HAVING count(*) > 1 AND sum({a.n}) > 1

-- having_unseen
SELECT {a.g} FROM {a} GROUP BY {a.g} HAVING max({a.n}) {cmp} {lit}

-- having_global
SELECT count(*) AS c, sum({a.n}) AS s FROM {a} HAVING count(*) > 3

-- global
SELECT count(*) AS c, sum({a.n}) AS s, avg({a.n}) AS m, max({a.s}) AS w FROM {a} WHERE {a.f}

-- global_linear
SELECT count(*) AS c, count({a.x}) AS x, sum({a.n}) AS s FROM {a}

-- by_expression
SELECT {a.n} % 2 AS odd, upper({a.s}) AS w, count(*) + 1 AS c, sum({a.n}) / count(*) AS m FROM {a} GROUP BY
{a.n} % 2, upper({a.s})

-- by_double
SELECT {a.x}, count(*) AS c, sum({a.p}) AS s FROM {a} GROUP BY {a.x}

-- by_place
SELECT coalesce({a.s}, '-') AS w, {a.f}, sum({a.n}) AS s FROM {a} GROUP BY 1, 2

-- nested
SELECT q.c, count(*) AS times, max(q.s) AS s FROM (SELECT {a.k} AS k, count(*) AS c, sum({a.n}) AS s FROM {a}
GROUP BY {a.k}) q GROUP BY q.c

-- nested_global
SELECT avg(q.c) AS m, count(*) AS g FROM (SELECT {a.g} AS g, count(*) AS c FROM {a} GROUP BY {a.g}) q

-- of_join
SELECT {b.s}, count(*) AS c, sum({a.n}) AS s FROM {a} JOIN {b} ON {a.k} = {b.k} GROUP BY {b.s}

-- of_join_extremes
SELECT {b.f}, max({a.n}) AS high, count(DISTINCT {a.s}) AS d FROM {a} JOIN {b} ON {a.k} = {b.k} GROUP BY {b.f}

-- of_left_join
SELECT {a.k}, count({b.p}) AS c, sum({b.n}) AS s FROM {a} LEFT JOIN {b} ON {a.k} = {b.k} GROUP BY {a.k}

-- join_of_groups
SELECT {a.id}, q.c, q.high FROM {a} JOIN (SELECT {b.k} AS k, count(*) AS c, max({b.n}) AS high FROM {b} GROUP BY
{b.k}) q ON {a.k} = q.k WHERE q.c > 1

-- left_join_of_groups
SELECT {a.id}, coalesce(q.c, 0) AS c FROM {a} LEFT JOIN (SELECT {b.k} AS k, count(*) AS c FROM {b} GROUP BY
{b.k}) q ON {a.k} = q.k

-- of_union
SELECT q.w, sum(q.v) AS s, count(*) AS c FROM (SELECT {a.s} AS w, {a.n} AS v FROM {a} UNION ALL SELECT {b.s},
{b.n} FROM {b}) q GROUP BY q.w

-- of_distinct
SELECT count(*) AS c, sum(q.n) AS s FROM (SELECT DISTINCT {a.n} AS n, {a.s} AS s FROM {a}) q

-- of_explode
SELECT e, count(*) AS c FROM {a} LATERAL VIEW explode(array({a.p}, {a.p} + 1)) made AS e GROUP BY e

-- rollup
SELECT {a.f}, {a.s}, sum({a.n}) AS s FROM {a} GROUP BY ROLLUP ({a.f}, {a.s})

--- common tables

-- cte
WITH q AS (SELECT {a.k} AS k, {a.n} AS n FROM {a} WHERE {a.p} > 0), r AS (SELECT k, sum(n) AS s FROM q GROUP BY
k) SELECT q.k, q.n, r.s FROM q JOIN r ON q.k = r.k

-- cte_twice
WITH q AS (SELECT {a.k} AS k, count(*) AS c FROM {a} GROUP BY {a.k}) SELECT l.k, l.c, r.k AS k2 FROM q l JOIN q
r ON l.c = r.c

-- cte_nested
WITH q AS (WITH i AS (SELECT {a.s} AS s, {a.n} AS n FROM {a}) SELECT s, max(n) AS n FROM i GROUP BY s) SELECT
DISTINCT n FROM q WHERE s IS NOT NULL

--- windows over rows

-- top
SELECT id, n, r FROM (SELECT {a.id} AS id, {a.n} AS n, row_number() OVER (PARTITION BY {a.k} ORDER BY {a.n}
DESC, {a.all}) AS r FROM {a}) WHERE r <= 2

-- qualify
SELECT {a.k}, {a.id} FROM {a} QUALIFY row_number() OVER (PARTITION BY {a.k} ORDER BY {a.all}) = 1

-- rank
SELECT {a.id}, rank() OVER (PARTITION BY {a.f} ORDER BY {a.n}) AS r, dense_rank() OVER (PARTITION BY {a.f} ORDER
BY {a.n}) AS d FROM {a}

-- lag
SELECT {a.id}, lag({a.n}) OVER (PARTITION BY {a.g} ORDER BY {a.all}) AS earlier, lead({a.s}, 2, '-') OVER
(PARTITION BY {a.g} ORDER BY {a.all}) AS later FROM {a}

-- running
SELECT {a.id}, sum({a.n}) OVER (PARTITION BY {a.p} ORDER BY {a.all} ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) AS
s FROM {a}

-- share
SELECT {a.id}, {a.n}, sum({a.n}) OVER (PARTITION BY {a.k}) AS total, count(*) OVER () AS c FROM {a}

-- top_of_groups
SELECT q.k, q.s FROM (SELECT {a.k} AS k, sum({a.n}) AS s FROM {a} GROUP BY {a.k}) q ORDER BY q.s DESC NULLS
LAST, q.k LIMIT 2

-- rank_of_groups
SELECT {a.s}, sum({a.n}) AS s, rank() OVER (ORDER BY sum({a.n}) DESC) AS r FROM {a} GROUP BY {a.s}

-- limit
SELECT {a.id}, {a.n} FROM {a} ORDER BY {a.n} DESC, {a.all} LIMIT 3

-- limit_offset
SELECT {a.s} FROM {a} ORDER BY {a.s}, {a.all} LIMIT 2 OFFSET 1

--- windows of time

-- time_window
SELECT window({a.t}, '5 minutes').start AS start, count(*) AS c FROM {a} GROUP BY window({a.t}, '5 minutes')

-- tumble
SELECT window_start, window_end, count(*) AS c, sum({n}) AS s FROM TUMBLE({A}, {t}, '5 MINUTES') GROUP BY
window_start, window_end

-- hop
SELECT {id}, window_start FROM HOP({A}, {t}, '2 MINUTES', '6 MINUTES')

--- subqueries that are values

-- scalar
SELECT {a.id}, (SELECT max({b.n}) FROM {b}) AS high FROM {a}

-- scalar_where
SELECT {a.id} FROM {a} WHERE {a.n} > (SELECT avg({b.n}) FROM {b} WHERE {b.f})

-- scalar_correlated
SELECT {a.id}, (SELECT count(*) FROM {b} WHERE {b.k} = {a.k}) AS c FROM {a}

-- scalar_correlated_sum
SELECT {a.id}, (SELECT sum({b.n}) FROM {b} WHERE {b.k} = {a.k}) AS s FROM {a} WHERE {a.p} > 0
