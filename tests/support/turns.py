"""Whether a thread that works lets others run: what holds the interpreter stalls the event loop."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor


def count_turns(work: Callable[[], object]) -> int:
    """Returns how often this thread runs while another one does some work."""
    turns = 0
    with ThreadPoolExecutor(1) as thread:
        working = thread.submit(work)
        while not working.done():
            turns += 1
            time.sleep(0.001)
    working.result()
    return turns
