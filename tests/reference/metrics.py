"""For tests that scrape a real `/metrics` page."""

from __future__ import annotations

import re

from headrace.reference.metrics import metrics_page


def documented(series: str) -> bool:
    """Whether the reference names the metric of a series; histograms and counters have series with suffixes."""
    metric = re.sub(r"_(bucket|sum|count)$", "", re.sub(r"_created$", "", series))
    return any(f"| `{name}` |" in metrics_page() for name in (series, metric, f"{metric}_total"))
