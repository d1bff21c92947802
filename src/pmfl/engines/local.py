"""The engine on this machine's processor: clients one by one, on a few threads."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from pmfl.core.client import train_client
from pmfl.core.method import ClientRule
from pmfl.core.sums import check_range, exact_weighted_sum, from_fixed_point
from pmfl.core.types import Downlink, Model, Round, Scalars, Seen, Uplink, Vector
from pmfl.engines.memory import RamMemory
from pmfl.errors import EngineError, MethodError, PmflError
from pmfl.world.augment import to_input
from pmfl.world.datasets import Dataset, Split
from pmfl.world.population import Population

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # from malloc.h

EVALUATED_AT_ONCE = 512  # samples in one forward of an evaluation

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


@dataclass(frozen=True)
class LocalReplies:
    """The uplinks of one round, in this process's memory."""

    seen: Seen
    clients: list[int]
    uplinks: list[Uplink]
    t: int
    like: Vector

    @property
    def updates(self) -> list[Vector]:
        """Delta_k of those who took part, by client id."""
        return [uplink.update for uplink in self.uplinks]

    def weighted_sum(self, weights: Tensor) -> Vector:
        """sum_k weights[k] * uplink[k], in fixed point."""
        mine = [float(weights[k]) for k in self.clients]
        vectors = [uplink.vector for uplink in self.uplinks]
        check_range(mine, vectors, self.clients, self.t)
        total = exact_weighted_sum(mine, vectors, self.like.numel())
        return from_fixed_point(total, self.like.dtype).to(self.like.device)


class Scores(NamedTuple):
    """What a model makes of every sample of a split."""

    loss: Tensor  # [n] float64
    correct: Tensor  # [n] bool


class LocalEngine:
    """Trains and evaluates in this process, with one intra-op thread per worker.

    Workers are threads: torch lets go of the interpreter while it computes. Which worker trains which client
    changes nothing, since a client's training is a function of the downlink, its memory and its key.
    """

    def __init__(
        self,
        rule: ClientRule[Any],
        model: Model,
        population: Population,
        *,
        workers: int = 1,
    ) -> None:
        if workers < 1:
            raise EngineError(f"workers = {workers}", hint="they count from 1")
        keep_freed_memory()
        self.rule, self.model, self.population = rule, model, population
        self.workers, self.device = workers, torch.device("cpu")
        self.memories = RamMemory()
        self._pool = ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,))

    def train(self, sent: Downlink, chosen: Tensor, now: Round) -> LocalReplies:
        """Let the chosen clients take part in round ``now``."""
        clients = chosen.nonzero().flatten().tolist()
        uplinks = list(self._map(lambda k: self._train(sent, k, now), clients))
        for k, uplink in zip(clients, uplinks, strict=True):
            self.memories.put(k, uplink.memory)
        return LocalReplies(Seen(chosen.clone(), gather_scalars(uplinks)), clients, uplinks, now.t, sent.w)

    def evaluate(self, w: Vector, split: Split, dataset: Dataset) -> Scores:
        """Loss and correctness of ``w`` on every sample of ``split``, without augmentation."""
        labels = torch.from_numpy(split.y)

        @torch.no_grad()
        def judge(start: int) -> tuple[Tensor, Tensor]:
            these = slice(start, start + EVALUATED_AT_ONCE)
            x = to_input(split.x[these], dataset.mean, dataset.std, w.dtype)
            y, logits = labels[these], self.model.logits(w, x)
            return cross_entropy(logits, y, reduction="none").double(), logits.argmax(-1) == y

        parts = list(self._map(judge, range(0, len(split), EVALUATED_AT_ONCE)))
        return Scores(torch.cat([loss for loss, _ in parts]), torch.cat([right for _, right in parts]))

    def close(self) -> None:
        """Let the worker threads go."""
        self._pool.shutdown()

    def _map(self, task: Callable[[ItemT], ResultT], items: Sequence[ItemT]) -> Iterator[ResultT]:
        """On the worker threads if there is more than one; results in the order of the items."""
        return map(task, items) if self.workers == 1 else self._pool.map(task, items)

    def _train(self, sent: Downlink, k: int, now: Round) -> Uplink:
        with naming([k], now):
            work = self.population.work(now.t, k)
            return train_client(self.rule, self.model, sent, self._memory(k, sent), work)

    def _memory(self, k: int, sent: Downlink) -> Any:
        held = self.memories.get(k)
        return self.rule.init(sent.w) if held is None else held


@contextlib.contextmanager
def naming(clients: Sequence[int], now: Round) -> Iterator[None]:
    """Say in which round, and with which clients, a rule went wrong."""
    try:
        yield
    except PmflError:
        raise
    except Exception as error:
        who = ", ".join(map(str, clients))
        raise MethodError(
            f"round {now.t}, client {who}: a client rule raised {type(error).__name__}: {error}",
            hint="`pmfl check MODULE:FUNCTION` finds the rule that breaks its contract",
        ) from error


def gather_scalars(uplinks: Sequence[Uplink]) -> Scalars:
    """Each scalar of each uplink, as one row per name, on the CPU."""
    names = uplinks[0].scalars if uplinks else {}
    return {name: torch.stack([uplink.scalars[name] for uplink in uplinks]).cpu() for name in names}


def keep_freed_memory() -> None:
    """Tell the C library to keep what is freed: each iteration frees and takes the same few megabytes.

    Giving them back costs a page fault per 4 KiB at the next use: 1,400 in one iteration of the CIFAR-10 network, and
    a sixth of its time. Where the C library is another one, nothing happens.
    """
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_TRIM_THRESHOLD, 1 << 30)
        libc.mallopt(_M_MMAP_THRESHOLD, 32 << 20)


@contextlib.contextmanager
def exactly() -> Iterator[None]:
    """Arithmetic that repeats to the bit: one intra-op thread, which is also the fastest for small steps; on a GPU,
    full single precision and deterministic kernels.

    Two threads of one operation wait for each other by spinning; beside other busy programs that costs more than all
    of the work.
    """
    before = torch.get_num_threads(), torch.backends.cudnn.allow_tf32, torch.backends.cudnn.deterministic
    torch.set_num_threads(1)
    torch.backends.cudnn.allow_tf32, torch.backends.cudnn.deterministic = False, True
    try:
        yield
    finally:
        torch.set_num_threads(before[0])
        torch.backends.cudnn.allow_tf32, torch.backends.cudnn.deterministic = before[1:]
