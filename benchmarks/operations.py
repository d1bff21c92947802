"""Processor time of the operations of one training iteration, and of the choices that were made about them.

    python benchmarks/operations.py

Milliseconds of one thread's own time, the least of many: other programs on the machine matter little to it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import torch
from torch.nn.functional import cross_entropy, linear

from pmfl.core.client import by_autograd
from pmfl.core.keys import Key
from pmfl.core.sums import exact_weighted_sum
from pmfl.engines.local import exactly, keep_freed_memory
from pmfl.study.bench.process import machine
from pmfl.world.dense import dense
from pmfl.world.networks import IN_CACHE, cnn_cifar10
from pmfl.world.pooled import convolved_and_pooled
from pmfl.world.precision import in_bfloat16

BATCH, CLIENTS = 16, 25


def least(work: Callable[[], object], times: int = 150) -> float:
    """Milliseconds."""
    for _ in range(5):
        work()
    fastest = float("inf")
    for _ in range(times):
        began = time.thread_time()
        work()
        fastest = min(fastest, time.thread_time() - began)
    return 1e3 * fastest


def main() -> None:
    """Measure, and print the table."""
    draw = Key.root(0).fold("operations").torch()

    def images(channels: int, side: int, n: int = BATCH) -> torch.Tensor:
        return torch.randn((n, side, side, channels), generator=draw).permute(0, 3, 1, 2)

    def kernel(inputs: int) -> torch.Tensor:
        return torch.randn((32, 3, 3, inputs), generator=draw).permute(0, 3, 1, 2)

    x, y1, h1, y2 = images(3, 32), images(32, 32), images(32, 16), images(32, 16)
    w1, w2, b = kernel(3).requires_grad_(), kernel(32), torch.zeros(32, requires_grad=True)
    rows, weight, bias = torch.randn(BATCH, 2048), torch.randn(256, 2048), torch.zeros(256)
    model = cnn_cifar10((32, 32, 3), 10)
    short, w = in_bfloat16(model), model.init(Key.root(0))
    many, labels = images(3, 32, 5 * BATCH), torch.zeros(BATCH, dtype=torch.int64)
    vectors = [torch.randn(model.size, generator=draw) for _ in range(CLIENTS)]
    backward = torch.ops.aten.convolution_backward

    def gradients(y: torch.Tensor, x: torch.Tensor, w: torch.Tensor, by_input: bool) -> object:
        return backward(y, x, w, [32], [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [by_input, True, True])

    def in_one_forward(part: torch.Tensor = many) -> torch.Tensor:
        return convolved_and_pooled(convolved_and_pooled(part, w1, b), w2, b)

    def in_parts() -> object:
        return [in_one_forward(part) for part in many.split(IN_CACHE)]

    def layer(function: Callable[..., torch.Tensor]) -> object:
        with torch.enable_grad():
            return torch.autograd.grad(function(x, w1, b).sum(), (w1, b))

    def with_bias_first(x: torch.Tensor, kernel: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return torch.relu(torch.max_pool2d(torch.conv2d(x, kernel, bias, padding=1), 2))

    def iteration(of: object) -> object:
        return by_autograd(lambda w: (cross_entropy(of.logits(w, x), labels), {}), w)

    def frozen(of: object) -> object:
        return of.represent(w, x, ())

    with exactly(), torch.no_grad():
        rows_of_table = {
            "first convolution": lambda: torch.conv2d(x, w1, b, padding=1),
            "second convolution": lambda: torch.conv2d(h1, w2, b, padding=1),
            "gradients of the second convolution": lambda: gradients(y2, h1, w2, True),
            "gradients of the first convolution": lambda: gradients(y1, x, w1, False),
            "pooling with indices": lambda: torch.max_pool2d(y1, 2),
            "first layer with its gradients, bias in the convolution": lambda: layer(with_bias_first),
            "the same, bias behind the pooling": lambda: layer(convolved_and_pooled),
            "dense layer by torch's linear": lambda: linear(rows, weight, bias),
            "dense layer by oneDNN": lambda: dense(rows, weight, bias, plain=False),
            "80 images through both convolutions at once": in_one_forward,
            "80 images through both convolutions in parts": in_parts,
            "sum of 25 vectors as integers": lambda: exact_weighted_sum([0.04] * CLIENTS, vectors, model.size),
            "the same in floating point": lambda: exact_weighted_sum([0.04] * CLIENTS, vectors, model.size, 10.0),
            "representations by a frozen model": lambda: frozen(model),
            "representations by a frozen model, fast": lambda: frozen(short),
        }
        found = {name: least(work) for name, work in rows_of_table.items()}
    with exactly():
        found["gradient of an iteration"] = least(lambda: iteration(model))
        found["gradient of an iteration, fast"] = least(lambda: iteration(short))
    at = machine()
    sys.stdout.write(f"{at['date']}, {at['cpu']}, {at['vectors']}, torch {torch.__version__}, load {at['load'][0]}\n\n")
    sys.stdout.write("| operation, mini-batch of 16 | ms |\n|---|---|\n")
    sys.stdout.writelines(f"| {name} | {milliseconds:.3f} |\n" for name, milliseconds in found.items())


if __name__ == "__main__":
    keep_freed_memory()
    main()
