"""Where the time of a round goes: an engine that looks at its watch, around the engine that works."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pmfl.core.types import Downlink, Masks, Model, Round, Vector, Work
from pmfl.engines.local import LocalEngine

PARTS = ("training", "history forwards", "aggregation", "evaluation", "everything else")


class Clock:
    """Seconds by what they were spent on, from any number of threads."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.evaluating = False  # then forwards without a gradient are no history's
        self._lock = threading.Lock()

    @contextmanager
    def on(self, what: str) -> Iterator[None]:
        """Count the time of this block."""
        began = time.perf_counter()
        try:
            yield
        finally:
            with self._lock:
                self.seconds[what] += time.perf_counter() - began


class Watched:
    """A local engine, with a clock at each of its doors."""

    def __init__(self, engine: LocalEngine, clock: Clock) -> None:
        self._engine, self._clock = engine, clock
        engine.model = _watched(engine.model, clock)
        work = engine.population.work
        engine.population.work = _timed(work, clock, "drawing")  # type: ignore[method-assign]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def train(self, sent: Downlink, chosen: Tensor, now: Round) -> Any:
        """The engine's own, timed; so is what the answers are asked for."""
        with self._clock.on("train"):
            replies = self._engine.train(sent, chosen, now)
        return _Replies(replies, self._clock)

    def evaluate(self, *given: Any) -> Any:
        """The engine's own, timed."""
        self._clock.evaluating = True
        with self._clock.on("evaluation"):
            found = self._engine.evaluate(*given)
        self._clock.evaluating = False
        return found


class _Replies:
    def __init__(self, replies: Any, clock: Clock) -> None:
        self._replies, self._clock = replies, clock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._replies, name)

    def weighted_sum(self, weights: Tensor) -> Vector:
        with self._clock.on("aggregation"):
            total: Vector = self._replies.weighted_sum(weights)
            return total


def _watched(model: Model, clock: Clock) -> Model:
    """Forwards without a gradient are those of frozen models: in training, that is the history."""

    def represent(w: Vector, x: Tensor, masks: Masks) -> Tensor:
        if torch.is_grad_enabled() or clock.evaluating:
            return model.represent(w, x, masks)
        with clock.on("frozen"):
            return model.represent(w, x, masks)

    return replace(model, represent=represent)


def _timed(function: Callable[..., Work], clock: Clock, what: str) -> Callable[..., Work]:
    def timed(*given: Any) -> Work:
        with clock.on(what):
            return function(*given)

    return timed


def shares(clock: Clock, total: float, workers: int) -> dict[str, float]:
    """What part of ``total`` seconds went where; with several workers, of the time of all of them."""
    spent = clock.seconds
    history = spent["frozen"] / workers
    drawing = spent["drawing"] / workers
    parts = {
        "training": spent["train"] - history - drawing,
        "history forwards": history,
        "aggregation": spent["aggregation"],
        "evaluation": spent["evaluation"],
    }
    parts["everything else"] = total - sum(parts.values())
    return {name: max(parts[name], 0.0) / total for name in PARTS}
