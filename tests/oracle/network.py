"""The tiny classifier of ``tests.toy`` in plain numbers, and exact derivatives by the complex step."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

Number: TypeAlias = Any  # a float; while derivatives are taken, the values of a number under every change of w
Row: TypeAlias = Sequence[Number]
Layers: TypeAlias = Sequence[tuple[int, int]]  # (outputs, inputs) of encoder, projection, classifier


def represent(layers: Layers, w: Row, x: Row, mask: Row | None = None) -> list[Number]:
    """z = Pro(Enc(x, w), w)."""
    h = [_tanh(v) for v in _layer(layers, w, 0, x)]
    if mask is not None:
        h = [v * m for v, m in zip(h, mask, strict=True)]
    return [_tanh(v) for v in _layer(layers, w, 1, h)]


def classify(layers: Layers, w: Row, z: Row, mask: Row | None = None) -> list[Number]:
    """The logits, Cla(z, w)."""
    if mask is not None:
        z = [v * m for v, m in zip(z, mask, strict=True)]
    return _layer(layers, w, 2, z)


def gradient(loss: Callable[[Row], Number], w: Row) -> list[float]:
    """Im loss(w + i h e_j) / h for every j: a derivative without subtraction, so h can be tiny and it is exact."""
    h = 1e-30
    changes = 1j * h * np.eye(len(w))
    values = loss([v + changes[j] for j, v in enumerate(w)])
    return [float(value.imag) / h for value in values]


def log(v: Number) -> Number:
    return np.log(v) if isinstance(v, np.ndarray) else math.log(v)


def exp(v: Number) -> Number:
    return np.exp(v) if isinstance(v, np.ndarray) else math.exp(v)


def _tanh(v: Number) -> Number:
    return np.tanh(v) if isinstance(v, np.ndarray) else math.tanh(v)


def _layer(layers: Layers, w: Row, i: int, x: Row) -> list[Number]:
    at = sum(rows * columns + rows for rows, columns in layers[:i])
    rows, columns = layers[i]
    result = []
    for row in range(rows):
        total = w[at + rows * columns + row]  # bias
        for column in range(columns):
            total = total + w[at + row * columns + column] * x[column]
        result.append(total)
    return result
