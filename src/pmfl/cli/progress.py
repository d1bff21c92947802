"""What is seen while runs are played: bars on a terminal, plain lines elsewhere. Always on stderr."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.text import Text

from pmfl.cli import heed
from pmfl.study.jobs import Watch
from pmfl.study.store import RunRow, Store

EVERY = 10.0  # seconds between two lines where there is no terminal


@contextlib.contextmanager
def watching() -> Iterator[Watch]:
    """Something to call with the store and the rows of all runs, now and then."""
    console = Console(stderr=True)
    if console.is_terminal:
        with _progress(console) as progress:
            yield _heeding(Bars(progress).show)
    else:
        yield _heeding(Lines().show)


def _heeding(watch: Watch) -> Watch:
    """The same, where a signal that was lost is heeded after all."""

    def look(store: Store, rows: list[RunRow]) -> None:
        heed()
        watch(store, rows)

    return look


def _progress(console: Console) -> Progress:
    columns: list[str | ProgressColumn] = [
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:.0f}/{task.total:.0f}"),
        _Field("rate"),
        _Field("accuracy"),
        _Field("eta"),
    ]
    return Progress(*columns, console=console, auto_refresh=False, transient=False)


class _Field(ProgressColumn):
    """A text that the watcher computes."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__()

    def render(self, task: Task) -> Text:
        return Text(str(task.fields.get(self.name, "")), style="dim" if self.name == "eta" else "")


class Pace:
    """Rounds a second of each run, from what was seen of it since it began to move here."""

    def __init__(self) -> None:
        self._first: dict[str, tuple[float, int]] = {}

    def of(self, row: RunRow) -> float | None:
        """Rounds a second; None until there is something to measure."""
        now = time.monotonic()
        began, t = self._first.setdefault(row.run_id, (now, row.t))
        return (row.t - t) / (now - began) if now - began > 1 and row.t > t else None


class Bars:
    """A bar per run that is being played, and one for all."""

    def __init__(self, progress: Progress) -> None:
        self._progress, self._pace = progress, Pace()
        self._tasks: dict[str, int] = {}
        self._all = progress.add_task("runs", total=1)

    def show(self, store: Store, rows: list[RunRow]) -> None:
        """Draw the rows."""
        done = sum(row.status == "done" for row in rows)
        self._progress.update(self._all, total=len(rows), completed=done)
        for row in rows:
            if row.status == "running" or row.run_id in self._tasks:
                self._bar(store, row)
        self._progress.refresh()

    def _bar(self, store: Store, row: RunRow) -> None:
        task = self._tasks.get(row.run_id)
        if task is None:
            task = self._tasks[row.run_id] = self._progress.add_task(name_of(row), total=row.total)
        rate = self._pace.of(row) if row.status == "running" else row.t / row.seconds if row.seconds else None
        accuracy = accuracy_of(store, row)
        self._progress.update(
            task,  # type: ignore[arg-type]
            completed=row.t,
            rate=f"{rate:.1f} rounds/s" if rate else "",
            accuracy=f"{100 * accuracy:.1f} %" if accuracy is not None else "",
            eta=eta(row, rate),
        )


class Lines:
    """A line when a run ends, and one now and then for those that go on."""

    def __init__(self) -> None:
        self._pace = Pace()
        self._ended: set[str] = set()
        self._last = time.monotonic()

    def show(self, store: Store, rows: list[RunRow]) -> None:
        """Write what is new."""
        late = time.monotonic() - self._last > EVERY
        for row in rows:
            rate = self._pace.of(row) if row.status == "running" else row.t / row.seconds if row.seconds else None
            ended = row.status in ("done", "diverged", "failed", "interrupted")
            if (ended and row.run_id not in self._ended) or (late and row.status == "running"):
                self._write(store, row, rate)
            if ended:
                self._ended.add(row.run_id)
        if late:
            self._last = time.monotonic()

    def _write(self, store: Store, row: RunRow, rate: float | None) -> None:
        accuracy = accuracy_of(store, row)
        parts = [
            f"{name_of(row)}: {row.status}, round {row.t}/{row.total}",
            f"{rate:.1f} rounds/s" if rate else "",
            f"test accuracy {100 * accuracy:.1f} %" if accuracy is not None else "",
            eta(row, rate),
        ]
        sys.stderr.write(", ".join(part for part in parts if part) + "\n")
        sys.stderr.flush()


def name_of(row: RunRow) -> str:
    """A run in a few words."""
    return f"{row.method} seed {row.seed}"


def accuracy_of(store: Store, row: RunRow) -> float | None:
    """The newest test accuracy of a run, finished or not."""
    if row.metrics:
        return row.metrics.get("test/accuracy", {}).get("final")
    return store.latest(row.run_id, "test", "accuracy")


def eta(row: RunRow, rate: float | None) -> str:
    """How long it still takes, in words."""
    if not rate or row.status != "running":
        return ""
    left = round((row.total - row.t) / rate)
    return f"{left // 3600}:{left % 3600 // 60:02}:{left % 60:02} left"
