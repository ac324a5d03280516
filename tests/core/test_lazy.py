"""Modules that are loaded when they are first used."""

from __future__ import annotations

import pickle
import subprocess
import sys

from headrace.core.runtime.lazy import lazy_modules


def test_a_module_is_loaded_at_the_first_access() -> None:
    code = (
        "import sys; from headrace.core.runtime.lazy import lazy_modules;"
        "durations = lazy_modules('headrace.core.options.durations');"
        "before = 'headrace.core.options.durations' in sys.modules; durations.format_duration;"
        "sys.exit(before or 'headrace.core.options.durations' not in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_several_modules_and_pickles() -> None:
    durations, sizes = lazy_modules("headrace.core.options.durations", "headrace.core.options.sizes")
    assert durations.__name__ == "headrace.core.options.durations"
    assert pickle.loads(pickle.dumps(sizes)).__name__ == "headrace.core.options.sizes"  # noqa: S301
