"""A sign of life of every rank, so that one which hangs or whose machine is gone is noticed within a minute.

A process that ends is noticed at once, since its connections close. One that is stopped, or a machine without power,
closes nothing: whoever waits for it would wait for ever.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

BEAT = 2.0  # seconds between two signs
SILENCE = 30.0  # seconds without one, after which a rank is given up


class Counters(Protocol):
    """What ranks have in common: numbers by name."""

    def add(self, name: str, amount: int, /) -> int:
        """Add to a number, which begins at 0; returns it."""
        ...


class Pulse:
    """Gives a sign now and then, and listens to the others; calls ``lost`` with those that fell silent."""

    def __init__(self, counters: Counters, rank: int, world: int, lost: Callable[[list[int]], None]) -> None:
        self._counters, self._rank, self._lost = counters, rank, lost
        self._others = [other for other in range(world) if other != rank]
        self._last = dict.fromkeys(self._others, (0, time.monotonic()))  # of each: its count, and since when
        self._end = threading.Event()
        # Two threads, since asking may take for ever when whoever keeps the counters is the one that hangs.
        self._threads = [threading.Thread(target=work, name="pulse", daemon=True) for work in (self._beat, self._watch)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """No more signs, and nobody is missed."""
        self._end.set()
        for thread in self._threads:
            thread.join(BEAT)

    def _beat(self) -> None:
        while not self._end.wait(BEAT):
            try:
                self._counters.add(f"pulse/{self._rank}", 1)
                for other in self._others:
                    count = self._counters.add(f"pulse/{other}", 0)
                    if count > self._last[other][0]:
                        self._last[other] = count, time.monotonic()
            except RuntimeError:
                pass  # the counters lie with rank 0, whose silence is noticed like any other

    def _watch(self) -> None:
        while not self._end.wait(BEAT):
            silent = [other for other in self._others if time.monotonic() - self._last[other][1] > SILENCE]
            if silent and not self._end.is_set():
                self._lost(silent)
                return
