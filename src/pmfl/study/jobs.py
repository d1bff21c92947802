"""Play all runs of a study on a few worker processes, each of which claims the next run that nobody has.

Nobody schedules: whoever shares the folder shares the work. A worker that dies takes nothing with it but its claim,
and a worker whose parent died stops at once.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Literal, TypeAlias

from pmfl.errors import Diverged, PmflError, StoreError
from pmfl.study.play import note_of, play_run, row_of
from pmfl.study.spec import RunSpec
from pmfl.study.store import RunRow, Store

Watch: TypeAlias = Callable[[Store, list[RunRow]], None]

LOOK = 0.2  # seconds between two looks at the workers


def run_all(
    out: Path,
    study: str,
    specs: Sequence[RunSpec],
    *,
    jobs: int = 0,
    watch: Watch | None = None,
) -> list[RunRow]:
    """Play what is not done yet; returns what is known of the runs, in the order of ``specs``.

    Whatever interrupts it (Ctrl-C, say) first stops the workers after their round, with checkpoints written.
    """
    store = Store(out, create=True)
    ids = [spec.run_id for spec in specs]
    try:
        for spec in specs:
            store.add(row_of(spec, study))
        for run_id in ids:
            if store.is_done(run_id):
                store.tidy(run_id)
        missing = [spec for spec in specs if not store.is_done(spec.run_id)]
        for spec in missing:
            store.mark(spec.run_id, status="waiting", note="")
        if missing:
            _play_all(store, missing, jobs or min(_cores(), len(missing)), lambda: _tell(store, ids, watch))
        return _rows(store, ids)
    finally:
        _remove_locks(store)
        store.close()


def raise_failures(rows: Sequence[RunRow], status: Literal["failed", "diverged"]) -> None:
    """Raise the error of the first run that ended in one."""
    for row in rows:
        if row.status == status and row.note:
            kept = json.loads(row.note)
            error = Diverged.__new__(Diverged) if row.status == "diverged" else PmflError.__new__(PmflError)
            PmflError.__init__(
                error,
                f"run {row.run_id} ({row.method}, seed {row.seed}): {kept['message']}",
                hint=kept["hint"],
                code=kept["code"],
            )
            error.exit_code = kept["exit_code"]
            raise error


def _play_all(store: Store, specs: Sequence[RunSpec], jobs: int, tell: Callable[[], None]) -> None:
    # Forking keeps torch imported; it is safe here, since nothing has been computed on several threads yet.
    context: Any = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    lifeline, held = context.Pipe(duplex=False)
    threads = max(_cores() // jobs, 1)
    workers: list[BaseProcess] = []
    try:
        for _ in range(jobs):
            worker = context.Process(target=_work, args=(store.out, list(specs), threads, lifeline, held), daemon=True)
            worker.start()
            workers.append(worker)
        while any(worker.is_alive() for worker in workers):
            tell()
            time.sleep(LOOK)
        _check_exits(workers)
    finally:
        _stop(workers)
        tell()
        held.close()


def _work(out: Path, specs: list[RunSpec], threads: int, lifeline: object, held: object) -> None:
    """One worker: claim, play, claim the next, until nothing is left."""
    held.close()  # type: ignore[attr-defined]  # or the pipe would stay open when the parent is gone
    threading.Thread(target=_die_with_parent, args=(lifeline,), daemon=True).start()
    stopping = threading.Event()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent gets it too, and says when to stop
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    store = Store(out, create=True)
    left = list(specs)
    while left and not stopping.is_set():
        taken = []
        for spec in left:
            try:
                if play_run(store, spec, stopping.is_set, threads) == "taken":
                    taken.append(spec)
            except StoreError:
                raise SystemExit(2) from None  # remembered with the run where that was possible
            except PmflError:
                continue  # remembered with the run
            except Exception as error:
                if os.environ.get("PMFL_DEBUG"):
                    raise
                unexpected = PmflError(
                    f"unexpected {type(error).__name__}: {error}",
                    hint="PMFL_DEBUG=1 shows where; please report it",
                    code="P001",
                )
                unexpected.exit_code = 1
                store.mark(spec.run_id, status="failed", note=note_of(unexpected))
            if stopping.is_set():
                break
        left = [spec for spec in taken if not store.is_done(spec.run_id)]
        if left:
            stopping.wait(0.5)  # somebody else plays these; take them over should that process die
    store.close()


def _die_with_parent(lifeline: object) -> None:
    with contextlib.suppress(EOFError, OSError):
        lifeline.recv()  # type: ignore[attr-defined]
    os._exit(1)


def _stop(workers: Sequence[BaseProcess]) -> None:
    """Ask politely: every worker finishes its round and writes a checkpoint."""
    for worker in workers:
        if worker.is_alive():
            worker.terminate()
    for worker in workers:
        worker.join()


def _check_exits(workers: Sequence[BaseProcess]) -> None:
    for worker in workers:
        if worker.exitcode and worker.exitcode < 0:
            name = signal.Signals(-worker.exitcode).name
            raise PmflError(
                f"a worker process was ended by {name}, perhaps for want of memory",
                hint="run the same command again: it goes on where it stopped",
                code="P002",
            )


def _rows(store: Store, ids: Sequence[str]) -> list[RunRow]:
    known = {row.run_id: row for row in store.runs()}
    return [known[run_id] for run_id in ids]


def _tell(store: Store, ids: Sequence[str], watch: Watch | None) -> None:
    if watch:
        watch(store, _rows(store, ids))


def _remove_locks(store: Store) -> None:
    """Locks that nobody holds; one that is held stays."""
    from filelock import FileLock, Timeout

    folder = store.out / "locks"
    for file in folder.glob("*.lock"):
        with contextlib.suppress(Timeout, OSError), FileLock(file, timeout=0):
            file.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        folder.rmdir()


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
