"""Queries in the forms that Dagger users write, with its functions in windows, groups and joins: all can be planned."""

from __future__ import annotations

import json
from pathlib import Path

from headrace.plan.planner import make_plan
from headrace.project.loader import load

COLUMNS = (
    "id string, shop string, status string, at timestamp, total double, code int, tags map<string, string>, "
    "lines array<struct<sku: string, n: int>>, stops array<struct<place: struct<lat: double, lon: double>>>, "
    "place struct<lat: double, lon: double>, vs array<double>, ts array<timestamp>, start timestamp"
)
MINUTE = "TUMBLE (rowtime, INTERVAL '60' SECOND)"
END = "TUMBLE_END(rowtime, INTERVAL '60' SECOND) AS window_timestamp"
FORMS = {
    "lower_case": "select Tumble_end(rowtime, interval '60' second) as e, count(1) as n from `orders` "
    "group by code, Tumble (rowtime, interval '60' second)",
    "hop_over_lines": "SELECT HOP_END(\n rowtime,\n INTERVAL '60' SECOND,\n INTERVAL '1' HOUR\n) AS e, shop AS tag_shop"
    ", count(1) AS n FROM orders GROUP BY HOP(\n rowtime,\n INTERVAL '60' SECOND,\n INTERVAL '1' HOUR\n), shop",
    "inner": "SELECT n, window_timestamp FROM (SELECT cast((Sum(Case When status in ('GONE') Then 1 Else 0 End)) as "
    f"float) as n, {END} from `orders` GROUP BY {MINUTE})",
    "features": f"SELECT Features(LOWER(shop), id) AS features, {END} FROM orders GROUP BY {MINUTE}, shop",
    "typed_features": "SELECT FeaturesWithType('s', shop, 'StringType', 't', total, 'FloatType') AS f FROM orders "
    f"GROUP BY {MINUTE}",
    "join": "SELECT orders.shop AS tag_shop, sum(amount) AS a, TUMBLE_END(orders.rowtime, INTERVAL '60' MINUTE) AS e "
    "from `orders` join `bills` ON orders.id = bills.id AND bills.rowtime BETWEEN orders.rowtime AND orders.rowtime + "
    "INTERVAL '5' MINUTE GROUP BY TUMBLE (orders.rowtime, INTERVAL '60' MINUTE), orders.shop",
    "union": "SELECT id, shop, at FROM `orders` UNION ALL (SELECT id, '' AS shop, at FROM `bills`)",
    "rows": f"SELECT l.sku as tag_sku, count(1) as n, {END} FROM orders, UNNEST(orders.lines) AS l (sku, n) "
    f"GROUP BY {MINUTE}, l.sku",
    "map": "SELECT m.`key` AS k, m.`value` AS v FROM orders, UNNEST(orders.tags) AS m (`key`, `value`)",
    "distance": f"SELECT Distance(place.lat, place.lon, 1.5, 2) AS d, {END} FROM orders where status = 'GONE' "
    f"GROUP BY {MINUTE}, place.lat, place.lon",
    "path_in_group": f"SELECT CAST(ElementAt(stops, 'stops', 0, 'place.lat', 'orders') AS double) AS lat, {END} "
    f"FROM orders GROUP BY {MINUTE}, ElementAt(stops, 'stops', 0, 'place.lat', 'orders')",
    "seconds": "SELECT EndOfMonth(at.seconds, 'Asia/Jakarta') AS e, StartOfMonth(TimestampFromUnix(at.seconds), 'UTC') "
    "AS s, CURRENT_TIMESTAMP AS event_timestamp, rowtime AS rowtime FROM orders",
    "lookups": f"SELECT DartGet('names', shop, 24, '?') AS tag_shop, {END} FROM orders WHERE "
    f"DartContains('vip', shop, '^%s.*', 24) GROUP BY {MINUTE}, DartGet('names', shop, 24, '?')",
    "buckets": "SELECT id, bucket FROM orders, LATERAL TABLE(HistogramBucket(total, '1,2,5'))",
    "outliers": "SELECT `t`, CASE WHEN `o` THEN 1 ElSE 0 END as o FROM orders, LATERAL TABLE(OutlierMad(vs, ts, start, "
    "CAST(20 AS INTEGER), CAST(3 AS INTEGER), 10, 10)) AS T(`t`, `v`, `up`, `low`, `o`)",
    "outliers_of_windows": "SELECT T.v FROM (SELECT CollectArray(total) AS vs, CollectArray(rowtime) AS ts, "
    "HOP_START(rowtime, INTERVAL '1' MINUTE, INTERVAL '15' MINUTE) AS s FROM orders GROUP BY HOP(rowtime, INTERVAL '1' "
    "MINUTE, INTERVAL '15' MINUTE)), LATERAL TABLE(OutlierMad(vs, ts, s, 15, 3, 3, 5)) AS T(t, v, u, l, o)",
    "trends": "SELECT CAST(LinearTrend(ts, vs, start, 15) AS BIGINT) AS t, ExponentialMovingAverage(ts, vs, start, "
    "CAST(15 AS DOUBLE), CAST(0.2 AS DOUBLE)) AS e FROM orders",
    "split": "SELECT SPLIT(shop, '') AS parts, cardinality(Split(shop, ',')) AS n FROM orders",
}


def test_they_can_all_be_planned(tmp_path: Path) -> None:
    def stream(columns: str) -> dict[str, object]:
        event_time = {"column": "at", "watermark": "10s"}
        source = {"type": "files", "path": "data"}
        return {"source": source, "format": {"type": "json", "columns": columns}, "event_time": event_time}

    project = {
        "project": "forms",
        "functions": {"lookups": {"path": "lookups"}},
        "streams": {"orders": stream(COLUMNS), "bills": stream("id string, at timestamp, amount bigint")},
        "flows": {name: {"sql": sql, "dialect": "dagger", "sinks": ["noop"]} for name, sql in FORMS.items()},
    }
    (tmp_path / "headrace.yaml").write_text(json.dumps(project))
    plan = make_plan(load(tmp_path))
    assert {flow.name for flow in plan.flows} == set(FORMS)
    split = plan.flow("split").sql
    assert "SPLIT" not in split
    assert split.count("coalesce(") == 2
