"""UTC times as text. `datetime.fromisoformat` reads both forms."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Literal

Precision = Literal["seconds", "milliseconds", "microseconds"]
Suffix = Literal["Z", "+00:00"]


def utc_text(moment: datetime, precision: Precision = "milliseconds", suffix: Suffix = "Z") -> str:
    """Documents for users have the suffix Z. Manifests and the audit log keep `+00:00`, as older files have it."""
    return moment.astimezone(UTC).isoformat(timespec=precision).removesuffix("+00:00") + suffix


def utc_now(precision: Precision = "milliseconds", suffix: Suffix = "Z") -> str:
    return utc_text(datetime.now(UTC), precision, suffix)
