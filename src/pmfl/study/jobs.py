"""Play all runs of a study on a few worker processes, each of which claims the next run that nobody has.

Nobody schedules: whoever shares the folder shares the work. A worker that dies takes nothing with it but its claim,
and a worker whose parent died stops at once.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Literal, TypeAlias

from pmfl.engines.crew import ALONE
from pmfl.engines.ranks import Crew, Meeting
from pmfl.errors import Diverged, PmflError
from pmfl.study import nursery
from pmfl.study.books import Books
from pmfl.study.crews import (
    LOOK,
    Team,
    check_same_folder,
    following,
    heeding,
    play_left,
    ranks_of,
    start_crew,
    started_elsewhere,
)
from pmfl.study.play import row_of
from pmfl.study.spec import RunSpec
from pmfl.study.store import RunRow, Store

Watch: TypeAlias = Callable[[Store, list[RunRow]], None]


def run_all(
    out: Path,
    study: str,
    specs: Sequence[RunSpec],
    *,
    jobs: int = 0,
    watch: Watch | None = None,
) -> list[RunRow]:
    """Play what is not done yet; returns what is known of the runs, in the order of ``specs``.

    Whatever interrupts it (Ctrl-C, say) first stops the workers after their round, with checkpoints written. Where
    torchrun has started this process as a rank, it plays with the others, and only the rank that leads returns rows.
    """
    meeting = started_elsewhere(specs)
    if meeting is not None:
        return _run_as_rank(meeting, out, study, specs, watch)
    store = Store(out, create=True)
    ids = [spec.run_id for spec in specs]
    try:
        missing = _prepare(store, study, specs)
        for ranks, theirs in _by_ranks(missing).items():
            while theirs:
                left = _play_all(store, theirs, ranks, jobs, lambda: _tell(store, ids, watch))
                theirs = left if len(left) < len(theirs) else []
        return _rows(store, ids)
    finally:
        _remove_locks(store)
        store.close()


def leads(specs: Sequence[RunSpec]) -> bool:
    """Whether this process shows results; of ranks on many machines, one does."""
    meeting = started_elsewhere(specs)
    return meeting is None or meeting.rank == 0


def _prepare(store: Store, study: str, specs: Sequence[RunSpec]) -> list[RunSpec]:
    """Make runs known; returns those that are not done yet."""
    for spec in specs:
        store.add(row_of(spec, study))
    for spec in specs:
        if store.is_done(spec.run_id):
            store.tidy(spec.run_id)
    missing = [spec for spec in specs if not store.is_done(spec.run_id)]
    for spec in missing:
        store.mark(spec.run_id, status="waiting", note="")
    return missing


def _by_ranks(specs: Sequence[RunSpec]) -> dict[int, list[RunSpec]]:
    """Runs by how many ranks play each; 0 for none."""
    groups: dict[int, list[RunSpec]] = {}
    for spec in specs:
        groups.setdefault(ranks_of(spec.engine, _cores()), []).append(spec)
    return groups


def _run_as_rank(
    meeting: Meeting, out: Path, study: str, specs: Sequence[RunSpec], watch: Watch | None
) -> list[RunRow]:
    """What ``run_all`` does, for a process that is one of the ranks."""
    stopping, ids = threading.Event(), [spec.run_id for spec in specs]
    with heeding(stopping) as heard, contextlib.ExitStack() as held:
        crew = Crew(meeting, device=specs[0].engine.device)
        held.callback(crew.leave)
        store = crew.together(lambda: Store(out, create=True) if crew.leads else None)
        books = Books(out, store, crew)
        check_same_folder(books)
        missing = books.ask(lambda store: {spec.run_id: True for spec in _prepare(store, study, specs)})
        if store is not None and watch is not None:
            held.enter_context(following(lambda seen: watch(seen, _rows(seen, ids)), out))
        threads = max(_cores() // int(os.environ.get("LOCAL_WORLD_SIZE", "1")), 1)
        play_left(books, [spec for spec in specs if spec.run_id in missing], stopping, threads)
    if store is None:
        rows = []
    else:
        rows = _rows(store, ids)
        _remove_locks(store)
        store.close()
    if heard:
        signal.raise_signal(heard[0])  # for whoever would have heard it
    return rows


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


def _play_all(store: Store, specs: list[RunSpec], ranks: int, jobs: int, tell: Callable[[], None]) -> list[RunSpec]:
    """Play runs on worker processes or crews of them; returns those that a crew which broke off did not reach."""
    lifeline, held = nursery.context.Pipe(duplex=False)
    jobs = jobs or min(max(_cores() // max(ranks, 1), 1), len(specs))
    arguments = (store.out, specs, max(_cores() // (jobs * max(ranks, 1)), 1), lifeline)
    teams: list[Team] = []
    try:
        for _ in range(jobs):
            with nursery.held_back():
                crew = (
                    start_crew(ranks, _work, arguments) if ranks else Team([nursery.start(_work, (None, *arguments))])
                )
                teams.append(crew)
        while any(team.alive for team in teams):
            tell()
            time.sleep(LOOK)
            for team in teams:
                team.look()
        for team in teams:
            team.check()
    finally:
        for team in teams:
            team.stop()
        tell()
        held.close()
    waiting = {row.run_id for row in _rows(store, [spec.run_id for spec in specs]) if row.status == "waiting"}
    return [spec for spec in specs if spec.run_id in waiting] if any(team.unfinished for team in teams) else []


def _work(
    join: Callable[[str], Crew] | None,
    out: Path,
    specs: list[RunSpec],
    threads: int,
    lifeline: Connection,
) -> None:
    """One worker: claim, play, claim the next, until nothing is left; alone, or as a rank of a crew."""
    threading.Thread(target=_die_with_parent, args=(lifeline,), daemon=True).start()
    stopping = threading.Event()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent gets it too, and says when to stop
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    nursery.listen()
    crew = ALONE if join is None else join(specs[0].engine.device)
    store = Store(out, create=True) if crew.leads else None
    play_left(Books(out, store, crew), specs, stopping, threads)
    crew.leave()
    if store is not None:
        store.close()


def _die_with_parent(lifeline: Connection) -> None:
    with contextlib.suppress(EOFError, OSError):
        lifeline.recv()
    os._exit(1)


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
