"""Ranks that play a study together: processes of this machine, or those that torchrun has started on many."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from pmfl.engines.ranks import AGAIN, LOST, Crew, Meeting, meeting_of
from pmfl.errors import EngineError, PmflError, RankLost, StoreError
from pmfl.study import nursery
from pmfl.study.books import Books
from pmfl.study.play import note_of, play_together
from pmfl.study.spec import EngineSpec, RunSpec
from pmfl.study.store import Store, storing

GRACE = 20.0  # seconds that ranks are given to notice that one of them has ended
UNKNOWN = 255  # what multiprocessing says of a worker when its nursery is gone
LOOK = 0.2  # seconds between two looks at what has become of runs


class Team:
    """The processes of this machine that play together: one, or the ranks of a crew."""

    def __init__(self, workers: Sequence[BaseProcess]) -> None:
        self.workers = list(workers)
        self._hung: list[int] = []
        self._broken: float | None = None  # since when

    @property
    def alive(self) -> bool:
        """Whether any of them is."""
        return any(worker.is_alive() for worker in self.workers)

    @property
    def unfinished(self) -> bool:
        """Whether it ended over one run, and the others were not reached."""
        return len(self.workers) > 1 and any(worker.exitcode == 1 for worker in self.workers)

    def look(self) -> None:
        """End those that wait for one which has ended."""
        if not any(worker.exitcode for worker in self.workers):
            return
        self._broken = self._broken or time.monotonic()
        if time.monotonic() - self._broken > GRACE:
            for rank, worker in enumerate(self.workers):
                if worker.is_alive():
                    self._hung.append(rank)
                    worker.kill()
                    worker.join()

    def stop(self) -> None:
        """Ask politely: they finish their round and write a checkpoint."""
        for worker in self.workers:
            if worker.is_alive():
                worker.terminate()
        while self.alive:
            time.sleep(LOOK / 4)
            self.look()

    def check(self) -> None:
        """Raise if one of them did not end by itself."""
        world, lost = len(self.workers), any(worker.exitcode == LOST for worker in self.workers)
        for rank, worker in enumerate(self.workers):
            if rank in self._hung:
                if lost:
                    raise RankLost(f"rank {rank} of {world} (process {worker.pid}) does not answer", hint=AGAIN)
            elif worker.exitcode and worker.exitcode < 0:
                name = signal.Signals(-worker.exitcode).name
                if world > 1:
                    raise RankLost(
                        f"rank {rank} of {world} was ended by {name}, perhaps for want of memory", hint=AGAIN
                    )
                raise PmflError(
                    f"a worker process was ended by {name}, perhaps for want of memory",
                    hint="run the same command again: it goes on where it stopped",
                    code="P002",
                )
            elif worker.exitcode == UNKNOWN:
                raise PmflError(
                    f"what became of worker process {worker.pid} is not known: the process that started it has ended",
                    hint="run the same command again: it goes on where it stopped",
                    code="P002",
                )
        if lost:
            raise RankLost(f"the {world} ranks of this machine lost each other", hint=AGAIN)


def start_crew(ranks: int, work: Callable[..., None], arguments: tuple[Any, ...]) -> Team:
    """Processes that call ``work(join, *arguments)``, where ``join()`` makes each a rank of one crew."""
    pipes = [nursery.context.Pipe(duplex=False) for _ in range(1, ranks)]
    ends = [[send for _, send in pipes], *([receive] for receive, _ in pipes)]
    meetings = [Meeting(rank, ranks, local_rank=rank) for rank in range(ranks)]
    team = Team(
        [nursery.start(work, (_Join(*both), *arguments)) for both in zip(meetings, ends, strict=True)],
    )
    for pipe in itertools.chain(*pipes):
        pipe.close()  # a rank that waits for one which has ended hears of it
    return team


class _Join:
    """How a process of this machine becomes a rank: the first finds a free port and tells the others."""

    def __init__(self, meeting: Meeting, ends: list[Connection]) -> None:
        self.meeting, self._ends = meeting, ends

    def __call__(self, device: str) -> Crew:
        meeting, store = self.meeting, None
        os.environ["LOCAL_WORLD_SIZE"] = str(meeting.world)
        try:
            if meeting.rank == 0:
                store = meeting.store()
                for end in self._ends:
                    end.send_bytes(str(store.port).encode())
            else:
                meeting = meeting._replace(port=int(self._ends[0].recv_bytes()))
        except (EOFError, OSError):
            raise SystemExit(LOST) from None
        return Crew(meeting, store=store, device=device)


def play_left(books: Books, specs: Sequence[RunSpec], stopping: threading.Event, threads: int) -> None:
    """Play what nobody else plays, run after run, until nothing is left. All ranks of a crew call it together."""
    left = list(specs)
    while left and not stopping.is_set():
        taken = []
        for spec in left:
            try:
                end = play_together(books, spec, stopping.is_set, threads)
                if end == "taken":
                    taken.append(spec)
                if end == "interrupted":
                    return
            except RankLost:
                raise SystemExit(LOST) from None
            except StoreError:
                raise SystemExit(2) from None  # remembered with the run where that was possible
            except PmflError:
                continue  # remembered with the run
            except Exception as error:
                if os.environ.get("PMFL_DEBUG"):
                    raise
                _remember(books, spec, error)
                if books.crew.world > 1:  # who knows where the others are: they notice, and a new crew goes on
                    raise SystemExit(1) from None
            if books.crew.either(stopping.is_set())[0]:
                return
        done = books.ask(lambda store: {spec.run_id: store.is_done(spec.run_id) for spec in taken})  # noqa: B023
        left = [spec for spec in taken if not done[spec.run_id]]
        if left:
            stopping.wait(0.5)  # somebody else plays these; take them over should that process die


def _remember(books: Books, spec: RunSpec, error: Exception) -> None:
    unexpected = PmflError(
        f"unexpected {type(error).__name__}: {error}",
        hint="PMFL_DEBUG=1 shows where; please report it",
        code="P001",
    )
    unexpected.exit_code = 1
    if books.store is not None:
        books.store.mark(spec.run_id, status="failed", note=note_of(unexpected))


def ranks_of(engine: EngineSpec, cores: int) -> int:
    """How many ranks are started on this machine; 0 for an engine without."""
    return 0 if engine.kind == "local" else engine.ranks or cores


def started_elsewhere(specs: Sequence[RunSpec], environment: Mapping[str, str] = os.environ) -> Meeting | None:
    """Where this process is to be a rank, if torchrun has started it as one."""
    asked = {(spec.engine.kind, spec.engine.ranks) for spec in specs if spec.engine.kind == "ranks"}
    meeting = meeting_of(environment) if asked else None
    if meeting is None:
        return None
    if len({spec.engine.kind for spec in specs}) > 1:
        raise EngineError("torchrun has started ranks, and some runs want none", hint="say --engine ranks", code="E133")
    for _, ranks in asked:
        if ranks not in (0, meeting.world):
            raise EngineError(
                f"--engine ranks:{ranks}, and torchrun has started {meeting.world}",
                hint="say --engine ranks: as many as there are",
                code="E133",
            )
    return meeting


def check_same_folder(books: Books) -> None:
    """Memories of clients are read and written by all ranks: they must see one folder."""
    token = books.out / f".{books.ask(lambda store: uuid.uuid4().hex)}.seen"
    try:
        books.ask(lambda store: _touch(token))
        seen = books.crew.share(token.is_file)
    finally:
        if books.store is not None:
            token.unlink(missing_ok=True)
    if not all(seen):
        raise EngineError(
            f"rank {seen.index(False)} does not see what rank 0 writes to {books.out.resolve()}",
            hint="--out must be a folder that all machines share, under the same path",
            code="E134",
        )


def _touch(file: Path) -> None:
    with storing(file):
        file.touch()


@contextlib.contextmanager
def heeding(stopping: threading.Event) -> Iterator[list[int]]:
    """Signals to stop are noted, to be obeyed after a round, with a checkpoint; gives the list of them."""
    heard = list[int]()

    def note(number: int, frame: object) -> None:
        heard.append(number)
        stopping.set()

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield heard
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def following(look: Callable[[Store], None], out: Path) -> Iterator[None]:
    """Let somebody look at the store now and then, while this thread plays."""
    end = threading.Event()

    def follow() -> None:
        store = Store(out)
        try:
            while not end.wait(LOOK):
                look(store)
            look(store)
        finally:
            store.close()

    thread = threading.Thread(target=follow, name="following", daemon=True)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()
