"""Play one run into a store: claim it, record it, checkpoint it, seal it."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from typing import Literal

from filelock import FileLock, Timeout

from pmfl.errors import Diverged, PmflError
from pmfl.study.run import Run
from pmfl.study.seal import seal
from pmfl.study.spec import RunSpec
from pmfl.study.store import Record, RunRow, Store, storing

FLUSH = 1.0  # seconds between writes of records

End = Literal["done", "interrupted", "taken"]


def row_of(spec: RunSpec, study: str) -> RunRow:
    """How a run is known before it starts."""
    return RunRow(
        run_id=spec.run_id,
        question_id=spec.question_id,
        study=study,
        method=spec.method.name,
        seed=spec.seed,
        spec=spec.model_dump(mode="json"),
        status="waiting",
        t=0,
        total=spec.training.rounds,
        seconds=0.0,
        resumed=0,
        started=time.time(),
        updated=time.time(),
    )


def play_run(store: Store, spec: RunSpec, stop: Callable[[], bool], workers: int = 1) -> End:
    """Play the rounds that are left. What goes wrong is remembered with the run, and raised."""
    run_id = spec.run_id
    with claimed(store, run_id) as mine:
        if not mine:
            return "taken"
        if store.is_done(run_id):
            store.tidy(run_id)
            return "done"
        try:
            return _play(store, spec, stop, workers)
        except PmflError as error:
            store.mark(run_id, status="diverged" if isinstance(error, Diverged) else "failed", note=note_of(error))
            raise


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


def _play(store: Store, spec: RunSpec, stop: Callable[[], bool], workers: int) -> End:
    run_id = spec.run_id
    run = Run(spec, folder=store.running(run_id), workers=workers)
    try:
        known = store.run(run_id)
        resumed = known.resumed + (run.t > 0)
        store.mark(run_id, status="running", resumed=resumed, t=run.t, note="")
        waiting: list[Record] = []
        flushed = time.monotonic()

        def flush(**values: object) -> None:
            nonlocal flushed
            store.write(run_id, waiting, t=run.t, seconds=run.seconds, **values)
            waiting.clear()
            flushed = time.monotonic()

        for record in run:
            waiting.append(record)
            if stop() and run.t < spec.training.rounds:
                flush(status="interrupted")
                run.save()
                return "interrupted"
            if run.checkpoint and run.checkpoint.due:
                flush()
                run.save()
            elif time.monotonic() - flushed > FLUSH:
                flush()
        flush()
        summary = seal(store, run_id, spec, run.w, {"t": run.t, "seconds": run.seconds, "resumed": resumed, "note": ""})
        store.mark(run_id, status="done", t=summary["t"], seconds=summary["seconds"])
        store.tidy(run_id)
        return "done"
    finally:
        run.close()


def note_of(error: PmflError) -> str:
    """An error as it is kept with a run."""
    return json.dumps({"code": error.code, "message": error.message, "hint": error.hint, "exit_code": error.exit_code})
