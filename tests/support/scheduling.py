"""Whether this machine lets a thread choose how it is scheduled; some sandboxes do not."""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest


def _why_no_choice() -> str:
    if sys.platform != "linux":
        return "only Linux has scheduling policies"
    with ThreadPoolExecutor(1) as thread:  # whose own policy ends with it
        choice = thread.submit(os.sched_setscheduler, 0, os.SCHED_BATCH, os.sched_param(0))
        error = choice.exception()
    return f"no scheduling policy can be chosen here: {error}" if error else ""


needs_policies = pytest.mark.skipif(bool(_why_no_choice()), reason=_why_no_choice())
