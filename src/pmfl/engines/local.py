"""The engine on this machine's processor: clients one by one, on a few threads."""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, linear

from pmfl.core.client import train_client
from pmfl.core.method import ClientRule, Measure
from pmfl.core.sums import check_peaks, check_range, exact_weighted_sum, from_fixed_point, peaks
from pmfl.core.types import Downlink, Model, Round, Scalars, Seen, Uplink, Vector
from pmfl.engines.memory import Memories
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
    spread: Callable[[Callable[[slice], Tensor], Sequence[slice]], Iterator[Tensor]] = map  # over idle workers
    shares: int = 1  # into how many parts a sum is worth dividing

    @property
    def updates(self) -> list[Vector]:
        """Delta_k of those who took part, by client id."""
        return [uplink.update for uplink in self.uplinks]

    def measure(self, measure: Measure) -> Tensor:
        """A number for each update, by client id."""

        def total(weights: Sequence[float]) -> Vector:
            check_range(weights, self.updates, self.clients, self.t)
            return from_fixed_point(exact_weighted_sum(weights, self.updates, self.like.numel()), torch.float64)

        return measure(self.updates, total)

    def weighted_sum(self, weights: Tensor) -> Vector:
        """sum_k weights[k] * uplink[k], in fixed point."""
        check_peaks(weights[self.clients].tolist(), self.peaks(), self.clients, self.t)
        return from_fixed_point(self.partial_sum(weights), self.like.dtype).to(self.like.device)

    def peaks(self) -> Tensor:
        """The largest magnitude in each uplink, by client id."""
        return self._peaks

    @functools.cached_property
    def _peaks(self) -> Tensor:
        vectors = [uplink.vector for uplink in self.uplinks]
        return torch.cat(list(self.spread(lambda cut: peaks(vectors[cut]), cuts(len(vectors), self.shares))))

    def partial_sum(self, weights: Tensor) -> Tensor:
        """The sum as integers, to which those of other ranks can be added; each worker adds up a part of the vector."""
        scales, vectors = weights[self.clients].tolist(), [uplink.vector for uplink in self.uplinks]
        bound = float((self.peaks() * weights[self.clients].double().abs()).sum())

        def part(cut: slice) -> Tensor:
            return exact_weighted_sum(scales, [vector[cut] for vector in vectors], cut.stop - cut.start, bound)

        return torch.cat(list(self.spread(part, cuts(self.like.numel(), self.shares))))


class Scores(NamedTuple):
    """What a model makes of every sample of a split."""

    loss: Tensor  # [n] float64
    correct: Tensor  # [n] bool


class LocalEngine:
    """Trains and evaluates in this process, with one intra-op thread per worker.

    Workers are threads: torch lets go of the interpreter while it computes. Which worker trains which client
    changes nothing, since a client's training is a function of the downlink, its memory and its key.
    """

    evaluated_at_once = EVALUATED_AT_ONCE

    def __init__(
        self,
        rule: ClientRule[Any],
        model: Model,
        population: Population,
        *,
        workers: int = 1,
        memories: Memories | None = None,
    ) -> None:
        if workers < 1:
            raise EngineError(f"workers = {workers}", hint="they count from 1")
        keep_freed_memory()
        first_product()
        self.rule, self.model, self.population = rule, model, population
        self.workers, self.device = workers, torch.device("cpu")
        self.memories = Memories() if memories is None else memories
        self._pool = ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,))

    def train(self, sent: Downlink, chosen: Tensor, now: Round) -> LocalReplies:
        """Let the chosen clients take part in round ``now``."""
        clients = chosen.nonzero().flatten().tolist()
        uplinks = list(self._map(lambda k: self._train(sent, k, now), clients))
        seen = Seen(chosen.clone(), gather_scalars(uplinks))
        return LocalReplies(seen, clients, uplinks, now.t, sent.w, self._map, self.workers)

    def evaluate(self, w: Vector, split: Split, dataset: Dataset) -> Scores:
        """Loss and correctness of ``w`` on every sample of ``split``, without augmentation."""
        labels = torch.tensor(split.y)  # a copy: what is mapped from the cache cannot be written to

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
            memory = self.memories.get(k, lambda: self.rule.init(sent.w))
            uplink = train_client(self.rule, self.model, sent, memory, work)
            self.memories.put(k, uplink.memory)
            return uplink._replace(memory=None)  # which would keep in memory what has a budget for it


def cuts(n: int, shares: int) -> list[slice]:
    """``shares`` parts of nearly the same length, in order.

    >>> cuts(5, 2)
    [slice(0, 3, None), slice(3, 5, None)]
    """
    edges = [-(-n * i // shares) for i in range(shares + 1)]
    return [slice(*edge) for edge in pairwise(edges)]


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


def first_product() -> None:
    """Let the libraries of matrix products set themselves up before several threads ask for products at once."""
    linear(torch.ones(16, 8), torch.ones(8, 8), torch.ones(8))


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
