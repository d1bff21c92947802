"""A progress bar on stderr for work that turns out to take more than two seconds."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Any, Self

PATIENCE = 2.0  # seconds before anything is shown


class Progress:
    """Counts work; draws a bar once the work has taken longer than two seconds.

    >>> with Progress("decode", total=2) as progress:
    ...     progress.advance(2)
    """

    def __init__(self, what: str, total: int, *, size_in_bytes: bool = False) -> None:
        self.what, self.total, self.size_in_bytes = what, total, size_in_bytes
        self.done, self._began = 0, time.monotonic()
        self._bar: Any = None
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def advance(self, amount: int) -> None:
        """Say that so much more is done."""
        with self._lock:  # files are hashed in threads
            self.done += amount
            if self._bar is None and time.monotonic() - self._began > PATIENCE:
                self._show()
            if self._bar is not None:
                self._bar.update(0, completed=self.done, total=self.total)

    def _show(self) -> None:
        from rich import progress
        from rich.console import Console

        amount = progress.DownloadColumn() if self.size_in_bytes else progress.MofNCompleteColumn()
        self._bar = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            amount,
            progress.TimeRemainingColumn(),
            console=Console(stderr=True),
        )
        self._bar.add_task(self.what, total=self.total)
        self._bar.start()
