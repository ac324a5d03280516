from __future__ import annotations

import os
import signal
import threading

import pytest

from headrace.cli.terminal.signals import cancelling


def test_spark_is_told_to_cancel_until_the_question_has_ended() -> None:
    """A question that is between two jobs when it is cancelled first would begin the next one."""
    told, often = 0, threading.Event()

    def cancel() -> None:
        nonlocal told
        told += 1
        if told == 3:
            often.set()

    with cancelling(cancel) as interrupted:
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        assert often.wait(30)
    assert interrupted.is_set()
