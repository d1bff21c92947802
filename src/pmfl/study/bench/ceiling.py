"""What this machine can do: the rate of its convolutions and matrix products at the sizes at hand, on all workers."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch

from pmfl.core.keys import Key
from pmfl.engines.local import exactly, keep_freed_memory
from pmfl.world.dense import dense

SIDE = 1024  # of the matrices of the second ceiling
SECONDS = 0.3  # spent on each


def ceiling(workers: int, batch: int = 16, device: str = "cpu") -> dict[str, float]:
    """GFLOP/s of the second convolution of the paper's network, forward and backward, and of matrix products."""
    keep_freed_memory()
    conv, product = _convolution(batch, device), _product(device)
    with exactly():
        return {
            "convolution": _rate(*conv, workers, device) / 1e9,
            "matrix product": _rate(*product, workers, device) / 1e9,
        }


def _convolution(batch: int, device: str) -> tuple[Callable[[], object], int]:
    draw = Key.root(0).fold("ceiling").torch()

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=draw).to(device).permute(0, 3, 1, 2)

    x, g, w, b = drawn(batch, 16, 16, 32), drawn(batch, 16, 16, 32), drawn(32, 3, 3, 32), torch.zeros(32, device=device)
    backward = torch.ops.aten.convolution_backward

    def both() -> object:
        torch.conv2d(x, w, b, padding=1)
        return backward(g, x, w, [32], [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, True])

    return both, 3 * 2 * batch * 16 * 16 * 32 * 32 * 9


def _product(device: str) -> tuple[Callable[[], object], int]:
    draw = Key.root(0).fold("ceiling").torch()
    x, w = (torch.randn((SIDE, SIDE), generator=draw).to(device) for _ in range(2))
    bias = torch.zeros(SIDE, device=device)

    def once() -> object:
        with torch.no_grad():
            return dense(x, w, bias, plain=False)

    return once, 2 * SIDE**3


def _rate(work: Callable[[], object], operations: int, workers: int, device: str) -> float:
    """Operations a second of all workers together, each in the best of its moments."""

    wait: Callable[[], None] = (lambda: None) if device == "cpu" else torch.cuda.synchronize

    def best(_: int) -> float:
        torch.set_num_threads(1)
        wait()  # a new thread knows nothing of the device until it asks for something
        for _ in range(3):
            work()
        fastest, end = float("inf"), time.perf_counter() + SECONDS
        while time.perf_counter() < end:
            began = time.perf_counter()
            work()
            wait()
            fastest = min(fastest, time.perf_counter() - began)
        return operations / fastest

    with ThreadPoolExecutor(workers) as pool:
        return sum(pool.map(best, range(workers)))
