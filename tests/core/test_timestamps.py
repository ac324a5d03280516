"""Points in time as text."""

from datetime import UTC, datetime, timedelta, timezone

from headrace.core.encoding.timestamps import utc_now, utc_text


def test_utc_has_a_z() -> None:
    moment = datetime(2026, 5, 1, 2, 0, 0, 123456, tzinfo=timezone(timedelta(hours=2)))
    assert utc_text(moment) == "2026-05-01T00:00:00Z"
    assert utc_text(moment, "milliseconds") == "2026-05-01T00:00:00.123Z"
    assert datetime.fromisoformat(utc_now()).tzinfo == UTC
