"""The crew on torch.distributed: processes on one machine or on many, each a rank, all in step.

Every rank plays the same rounds from the same keys, so nothing is commanded: ranks tell each other a few numbers per
client, and add up whole numbers. What is told is JSON, what is added is int64, and both are the same whatever the
network. Without a GPU it is gloo that carries them; with one for each rank, nccl carries the sums.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Any, NamedTuple, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor

from pmfl.engines.crew import Alone, ResultT
from pmfl.engines.pulse import SILENCE, Pulse
from pmfl.errors import PmflError, RankLost, SpecError

ARRIVAL = timedelta(minutes=5)  # how long ranks wait for each other at the start
NEVER = timedelta(days=30)  # a rank may take its time as long as it gives signs of life
LOST = 75  # the exit code of a rank that lost another: temporary, start it again
_dist: Any = dist  # whose stores its type stubs do not export
Store: TypeAlias = Any

SAID = 1 << 12  # bytes of room for what each rank says at once, at first
AGAIN = "run the same command again: it goes on from the last checkpoint, to the same bits"


class Meeting(NamedTuple):
    """Where ranks find each other, and who this one is."""

    rank: int
    world: int
    host: str = "127.0.0.1"
    port: int = 0  # 0: any free one, which rank 0 finds
    local_rank: int = 0  # among those of this machine
    hosted: bool = False  # whether somebody else keeps the list of who has come, as torchrun does
    attempt: str = "0"  # restarts do not mix

    def store(self) -> Store:
        """The list of who has come, as a connection of its own."""
        hosts = self.rank == 0 and not self.hosted
        return _dist.TCPStore(self.host, self.port, None, is_master=hosts, timeout=ARRIVAL, wait_for_workers=False)


def meeting_of(environment: Mapping[str, str]) -> Meeting | None:
    """Where torchrun, or whoever sets the same variables, wants this process to be; None without them."""
    if "RANK" not in environment or "WORLD_SIZE" not in environment:
        return None
    words = {
        name: environment.get(name, other)
        for name, other in (
            ("RANK", ""),
            ("WORLD_SIZE", ""),
            ("MASTER_PORT", ""),
            ("LOCAL_RANK", "0"),
            ("TORCHELASTIC_RESTART_COUNT", "0"),
        )
    }
    wrong = [f"{name}={word!r}" for name, word in words.items() if not word.isdecimal()]
    if wrong or not environment.get("MASTER_ADDR"):
        raise SpecError(
            f"ranks: the environment says {', '.join(wrong) or 'no MASTER_ADDR'}",
            hint="start ranks with torchrun, which sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT",
            code="S143",
        )
    return Meeting(
        rank=int(words["RANK"]),
        world=int(words["WORLD_SIZE"]),
        host=environment["MASTER_ADDR"],
        port=int(words["MASTER_PORT"]),
        local_rank=int(words["LOCAL_RANK"]),
        hosted=environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        attempt=words["TORCHELASTIC_RESTART_COUNT"],
    )


class Crew(Alone):
    """The ranks that play together, as seen by one of them."""

    def __init__(self, meeting: Meeting, *, store: Store | None = None, device: str = "cpu") -> None:
        self.rank, self.world = meeting.rank, meeting.world
        store = store or meeting.store()
        meeting = meeting._replace(port=store.port)
        self._arrive(_dist.PrefixStore(f"arrival/{meeting.attempt}", store))
        self._sums = _place_of_sums(device, meeting.local_rank)
        if meeting.host == "127.0.0.1" and sys.platform == "linux":
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # a machine may not know its own name
        dist.init_process_group(
            "gloo" if self._sums is None else "cpu:gloo,cuda:nccl",
            store=_dist.PrefixStore(f"group/{meeting.attempt}", store),
            rank=self.rank,
            world_size=self.world,
            timeout=NEVER,
        )
        self._store, self._room = store, SAID
        self._sending: list[Any] = []
        aside = meeting._replace(hosted=True).store()  # a connection that nothing else waits on
        self._pulse = Pulse(_dist.PrefixStore(f"pulse/{meeting.attempt}", aside), self.rank, self.world, self._give_up)

    def together(self, make: Callable[[], ResultT]) -> ResultT:
        """What this rank makes, once all have made theirs; what goes wrong on one of them is raised on all."""
        made = list[ResultT]()
        self.share(lambda: made.append(make()))
        return made[0]

    def share(self, make: Callable[[], ResultT]) -> list[ResultT]:
        """What every rank makes, by rank, as JSON tells it; what goes wrong on one of them is raised on all."""
        problem, said = None, b""
        try:
            said = json.dumps({"made": make()}).encode()
        except PmflError as error:
            problem = error
        except Exception as error:
            problem = _unexpected(error)
        if problem is not None:
            said = json.dumps({"wrong": _told(problem, self.rank)}).encode()
        heard = [json.loads(part) for part in self._gather(said)]
        if problem is not None:
            raise problem
        for answer in heard:
            if "wrong" in answer:
                raise _heard(answer["wrong"])
        return [answer["made"] for answer in heard]

    def either(self, *flags: bool) -> tuple[bool, ...]:
        """Each flag, if any rank has raised it."""
        raised = torch.tensor(flags, dtype=torch.uint8)
        with self._listening():
            dist.all_reduce(raised, dist.ReduceOp.MAX)
        return tuple(bool(flag) for flag in raised.tolist())

    def add(self, numbers: Tensor) -> Tensor:
        """The sum over ranks of whole numbers."""
        there = torch.device("cpu") if self._sums is None else self._sums
        total = numbers.to(there)
        with self._listening():
            dist.all_reduce(total)
        return total.to(numbers.device)

    def send(self, numbers: Tensor | None, to: int) -> None:
        """Give bytes to another rank, which takes them by ``receive``; None says that there are none to be had."""
        count = torch.tensor([-1 if numbers is None else numbers.numel()])
        with self._listening():
            self._sending.append((dist.isend(count, to), count))
            if numbers is not None:
                self._sending.append((dist.isend(numbers, to), numbers))

    def receive(self, of: int) -> Tensor | None:
        """The next bytes that another rank has sent."""
        count = torch.zeros(1, dtype=torch.int64)
        with self._listening():
            dist.recv(count, of)
            if int(count) < 0:
                return None
            numbers = torch.empty(int(count), dtype=torch.uint8)
            dist.recv(numbers, of)
        return numbers

    def leave(self) -> None:
        """Part, when all have come to this point."""
        try:
            self.share(lambda: None)
        finally:
            self._pulse.stop()
            dist.destroy_process_group()

    def _gather(self, said: bytes) -> list[bytes]:
        """What every rank says, in one exchange unless somebody says more than ever before."""
        while True:
            mine = torch.zeros(8 + self._room, dtype=torch.uint8)
            begin = len(said).to_bytes(8, "little") + said[: self._room]
            mine[: len(begin)] = torch.frombuffer(bytearray(begin), dtype=torch.uint8)
            boxes = [torch.empty_like(mine) for _ in range(self.world)]
            with self._listening():
                for work, _ in self._sending:
                    work.wait()
                self._sending.clear()
                dist.all_gather(boxes, mine)
            heard = [box.numpy().tobytes() for box in boxes]
            lengths = [int.from_bytes(box[:8], "little") for box in heard]
            if max(lengths) <= self._room:
                return [box[8 : 8 + length] for box, length in zip(heard, lengths, strict=True)]
            self._room = 2 * max(lengths)

    def _arrive(self, store: Store) -> None:
        store.set(str(self.rank), socket.gethostname())
        try:
            store.wait([str(rank) for rank in range(self.world)], ARRIVAL)
        except RuntimeError:
            missing = [rank for rank in range(self.world) if not store.check([str(rank)])]
            raise RankLost(
                f"rank {_listed(missing)} of {self.world} did not come within {ARRIVAL.seconds // 60} minutes",
                hint="see what its machine says; all must reach MASTER_ADDR:MASTER_PORT",
            ) from None

    @contextlib.contextmanager
    def _listening(self) -> Iterator[None]:
        """Say in our own words that a rank is gone."""
        try:
            yield
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            raise RankLost(f"rank {self.rank} of {self.world} lost another: {reason}", hint=AGAIN) from error

    def _give_up(self, silent: list[int]) -> None:
        """The main thread waits for them, and cannot be woken."""
        error = RankLost(
            f"rank {self.rank} of {self.world} has not heard of rank {_listed(silent)} for {SILENCE:.0f} s", hint=AGAIN
        )
        sys.stderr.write(f"error[{error.code}]: {error}\n")
        sys.stderr.flush()
        os._exit(LOST)


def _place_of_sums(device: str, local_rank: int) -> torch.device | None:
    """The GPU on which this rank adds, if every rank of the machine has one to itself."""
    if not device.startswith("cuda") or not torch.cuda.is_available():
        return None
    here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if here > torch.cuda.device_count():
        return None  # ranks share one, which nccl refuses
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


def _told(error: PmflError, rank: int) -> dict[str, Any]:
    fields = {name: value for name, value in error.__dict__.items() if isinstance(value, str | int | list)}
    return {"fields": {**fields, "exit_code": error.exit_code}, "kind": type(error).__name__, "rank": rank}


def _heard(told: dict[str, Any]) -> PmflError:
    """An error of another rank, as an error here."""
    kinds = {kind.__name__: kind for kind in _kinds(PmflError)}
    kind = kinds.get(told["kind"], PmflError)
    error = kind.__new__(kind)
    error.__dict__.update(told["fields"])
    error.message = f"rank {told['rank']}: {told['fields']['message']}"
    error.args = (error.message,)
    return error


def _kinds(kind: type[PmflError]) -> Iterator[type[PmflError]]:
    yield kind
    for below in kind.__subclasses__():
        yield from _kinds(below)


def _unexpected(error: Exception) -> PmflError:
    wrapped = PmflError(
        f"unexpected {type(error).__name__}: {error}",
        hint="PMFL_DEBUG=1 shows where; please report it",
        code="P001",
    )
    wrapped.exit_code = 1
    wrapped.__cause__ = error
    return wrapped


def _listed(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks))
