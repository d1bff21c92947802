"""Play one run into a store: claim it, record it, checkpoint it, seal it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Literal

from pmfl.errors import Diverged, EngineError, PmflError, RankLost
from pmfl.study.books import Books
from pmfl.study.books import claimed as claimed
from pmfl.study.run import Run
from pmfl.study.seal import seal
from pmfl.study.spec import RunSpec
from pmfl.study.store import Record, RunRow, Store

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
    return play_together(Books(store.out, store), spec, stop, workers)


def play_together(books: Books, spec: RunSpec, stop: Callable[[], bool], workers: int = 1) -> End:
    """The same as one rank of a crew, all of which call it with the same run."""
    run_id = spec.run_id
    with books.claimed(run_id) as mine:
        if not mine:
            return "taken"
        if books.ask(lambda store: _tidied(store, run_id)):
            return "done"
        try:
            return _play(books, spec, stop, workers)
        except PmflError as error:
            if books.store is not None:
                books.store.mark(run_id, status=_status(error), note=note_of(error))
            raise


def _tidied(store: Store, run_id: str) -> bool:
    """Whether the run is done; what a finished run does not need is then gone."""
    if store.is_done(run_id):
        store.tidy(run_id)
        return True
    return False


def _status(error: PmflError) -> str:
    if isinstance(error, RankLost):
        return "interrupted"
    return "diverged" if isinstance(error, Diverged) else "failed"


def _play(books: Books, spec: RunSpec, stop: Callable[[], bool], workers: int) -> End:
    run_id, crew = spec.run_id, books.crew
    _check_same(crew.share(lambda: run_id))
    run = Run(spec, folder=books.out / "running" / run_id, workers=workers, crew=crew)
    try:
        resumed = books.ask(lambda store: store.run(run_id).resumed) + (run.t > 0)
        books.ask(lambda store: store.mark(run_id, status="running", resumed=resumed, t=run.t, note=""))
        waiting: list[Record] = []
        flushed = time.monotonic()

        def flush(**values: object) -> None:
            nonlocal flushed
            books.ask(lambda store: store.write(run_id, waiting, t=run.t, seconds=run.seconds, **values))
            waiting.clear()
            flushed = time.monotonic()

        for record in run:
            waiting.append(record)
            due = run.checkpoint is not None and run.checkpoint.due
            stopping, due, late = crew.either(stop(), due, time.monotonic() - flushed > FLUSH)
            if stopping and run.t < spec.training.rounds:
                flush(status="interrupted")
                run.save()
                return "interrupted"
            if due:
                flush()
                run.save()
            elif late:
                flush()
        flush()
        books.ask(lambda store: _seal(store, run, resumed))
        return "done"
    finally:
        run.close()


def _seal(store: Store, run: Run, resumed: int) -> None:
    run_id = run.spec.run_id
    known = {"t": run.t, "seconds": run.seconds, "resumed": resumed, "note": ""}
    summary = seal(store, run_id, run.spec, run.w, known)
    store.mark(run_id, status="done", t=summary["t"], seconds=summary["seconds"])
    store.tidy(run_id)


def _check_same(ids: list[str]) -> None:
    if len(set(ids)) > 1:
        rank = next(rank for rank, run_id in enumerate(ids) if run_id != ids[0])
        raise EngineError(
            f"rank {rank} is about to play run {ids[rank]}, and rank 0 run {ids[0]}",
            hint="start all ranks with the same command, the same files and the same versions of everything",
            code="E132",
        )


def note_of(error: PmflError) -> str:
    """An error as it is kept with a run."""
    return json.dumps({"code": error.code, "message": error.message, "hint": error.hint, "exit_code": error.exit_code})
