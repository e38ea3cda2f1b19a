"""Sharing: how the event loop and the model's workers share cores and interpreter.

In: nothing. Out: a thread, and those that it starts, that disturb a model as little as they can.
`server.py` asks for it before anything runs.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress

# A worker that has run its batch waits this long at most for the event loop to let it run Python.
# Under a flood of requests, whose refusal keeps the loop busy, Python's own 5 ms cost a fifth of
# the predictions.
_SWITCH_SECONDS = 0.0002


def share_cores() -> None:
    """Has this thread, and those that it starts, take a busy core in turn when they wake.

    Linux lets a thread that wakes interrupt the one that runs. The event loop so interrupts a
    model at each request and each answer, and takes the core's caches from it; in turn, a few
    milliseconds later, it does several at once: more predictions under load. Whoever started the
    service under another policy keeps that.

    The interpreter is handed over more often than is Python's custom, in all threads.
    """
    sys.setswitchinterval(_SWITCH_SECONDS)
    if sys.platform == "linux" and os.sched_getscheduler(0) == os.SCHED_OTHER:
        with suppress(OSError):  # a sandbox may forbid it
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
