"""The books of a crew: the rank that leads keeps them, and tells the others what they ask."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from filelock import FileLock, Timeout

from pmfl.engines.crew import ALONE, Alone
from pmfl.study.store import Store, storing

AnswerT = TypeVar("AnswerT", None, bool, int, str, dict[str, Any])


class Books:
    """A store as all ranks see it; only one of them has it."""

    def __init__(self, out: Path, store: Store | None, crew: Alone = ALONE) -> None:
        self.out, self.store, self.crew = out, store, crew

    def ask(self, question: Callable[[Store], AnswerT]) -> AnswerT:
        """What the store says, or does; asked by all ranks at once, and answered to all."""
        store = self.store
        return self.crew.share(lambda: None if store is None else question(store))[0]  # type: ignore[return-value]

    @contextlib.contextmanager
    def claimed(self, run_id: str) -> Iterator[bool]:
        """Whether these ranks may play the run; the claim ends with the process that holds it, however it ends."""
        with contextlib.ExitStack() as held:
            yield self.ask(lambda store: held.enter_context(claimed(store, run_id)))


@contextlib.contextmanager
def claimed(store: Store, run_id: str) -> Iterator[bool]:
    """Whether this process may play the run; the claim ends with the process, however it ends."""
    folder = store.out / "locks"
    with storing(folder):
        folder.mkdir(exist_ok=True)
        lock = FileLock(folder / f"{run_id}.lock", timeout=0)
        try:
            lock.acquire()
        except Timeout:
            yield False
            return
    try:
        yield True
    finally:
        lock.release()
