"""The engine in this process: clients one by one on a few threads, or ``lanes`` at a time under vmap."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from pmfl.core.client import by_transform, train_client
from pmfl.core.method import ClientRule
from pmfl.core.sums import check_range, exact_weighted_sum, from_fixed_point
from pmfl.core.tree import map_tree, stack, unstack
from pmfl.core.types import Downlink, Model, Round, Scalars, Seen, Uplink, Vector, Work
from pmfl.engines.memory import RamMemory
from pmfl.errors import EngineError, MethodError, PmflError
from pmfl.world.augment import to_input
from pmfl.world.datasets import Array, Dataset, Split
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
        lanes: int = 1,
        device: str = "cpu",
    ) -> None:
        if lanes < 1 or workers < 1:
            raise EngineError(f"lanes = {lanes}, workers = {workers}", hint="both count from 1")
        keep_freed_memory()
        self.rule, self.model, self.population = rule, model, population
        self.lanes, self.workers, self.device = lanes, workers, device_named(device)
        self._resident: dict[int, Tensor] = {}  # splits that have been moved to the device, by identity
        self.memories = RamMemory()
        self._pool = ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,))

    def train(self, sent: Downlink, chosen: Tensor, now: Round) -> LocalReplies:
        """Let the chosen clients take part in round ``now``."""
        clients = chosen.nonzero().flatten().tolist()
        groups = [clients[i : i + self.lanes] for i in range(0, len(clients), self.lanes)]
        uplinks: list[Uplink] = []
        for group in self._map(lambda group: self._train(sent, group, now), groups):
            uplinks.extend(group)
        for k, uplink in zip(clients, uplinks, strict=True):
            self.memories.put(k, uplink.memory)
        return LocalReplies(Seen(chosen.clone(), gather_scalars(uplinks)), clients, uplinks, now.t, sent.w)

    def evaluate(self, w: Vector, split: Split, dataset: Dataset) -> Scores:
        """Loss and correctness of ``w`` on every sample of ``split``, without augmentation."""

        at_once = EVALUATED_AT_ONCE if self.device.type == "cpu" else 8 * EVALUATED_AT_ONCE
        x_all, y_all = self._on_device(split.x), torch.from_numpy(split.y).to(self.device)

        @torch.no_grad()
        def judge(start: int) -> tuple[Tensor, Tensor]:
            x = to_input(x_all[start : start + at_once], dataset.mean, dataset.std, w.dtype)
            y, logits = y_all[start : start + at_once], self.model.logits(w, x)
            return cross_entropy(logits, y, reduction="none").double(), logits.argmax(-1) == y

        parts = list(self._map(judge, range(0, len(split), at_once)))
        return Scores(torch.cat([loss for loss, _ in parts]).cpu(), torch.cat([right for _, right in parts]).cpu())

    def close(self) -> None:
        """Let the worker threads go."""
        self._pool.shutdown()

    def _on_device(self, x: Array) -> Array | Tensor:
        """Samples to evaluate: where they are on a CPU, moved once on a GPU."""
        if self.device.type == "cpu":
            return x
        if id(x) not in self._resident:
            self._resident[id(x)] = torch.from_numpy(np.array(x)).to(self.device)
        return self._resident[id(x)]

    def _map(self, task: Callable[[ItemT], ResultT], items: Sequence[ItemT]) -> Iterator[ResultT]:
        """On the worker threads if there is more than one; results in the order of the items."""
        return map(task, items) if self.workers == 1 else self._pool.map(task, items)

    def _train(self, sent: Downlink, clients: list[int], now: Round) -> list[Uplink]:
        try:
            works = [self.population.work(now.t, k) for k in clients]
            memories = [self._memory(k, sent) for k in clients]
            if self.lanes == 1:
                return [train_client(self.rule, self.model, sent, memories[0], self._move(works[0]))]
            return self._train_lanes(sent, memories, works)
        except PmflError:
            raise
        except Exception as error:
            who = ", ".join(map(str, clients))
            raise MethodError(
                f"round {now.t}, client {who}: a client rule raised {type(error).__name__}: {error}",
                hint="`pmfl check MODULE:FUNCTION` finds the rule that breaks its contract",
            ) from error

    def _train_lanes(self, sent: Downlink, memories: list[Any], works: list[Work]) -> list[Uplink]:
        """All at once under vmap; the last group is filled up to full width, and the surplus thrown away."""
        surplus = self.lanes - len(works)
        work = self._move(stack(works + works[-1:] * surplus))
        memory = stack(memories + memories[-1:] * surplus)

        def one(memory: Any, work: Work) -> tuple[Any, ...]:
            return tuple(train_client(self.rule, self.model, sent, memory, work, by_transform))

        together = Uplink(*torch.vmap(one, in_dims=(_lanes_of(memory), _lanes_of(work)))(memory, work))
        return [unstack(together, i) for i in range(len(works))]

    def _move(self, work: Work) -> Work:
        moved: Work = map_tree(
            lambda path, leaf: leaf.to(self.device, non_blocking=True) if isinstance(leaf, Tensor) else leaf, work
        )
        return moved

    def _memory(self, k: int, sent: Downlink) -> Any:
        held = self.memories.get(k)
        return self.rule.init(sent.w) if held is None else held


def _lanes_of(tree: Any) -> Any:
    """Which leaves have a lane axis: the tensors."""
    return map_tree(lambda path, leaf: 0 if isinstance(leaf, Tensor) else None, tree)


def gather_scalars(uplinks: Sequence[Uplink]) -> Scalars:
    """Each scalar of each uplink, as one row per name, on the CPU."""
    names = uplinks[0].scalars if uplinks else {}
    return {name: torch.stack([uplink.scalars[name] for uplink in uplinks]).cpu() for name in names}


def device_named(name: str) -> torch.device:
    """The device, if it is here."""
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise EngineError(
            f"engine.device = {name!r}: {reason}", hint="cpu works everywhere; cuda:0 needs a GPU"
        ) from None
    return device


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
