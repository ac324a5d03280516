"""What Dagger's functions give for what its users write: NULL, empty arrays, literals of all types, zones, paths.

Where Headrace means to be better (a NULL or an unreadable JSON text does not end a flow, a time before 1970 is one) the
case says what Headrace gives.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

MINUTES = "transform(array({}), x -> timestamp_seconds(60 * x))"
POINTS = "transform(sequence(1, 14), x -> timestamp_seconds(60 * x)), timestamp_seconds(0)"

SCALARS: list[tuple[str, Any]] = [
    # arrays of any numbers, with the types as Dagger spells them
    ("ArrayAggregate(array(1.3, 2.3, 3.3), 'average', 'double')", 2.3),
    ("ArrayAggregate(array(1L, 2L, 3L), 'average', 'long')", 2.0),
    ("ArrayAggregate(array(1L, 1L, 1L, 2L, 3L), 'distinct.average', 'BIGINT')", 2.0),
    ("ArrayAggregate(array(4, 1, 4), 'distinct.sorted.sum', 'Integer')", 5),
    ("ArrayAggregate(array('b', 'a'), 'sorted.findFirst', 'Other')", "a"),
    ("ArrayAggregate(array('b', 'b', 'a'), 'count', 'OTHER')", 3),
    # nothing to compute with is 0 of numbers
    ("ArrayAggregate(array(), 'average', 'Integer')", 0.0),
    ("ArrayAggregate(CAST(array() AS ARRAY<DOUBLE>), 'max', 'Double')", 0.0),
    ("ArrayAggregate(array(), 'findFirst', 'Long')", 0),
    ("ArrayAggregate(array(), 'findFirst', 'Other')", None),
    ("ArrayAggregate(array(NULL, 1), 'findFirst', 'Long')", None),
    ("ArrayAggregate(NULL, 'max', 'int')", None),
    ("ArrayAggregate(NULL, 'count', 'Other')", None),
    ("ArrayOperate(array(1, 2, 1, 2, 1), 'distinct.sorted', 'int')", [1, 2]),
    ("ArrayOperate(NULL, 'distinct', 'Other')", None),
    ("ElementAt(array('p', 'q', NULL), 2)", None),
    ("ElementAt(array('p', 'q'), -2)", "p"),
    ("ElementAt(NULL, 0)", None),
    ("ElementAt(array(1, 2), 1L)", 2),
    ("ElementAt(array(struct(struct(1.5D AS lat) AS place)), 'routes', 0, 'place.lat')", 1.5),
    ("ElementAt(array(struct(struct(1.5D AS lat) AS place)), 'routes', 1, 'place.lat', 'booking')", None),
    ("ListContains(array('p', 'q'), 'q')", True),
    ("ListContains(array('p', 'q'), 'r')", False),
    ("ListContains(array('p', 'q'), NULL)", False),
    ("ListContains(NULL, 'p')", False),
    ("ListContains(array(), 'p')", False),
    ("ListContains(array(1, 2), 2L)", True),
    ("ListContains(array(1.5, 2), 2)", True),
    ("MapGet(map('a', '0.4', 'b', 'PB'), 'a')", "0.4"),
    ("MapGet(map('a', 4), 'c')", None),
    ("MapGet(map('a', 4), NULL)", None),
    ("MapGet(NULL, 'a')", None),
    ("MapGet(map(1, 'x'), 1L)", "x"),
    # Java leaves out empty parts at the end
    ("Split('a,b,,', ',')", ["a", "b"]),
    ("Split(',a', ',')", ["", "a"]),
    ("Split(',', ',')", []),
    ("Split('ab', ',')", ["ab"]),
    ("Split('a.b', '.')", []),
    ("Split(NULL, NULL)", []),
    ("Split(concat('a b ', ' '), substring('x', 2))", ["a", "b"]),
    ("ByteToString(X'')", ""),
    # numbers as users write them
    ("Distance(12.9716, 77.5946, 6.1751, 106.8650)", 3294.208197583382),
    ("Distance('12.9716', 77.5946F, 6.1751D, 106)", 3202.111),
    ("GeoHash(-6.170024, 106.8243203, 6L)", "qqguyu"),
    ("GeoHash(NULL, 106.8243203, 6)", None),
    ("S2Id(-6.170024D, '106.8243203', 13L)", "3344474489181175808"),
    ("S2Id(NULL, 106.8243203, 13)", None),
    ("S2AreaInKm2(3267730965564227584)", 909.9705838513138),
    # zones and times
    ("EndOfMonth(1562224758, 'Asia/Jakarta')", 1564592399),
    ("StartOfMonth(1562224758, 'UTC')", 1561939200),
    ("StartOfMonth(1562224758, 'Asia/Jakarta')", 1561914000),
    ("StartOfMonth(TimestampFromUnix(1562224758), 'Asia/Jakarta')", 1561914000),
    ("StartOfWeek(1562224758000, 'Asia/Jakarta')", 1561914000000),
    ("EndOfWeek(1561939200000, 'UTC')", 1562543999999),
    ("EndOfWeek(1562224758000, 'Asia/Jakarta')", 1562518799999),
    ("TimeInDate(1562224758, 21, 0, 'Asia/Jakarta')", 1562248800),
    ("TimeInDate(1562224758, 21, 0)", 1562274000),
    ("TimestampFromUnix(0)", datetime(1970, 1, 1, tzinfo=UTC)),
    ("TimestampFromUnix(NULL)", None),
    ("TimestampFromUnix(-60)", datetime(1969, 12, 31, 23, 59, tzinfo=UTC)),
    ("FormatTimeInZone(timestamp_millis(1607003114000), 'Asia/Jakarta', 'hh:mm aa')", "08:45 PM"),
    ("FormatTimeInZone(to_timestamp('2020-12-03 13:45:14'), 'Asia/Kolkata', 'yyyy/MM/dd')", "2020/12/03"),
    ("FormatTimeInZone(NULL, 'Asia/Kolkata', 'yyyy')", None),
    # JSON: a map is an object
    ("""JsonUpdate('{"a":null,"b":"c"}', '$.b', map('x', '1', 'y', '2'))""", '{"a":null,"b":{"x":"1","y":"2"}}'),
    ("""JsonUpdate('{"a":{"b":"c","d":1}}', '$.a.b', map('x', '1'))""", '{"a":{"b":{"x":"1"},"d":1}}'),
    ("""JsonUpdate('{"a":null}', '$.e', 'f')""", '{"a":null,"e":"f"}'),
    ("""JsonUpdate('{"a":null,"b":"c"}', '$.b', NULL)""", '{"a":null,"b":null}'),
    ("JsonUpdate('{}', '$.a', array(map('x', 1)))", '{"a":[{"x":1}]}'),
    ("JsonUpdate(NULL, '$.a', 1)", None),
    ("""JsonQuery('{"a":null,"b":"c"}', '$.a')""", None),
    ("""JsonQuery('{"a":null,"b"  "c"}', '$.b')""", None),
    ("JsonQuery('{}', NULL)", None),
    ("""JsonDelete('{"a":"b","c":["d","e"]}', '$..*')""", "{}"),
    ("""JsonDelete('{"a":"b","c":{"d":1}}', '$.c')""", '{"a":"b"}'),
    # minutes of a window
    (f"LinearTrend({MINUTES.format('0, 2, 4')}, array(2, 1, 4), timestamp_seconds(0), 5)", 0.4),
    (f"LinearTrend({MINUTES.format('1')}, array(2.0), timestamp_seconds(0), 5)", -0.2),
    (f"LinearTrend({MINUTES.format('0, 1, 2, 3, 4')}, array(2, 2, 2, 2, 2), timestamp_seconds(0), 5)", 0.0),
    (f"LinearTrend({MINUTES.format('1, 3, 5, 19, 7, 8, 10, 11')}, array(1, 1, 2, 1, 2, 2, 1, 1), "
     "timestamp_seconds(0), 20)", -0.030827067669172932),
    (f"LinearTrend({MINUTES.format('1, 3, 5, 7, 8, 10, 11, 11, 19')}, array(1, 1, 2, 2, 2, 1, 1, 1, 1), "
     "timestamp_seconds(0), 20)", -0.030827067669172932),
    ("LinearTrend(array(TIMESTAMP '1970-01-01 00:01:00'), array('2'), TIMESTAMP '1970-01-01 00:00:00', 5)", -0.2),
    ("LinearTrend(NULL, NULL, NULL, 5)", None),
    (f"ExponentialMovingAverage({MINUTES.format('0, 1, 2, 5')}, array(1.0, 4.0, 3.0, 7.0), timestamp_seconds(0), "
     "CAST(6 AS DOUBLE), CAST(0.2 AS DOUBLE))", 2.36256),
    ("ExponentialMovingAverage(NULL, NULL, NULL, 6, 0.2)", None),
    # features in their slots
    ("SingleFeatureWithType('k', '1.4', 'FloatType')[0].value.float_value = CAST(1.4 AS FLOAT)", True),
    ("SingleFeatureWithType(7, X'00ff', 'ByteType')[0]['key']", "7"),
    ("hex(SingleFeatureWithType(7, X'00ff', 'ByteType')[0].value.bytes_value)", "00FF"),
    ("SingleFeatureWithType('k', NULL, 'LongType')[0].value.int64_value", None),
    ("size(SingleFeatureWithType('a', 1L, 'LongType', 'b', true, 'BooleanType', 'c', 1.5, 'DoubleType'))", 3),
]  # fmt: skip

AGGREGATES: list[tuple[str, str, Any]] = [
    ("DistinctCount(v)", "('12'), ('12'), ('13'), (NULL)", 2),
    ("DistinctCount(NULL)", "(1)", 0),
    ("CollectArray(NULL)", "(1)", []),
    ("PercentileAggregator(CAST(90 AS DECIMAL(5, 2)), CAST(v AS DECIMAL(9, 2)))", "(1), (2), (3)", 3.0),
    ("PercentileAggregator(90, v)", "(1), (2), (3), (4), (5), (6), (7)", 7.0),
    ("Features('k', v)[0].value.double_value", "(1.5)", 1.5),
    ("Features('k', NULL)[0].name", "(1)", "k"),
    ("size(FeaturesWithType('k', v, 'StringType'))", "('a'), ('a'), ('b')", 2),
]

TABLES: list[tuple[str, list[list[Any]]]] = [
    ("HistogramBucket(30.0, '1,2,5,10,20')", [["+Inf"]]),
    ("LATERAL TABLE(HistogramBucket(10, '1,2,5,10,20'))", [["+Inf"], ["10"], ["20"]]),
    ("TABLE(HistogramBucket(10, '20')) AS T(b)", [["+Inf"], ["20"]]),
    ("HistogramBucket(NULL, '1')", []),
    (
        f"OutlierMad(array(1, 4, 4, 4, 5, 5, 5, 5, 7, 7, 8, 10, 11, 11), {POINTS}, 15, 3, 3, 5)",
        [[720000, 10, 11, -1, False], [780000, 11, 11, -1, False], [840000, 11, 11, -1, False]],
    ),
    (
        f"OutlierMad(array(1, 4, 4, 4, 5, 5, 5, 5, 7, 7, 8, 14, 16, 30), {POINTS}, 15, 4, 3, 76)",
        [[660000 + 60000 * i, value, 11, -1, False] for i, value in enumerate([8, 14, 16, 30])],
    ),
    (
        f"OutlierMad(array(1.0, 4, 4, 4, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5), {POINTS}, 15, 4, 3, 76)",
        [[660000 + 60000 * i, 5, 5, 5, False] for i in range(4)],
    ),
    ("OutlierMad(NULL, NULL, NULL, 15, 4, 3, 76)", []),
]

REFUSED: list[tuple[str, str]] = [
    ("ArrayAggregate(array('a'), 'distinct.count', 'String')", "unknown type 'String'"),
    ("ArrayAggregate(array(1), 'count', NULL)", "the type must be a string literal"),
    ("ArrayOperate(array('a'), 'distinct.sort', 'other')", "unknown operation sort"),
    ("ArrayAggregate(array('a'), 'distinct', 'other')", "one value"),
    ("ArrayAggregate(array(1), 'sum')", "takes 3 arguments"),
    ("Distance(1, 2, 3)", "takes 4 arguments"),
    ("JsonQuery('{}', '')", "invalid path"),
    ("JsonUpdate('{}', '$ .a', 1)", "invalid path"),
    ("SingleFeatureWithType('one')", "3 or more arguments"),
    ("SingleFeatureWithType('one', 'two', 'StringType', 'four')", "3 by 3"),
    ("SingleFeatureWithType('one', 'two', NULL)", "string literal"),
    ("SingleFeatureWithType('one', 'two', 'BytType')", "unknown type 'BytType'"),
    ("FeaturesWithType('one', 'two')", "3 or more arguments"),
    ("StartOfMonth(0, 'WIB')", "unknown time zone 'WIB'"),
    ("FormatTimeInZone(timestamp_seconds(0), 'UTC', 'foo')", "'f' in the pattern"),
    ("HistogramBucket(1, '1,x')", "'x' is not a number"),
]

# code, words of the message, words of the hint
FAILED: list[tuple[str, str, str, str]] = [
    ("Distanc(1, 2, 3, 4)", "unknown-function", "Distanc", "did you mean Distance?"),
    ("concta('a')", "unknown-function", "concta", "did you mean concat?"),
    ("ArrayAggregate('abc', 'count', 'other')", "function-argument", "ArrayAggregate: an argument", "array ARRAY<T>"),
    ("ListContains(array(1), '2')", "function-argument", "ListContains: an argument", "item T"),
    ("1 + Distance('x', 2, 51, 0)", "sql-failed", "The value 'x'", ""),
    ("S2Id('{6}', 2, 13)", "sql-failed", "The value '{6}'", ""),
    ("Split('a', '[')", "function-argument", "not a pattern: Unclosed character class", ""),
    ("Split('a', concat('[', ''))", "function-argument", "not a pattern: Unclosed character class", ""),
    ("EndOfMonth(1, concat('No', 'where'))", "sql-failed", "Nowhere", ""),
    ("Features('k', array(1))", "sql-failed", "no slot for a value of type array<int>", ""),
    ("collect_list(NULL)", "sql-failed", "unsupported type", "cast"),
]
