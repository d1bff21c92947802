"""FedHyper as its paper prints it and as its authors' code computes it: loops and floats. Never imported by src.

A list of steps holds ``None`` where nobody took part: then rates and memories stay as they were.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

Point = list[float]
Steps = Sequence[Point | None]
Gradient = Callable[[Point], Point]


def compare(a: Point, b: Point, normalise: bool) -> float:
    inner = 0.0
    for x, y in zip(a, b, strict=True):
        inner += x * y
    if not normalise:
        return inner
    length = math.sqrt(sum(x * x for x in a)) * math.sqrt(sum(y * y for y in b))
    return inner / length if length > 0 else 0.0


def clip(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)


def paper_rates(steps: Steps, gamma: float, normalise: bool = False) -> list[float]:
    """rate^t = clip(rate^{t-1} + <step^t, step^{t-1}>, 1/gamma, gamma): alpha with gamma 3, beta with gamma 10."""
    rate, before, rates = 1.0, None, []
    for step in steps:
        if step is not None:
            if before is not None:
                rate = clip(rate + compare(step, before, normalise), 1 / gamma, gamma)
            before = step
        rates.append(rate)
    return rates


def code_g(steps: Steps, normalise: bool = False) -> list[float]:
    """The accumulator s itself is clipped; alpha = 1 + s."""
    s, before, rates = 0.0, None, []
    for step in steps:
        if step is not None:
            if before is not None:
                s = clip(s + compare(before, step, normalise), -0.8, 4.0)
            before = step
        rates.append(1 + s)
    return rates


def code_sl(steps: Steps, lr: float, normalise: bool = False) -> list[float]:
    """The accumulator runs freely; the client's learning rate is clipped."""
    s, before, rates = 0.0, None, []
    for step in steps:
        if step is not None:
            if before is not None:
                s += compare(before, step, normalise)
            before = step
        rates.append(clip(lr * (1 + s), 0.001, 0.1))
    return rates


def gm(steps: Steps, low: float, high: float, normalise: bool = False) -> tuple[list[float], list[Point]]:
    """s += <M, step>; W += (1 + s) step + .9 s M; M = step + .9 M. From W = (0, 0)."""
    s, m, w = 0.0, [0.0, 0.0], [0.0, 0.0]
    rates, path = [], []
    for step in steps:
        if step is not None:
            s = clip(s + compare(m, step, normalise), low, high)
            w = [w[i] + (1 + s) * step[i] + 0.9 * s * m[i] for i in range(2)]
            m = [step[i] + 0.9 * m[i] for i in range(2)]
        rates.append(1 + s)
        path.append(w)
    return rates, path


def code_cl(
    w: Point, gradient: Gradient, lr: float, iterations: int, delta: Point, users: float, normalise: bool = False
) -> tuple[list[float], Point]:
    """Local training, one rate per finished iteration: multiplicative, on the moves actually made."""
    beta, d_previous, betas = 1.0, delta, []
    for j in range(iterations):
        g = gradient(w)
        w_new = [w[i] - lr * beta * g[i] for i in range(len(w))]
        if j > 0:
            d = [w_new[i] - w[i] for i in range(len(w))]
            x = 0.1 * compare(d, delta, normalise) / users
            y = compare(d, d_previous, normalise)
            factor = min(1.1, 1 + x + y)
            beta = clip(factor * beta, 0.1, 10.0)
            d_previous = d
        betas.append(beta)
        w = w_new
    return betas, w


def paper_cl(
    w: Point, gradient: Gradient, lr: float, iterations: int, delta: Point, normalise: bool = False
) -> tuple[list[float], Point]:
    """Local training, one rate per iteration: additive, on gradients; the server's gradient is minus its step."""
    beta, g_previous, betas = 1.0, None, []
    uphill = [-x for x in delta]
    for _ in range(iterations):
        g = gradient(w)
        if g_previous is not None:
            change = compare(g, g_previous, normalise) + compare(g, uphill, normalise) / iterations
            beta = clip(beta + change, 0.1, 10.0)
        w = [w[i] - lr * beta * g[i] for i in range(len(w))]
        g_previous = g
        betas.append(beta)
    return betas, w


def quadratics(
    targets: Sequence[Point], present: Sequence[Sequence[bool]], *, lr: float, iterations: int, local: str
) -> list[Point]:
    """G + CL from W = 0 with the paper's bounds, client k descending 0.5 ||w - a_k||^2."""
    w, alpha, delta, joined, path = [0.0, 0.0], 1.0, [0.0, 0.0], 1, []
    for here in present:
        total, n = [0.0, 0.0], 0
        for k, a in enumerate(targets):
            if not here[k]:
                continue

            def gradient(v: Point, a: Point = a) -> Point:
                return [v[i] - a[i] for i in range(2)]

            if local == "multiply":
                _, end = code_cl(w, gradient, lr, iterations, delta, joined)
            else:
                _, end = paper_cl(w, gradient, lr, iterations, delta)
            total = [total[i] + end[i] - w[i] for i in range(2)]
            n += 1
        if n > 0:
            step = [v / n for v in total]
            alpha = clip(alpha + compare(step, delta, False), 1 / 3, 3.0)
            w = [w[i] + alpha * step[i] for i in range(2)]
            delta, joined = step, n
        path.append(w)
    return path
