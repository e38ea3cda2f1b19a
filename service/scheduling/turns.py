"""The order of waiting work, so that a caller's many items do not delay the others' few."""

from collections import deque
from collections.abc import Hashable, Iterator
from itertools import chain
from typing import Generic, TypeVar

from service.caller import CALLER

ItemT = TypeVar("ItemT")


class Turns(Generic[ItemT]):
    """Items in the order of arrival for each caller (`CALLER`); callers take turns.

    The first item is that of the caller whose turn it is. Removing an item ends its caller's turn.
    """

    def __init__(self) -> None:
        # Counted, because a queue's length is asked without its lock: other threads may change the
        # lanes while they are iterated.
        self._count = 0
        self._lanes: dict[Hashable, deque[ItemT]] = {}  # by caller, the next turn first

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[ItemT]:
        return chain.from_iterable(self._lanes.values())

    def append(self, item: ItemT) -> None:
        """Adds an item of the present caller."""
        caller = CALLER.get()
        self._lanes.setdefault(caller.key or caller, deque()).append(item)
        self._count += 1

    def remove(self, item: ItemT) -> None:
        """Removes an item if it is there."""
        for key, lane in self._lanes.items():
            # Checked first: an error of `remove` would print the item, photo and all.
            if item in lane:
                lane.remove(item)
                self._count -= 1
                del self._lanes[key]
                if lane:
                    self._lanes[key] = lane
                return

    def clear(self) -> None:
        """Removes all items."""
        self._lanes.clear()
        self._count = 0
