"""Pauses between attempts."""

import time

import pytest

from headrace.core.runtime.backoff import Backoff


def test_pauses_double_up_to_the_longest() -> None:
    backoff = Backoff(first=0.5, longest=3.0)
    assert [backoff.pause(failures) for failures in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    assert backoff.pause(100_000) == 3.0
    assert backoff.pause(-1) == 0.5


def test_jitter_spreads_a_pause_within_its_range() -> None:
    pauses = {Backoff(first=1.0, longest=1.0, jitter=(0.5, 1.0)).pause(0) for _ in range(50)}
    assert len(pauses) > 1
    assert all(0.5 <= pause <= 1.0 for pause in pauses)


def test_retries_end_before_a_pause_that_would_pass_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, slept = [0.0], list[float]()

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        clock[0] += seconds

    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(time, "sleep", sleep)
    retries = Backoff(first=1.0, longest=10.0).within(10.0)
    assert [retries.wait(), retries.wait(), retries.wait(), retries.wait()] == [True, True, True, False]
    assert slept == [1.0, 2.0, 4.0]
    retries.renew()
    assert retries.wait()
    assert retries.wait(requested=0.25)
    assert retries.wait(at_least=5.0)
    assert not retries.wait(requested=60.0)
    assert slept[3:] == [1.0, 0.25, 5.0]
