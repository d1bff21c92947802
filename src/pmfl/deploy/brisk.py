"""Flower's loops rest for seconds between two looks at their queues. Ours rest for a fraction of that."""

from __future__ import annotations

import time
from typing import Any

LONGEST = 0.25  # seconds


class Brisk:
    """Stands for the module ``time`` in a module of Flower's: its sleeps are short, all else is the same."""

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    def sleep(self, seconds: float) -> None:
        """Rest, but not long."""
        time.sleep(min(seconds, LONGEST))
