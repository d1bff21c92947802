"""One run: iterate it to play its rounds. It resumes by itself, and may be stopped at any time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import nn

from pmfl.core.keys import Key
from pmfl.core.method import Method
from pmfl.core.round import Outcome, ServerState, play, start
from pmfl.core.types import Model, Round, Vector
from pmfl.engines.build import AnyEngine, build_engine
from pmfl.engines.crew import ALONE, Alone
from pmfl.engines.local import exactly
from pmfl.engines.memory import Memories
from pmfl.errors import Diverged, SpecError
from pmfl.study.checkpoint import Checkpoint
from pmfl.study.metrics import client_metrics, deviation, split_metrics, training_metrics
from pmfl.study.names import resolve
from pmfl.study.spec import RunSpec
from pmfl.study.store import Record
from pmfl.study.world import World, build_world
from pmfl.world.datasets import Dataset

GIGABYTE = 10**9
EACH_KEPT = 10_000  # of more clients than these, numbers of each one are recorded after the last round only


class State(NamedTuple):
    """All that must be saved to resume, besides client memories."""

    server: ServerState
    pattern: Any


def build_method(spec: RunSpec) -> Method:
    """The method by name, or from the user's own function."""
    made = resolve("method", spec.method.name)(**spec.method.params)
    if not isinstance(made, Method):
        raise SpecError(
            f"method `{spec.method.name}` returned a {type(made).__name__}", hint="return a pmfl.Method", code="S125"
        )
    return made


class Run:
    """One method under one seed. Iterating plays the rounds that are left and yields what each showed.

    >>> from pmfl.study.spec import run_spec
    >>> spec = run_spec({"method": "fedavg", "training": {"rounds": 2}, "data": {"clients": 10}})
    >>> [record.t for record in Run(spec)]
    [0, 1]
    """

    def __init__(
        self,
        spec: RunSpec,
        *,
        folder: Path | None = None,
        dataset: Dataset | None = None,
        model: Model | nn.Module | None = None,
        workers: int = 1,
        crew: Alone = ALONE,
        build: Callable[..., AnyEngine] = build_engine,
    ) -> None:
        if folder and (dataset is not None or model is not None):
            raise SpecError(
                "a data set or model given as an object cannot be named in a checkpoint",
                hint="name a function instead: data.dataset or training.model = './file.py:function'",
                code="S123",
            )
        self.spec, self.key = spec, Key.root(spec.seed)
        self.method = build_method(spec)
        holds_out = self.method.client.checks
        self.world: World = crew.together(
            lambda: build_world(spec, self.key, dataset=dataset, model=model, holds_out=holds_out)
        )
        engine = spec.engine
        self.engine = build(
            self.method.client,
            self.world.model,
            self.world.population,
            crew=crew,
            lanes=engine.lanes,
            device=engine.device,
            workers=workers,
            memories=Memories(
                budget=engine.memory_gb * GIGABYTE if engine.memory == "mmap" else float("inf"),
                folder=folder,
                rank=crew.rank,
                shortened=engine.profile == "fast",
            ),
        )
        w = self.world.model.init(self.key.fold("init")).to(self.engine.device)
        self.state = State(start(self.method, w, spec.data.clients), self.world.pattern.start())
        self.seconds = 0.0
        self.checkpoint = Checkpoint(folder, spec.run_id, crew) if folder else None
        self._resume()

    @property
    def t(self) -> int:
        """Rounds played so far."""
        return self.state.server.t

    @property
    def model(self) -> Model:
        """The classifier, as functions of a vector."""
        return self.world.model

    @property
    def w(self) -> Vector:
        """The model that is evaluated and exported."""
        return self.method.server.show(self.state.server.server, self.state.server.w)

    def save(self) -> None:
        """Write a checkpoint, if there is a folder for it."""
        if self.checkpoint:
            self.checkpoint.save(self.t, self.state, self.engine.memories, self.seconds)

    def close(self) -> None:
        """Let threads go."""
        self.engine.close()

    def __iter__(self) -> Iterator[Record]:
        while self.t < self.spec.training.rounds:
            began = time.perf_counter()
            with exactly():
                record = self._play()
            self.seconds += time.perf_counter() - began
            yield record

    def _play(self) -> Record:
        training = self.spec.training
        t = self.t
        now = Round(
            t=t,
            total=training.rounds,
            clients=self.spec.data.clients,
            client_lr=training.client_lr * training.lr_decay**t,
            key=self.key.fold("round", t),
            rates=self.world.rates,
        )
        available, pattern = self.world.pattern.row(self.state.pattern, t)
        server, outcome = play(self.method, self.engine, self.state.server, available, now)
        self.state = State(server, pattern)
        return self._record(outcome)

    def _record(self, outcome: Outcome) -> Record:
        spec, seen, t = self.spec.evaluation, outcome.replies.seen, outcome.t
        values, per_client = training_metrics(seen), {}
        if spec.deviation:
            values |= deviation(outcome.replies)
        last = t + 1 == self.spec.training.rounds
        each = last or self.spec.data.clients <= EACH_KEPT
        if last or (t + 1) % spec.every == 0:
            values |= split_metrics("test", self._evaluate("test", t))
            importance = self.method.weigh.importance(self.state.server.weigh)
            if importance is not None:
                if each:
                    per_client["weight"] = importance.numpy()
                if not bool(importance.isnan().all()):
                    values["server/weight"] = float(importance.nanmean())
        if last or (spec.train_every and (t + 1) % spec.train_every == 0):
            scores = self._evaluate("train", t)
            values |= split_metrics("train", scores)
            if spec.clients and each:
                per_client |= client_metrics(scores, self.world.owner, self.spec.data.clients)
        return Record(t, values, per_client, seen.clients.numpy().astype(np.int64))

    def _evaluate(self, which: str, t: int) -> Any:
        dataset = self.world.dataset
        scores = self.engine.evaluate(self.w, getattr(dataset, which), dataset)
        if not bool(scores.loss.isfinite().all()):
            raise Diverged(round=t, clients=[], what=f"the global model's {which} loss")
        return scores

    def _resume(self) -> None:
        if self.checkpoint and self.checkpoint.exists:
            self.state, self.seconds = self.checkpoint.load(self.state, self.engine.memories)
