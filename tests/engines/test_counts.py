"""What a participation does, counted: a guard of speed that no busy machine can trip.

A number that rises is a slower program; one that falls is to be written down here.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import pmfl
from pmfl.core.client import train_client
from pmfl.core.keys import Key
from pmfl.core.method import Method
from pmfl.core.sums import exact_weighted_sum
from pmfl.core.types import Batch, Downlink, Uplink, Work
from pmfl.methods.fedavg import fedavg
from pmfl.methods.mifa import mifa
from pmfl.methods.moon import moon
from pmfl.methods.pmfl import pmfl as pmfl_method
from pmfl.study.cost import client_flops
from pmfl.study.spec import run_spec
from pmfl.world.networks import IN_CACHE, cnn_cifar10

KEY = Key.root(0)
ITERATIONS, BATCH = 5, IN_CACHE
MODEL = cnn_cifar10((32, 32, 3), 10)
SOURCE = str(Path(pmfl.__file__).parent)


class Counted(TorchDispatchMode):
    """Convolutions by direction, and what was newly allocated with at least a model's size."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()
        self.images = 0  # that went forward through the first layer
        self.vectors: Counter[str] = Counter()  # memory for models, in models, by the operation that took it

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        self.calls[name] += 1
        if name == "convolution" and args[1].shape[1] == 3:
            self.images += len(args[0])
        known = {leaf.untyped_storage().data_ptr() for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        for leaf in tree_leaves(found):
            new = isinstance(leaf, Tensor) and leaf.untyped_storage().data_ptr() not in known
            if new and leaf.numel() % MODEL.size == 0 and leaf.numel():
                self.vectors[name] += leaf.numel() // MODEL.size
        return found


def work(iterations: int = ITERATIONS) -> Work:
    x = torch.randn((iterations, BATCH, 32, 32, 3), generator=KEY.torch()).permute(0, 1, 4, 2, 3)
    return Work(Batch(x, torch.zeros((iterations, BATCH), dtype=torch.int64)), torch.tensor(float(BATCH)))


SENT = Downlink(MODEL.init(KEY), torch.tensor(0.01), {})


def take_part(method: Method, memory: Any, iterations: int = ITERATIONS) -> Uplink:
    return train_client(method.client, MODEL, SENT, memory, work(iterations))


def counted(method: Method, iterations: int = ITERATIONS) -> Counted:
    """A participation of a client that has taken part before."""
    memory = take_part(method, method.client.init(SENT.w)).memory
    seen = Counted()
    with seen:
        take_part(method, memory, iterations)
    return seen


@pytest.mark.parametrize(
    ("method", "mini_batches"),
    [
        (fedavg(), 5),
        # Five trained; five of the last model; of the received one the four that the first iteration does not give;
        # of the history 1 + 2 + 3 + 4 + 5, since old models leave the window; of this participation's models 3 + 2 + 1.
        (pmfl_method(), 5 + 5 + 4 + 15 + 6),
        (pmfl_method(threshold="current"), 5 + 4 + 15 + 6),
        (moon(), 5 + 4 + 5),
    ],
    ids=["fedavg", "pmfl", "pmfl without last", "moon"],
)
def test_forwards_of_a_participation(method: Method, mini_batches: int) -> None:
    seen = counted(method)
    assert seen.images == mini_batches * BATCH
    assert seen.calls["convolution"] == 2 * mini_batches
    assert seen.calls["convolution_backward"] == 2 * ITERATIONS


# An iteration puts its gradient together and takes its step; a reply subtracts, and a history is copied once.
ITERATION = {"cat": ITERATIONS, "addcmul": ITERATIONS}


@pytest.mark.parametrize(
    ("method", "vectors"),
    [
        (fedavg(), {**ITERATION, "sub": 1}),
        (mifa(), {**ITERATION, "sub": 2}),
        (moon(), {**ITERATION, "sub": 1, "cat": 5 + 1}),
        (pmfl_method(), {**ITERATION, "sub": 1, "cat": 5 + 5}),
    ],
    ids=["fedavg", "mifa", "moon", "pmfl"],
)
def test_memory_taken_for_models_in_a_participation(method: Method, vectors: dict[str, int]) -> None:
    assert dict(counted(method).vectors) == vectors


def calls(method: Method, memory: Any, iterations: int) -> int:
    """Functions of this package that Python enters in a participation."""
    count = 0

    def watch(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal count
        name = frame.f_code.co_name
        here = frame.f_code.co_filename.startswith(SOURCE) and (name == "<lambda>" or not name.startswith("<"))
        count += event == "call" and here  # comprehensions are functions in some versions of Python only

    before = sys.getprofile()
    sys.setprofile(watch)
    try:
        take_part(method, memory, iterations)
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.parametrize(("method", "more"), [(fedavg(), 23), (pmfl_method(), 78)])
def test_functions_entered_in_an_iteration(method: Method, more: int) -> None:
    memory = take_part(method, method.client.init(SENT.w)).memory
    calls(method, memory, 1)  # the first time, caches fill
    assert calls(method, memory, 7) - calls(method, memory, 6) == more


def test_a_sum_takes_one_vector_of_integers_and_no_copy() -> None:
    vectors = [SENT.w, SENT.w, SENT.w]
    with Counted() as seen:
        exact_weighted_sum([0.1, 0.2, 0.3], vectors, MODEL.size, bound=10.0)
    assert dict(seen.vectors) == {"zeros": 1}


def test_operations_of_a_participation() -> None:
    def flops(method: str) -> int:
        data = {"dataset": "cifar10", "clients": 10}
        return client_flops(run_spec({"method": method, "data": data, "training": {"model": "cnn-cifar10"}}))

    first, second = 2 * 32 * 32 * 32 * 27, 2 * 16 * 16 * 32 * 288
    dense = 2 * (2048 * 256 + 256 * 64 + 64 * 10)
    forward = first + second + dense
    training = 3 * forward - first  # no gradient by the images
    assert flops("fedavg") == 5 * 16 * training
    assert flops("pmfl") == 16 * (5 * training + 30 * forward) - 16 * 30 * 2 * 64 * 10  # the history is not classified
