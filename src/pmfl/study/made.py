"""Answers that need no training: who holds what, who comes when, what weights that makes.

They are computed from a specification alone. Of a data set with a published number of samples per class not even the
labels are read: shares of classes, and so rates and weights, follow from the counts.

rounds   world/mean (share of clients there, mean so far), world/gap (mean distance of a client's share of rounds from
         its rate), world/again (of those there in a round, the share that is there in the next), weight/mean,
         weight/frequent, weight/rare (x_k after the round)
clients  rate, came (share of rounds), participations, active (share of the most active class), weight
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from pmfl.core.keys import Key
from pmfl.core.types import Round, Seen
from pmfl.study import frames
from pmfl.study.names import resolve
from pmfl.study.play import row_of
from pmfl.study.spec import RunSpec
from pmfl.study.store import RunRow
from pmfl.study.world import build_dataset, build_partition, build_pattern
from pmfl.world.datasets import Dataset, from_arrays
from pmfl.world.participation import Pattern, activity
from pmfl.world.partition import Partition
from pmfl.world.sources.known import KNOWN

FloatArray = npt.NDArray[np.float64]
Numbers = tuple[list[tuple[int, str, str, float]], dict[str, FloatArray]]  # (t, split, metric, value); by client

FREQUENT, RARE = 0.402, 0.02  # rates of the clients whose weights the paper draws
BALANCED = ("cifar10", "cifar100", "cinic10", "fashion")  # as many samples of each class
SVHN = (4948, 13861, 10585, 8497, 7458, 6882, 5727, 5595, 5045, 4659)  # training samples of each digit


class Clients(NamedTuple):
    """What a run's clients hold, how often they should come, and when they come."""

    spec: RunSpec
    dataset: Dataset
    partition: Partition
    rates: FloatArray  # asked for; those that the pattern realises are the pattern's
    pattern: Pattern
    activity: FloatArray  # [classes], the paper's Z


class Made:
    """A source of answers that are computed when their tables are asked for."""

    def __init__(
        self,
        study: str,
        specs: Sequence[RunSpec],
        kind: str = "world",
        compute: Callable[[RunSpec], Numbers] | None = None,
    ) -> None:
        # A run that was trained has other tables, and must not be taken for this one.
        self.study, self.specs = study, {f"{kind}-{spec.run_id}": spec for spec in specs}
        self._compute = compute or world_numbers
        self._known: dict[str, tuple[Numbers, float]] = {}

    def runs(self) -> list[RunRow]:
        """Every specification, answered."""
        rows = []
        for run_id, spec in self.specs.items():
            _, seconds = self._of(run_id)
            row, total = row_of(spec, self.study), spec.training.rounds
            rows.append(
                replace(row, run_id=run_id, status="done", t=total, seconds=seconds, updated=time.time(), metrics={})
            )
        return rows

    def rounds(self, run_ids: Sequence[str]) -> pa.Table:
        """run_id, t, metric, split, value."""
        rows = [
            {"run_id": run_id, "t": t, "metric": metric, "split": split, "value": value}
            for run_id in run_ids
            for t, split, metric, value in self._of(run_id)[0][0]
        ]
        return pa.Table.from_pylist(rows, schema=frames.empty("rounds").schema)

    def clients(self, run_ids: Sequence[str]) -> pa.Table:
        """run_id, t, client, metric, value."""
        tables = [frames.empty("clients")]
        for run_id in run_ids:
            last = self.specs[run_id].training.rounds - 1
            for metric, values in self._of(run_id)[0][1].items():
                n = len(values)
                columns = [[run_id] * n, np.full(n, last), np.arange(n), [metric] * n, values.astype(np.float64)]
                tables.append(pa.table(columns, schema=tables[0].schema))
        return pa.concat_tables(tables)

    def _of(self, run_id: str) -> tuple[Numbers, float]:
        if run_id not in self._known:
            began = time.perf_counter()
            self._known[run_id] = self._compute(self.specs[run_id]), time.perf_counter() - began
        return self._known[run_id]


def clients_of(spec: RunSpec) -> Clients:
    """The clients of a run, without the run."""
    key = Key.root(spec.seed)
    dataset = known_labels(spec) or build_dataset(spec)
    partition = build_partition(spec, key, dataset)
    rates, pattern = build_pattern(spec, key, partition)
    z = activity(partition.mix.shape[1], key.fold("rates"), beta=spec.participation.beta)
    return Clients(spec, dataset, partition, rates, pattern, z)


def known_labels(spec: RunSpec) -> Dataset | None:
    """A data set with its published labels and without images; None where something of the files is needed.

    Slices of classes depend on how many samples a class has, and not on which they are.
    """
    known = KNOWN.get(spec.data.dataset)
    wholly = spec.data.partition.name == "slices" and not spec.data.options and not spec.data.held_out
    if known is None or not wholly or spec.data.path is not None:
        return None
    if known.name in BALANCED:
        counts = (known.train // known.classes,) * known.classes
    elif known.name == "svhn":
        counts = SVHN
    else:
        return None
    y = np.repeat(np.arange(known.classes), counts)
    x = np.zeros((len(y), 1, 1, 1), np.uint8)
    names = known.labels or tuple(map(str, range(known.classes)))
    few = np.arange(known.classes)
    return from_arrays(x, y, x[: len(few)], few, labels=list(names))


def world_numbers(spec: RunSpec) -> Numbers:
    """Participation and weights of a run, without its training."""
    found = clients_of(spec)
    clients, total, every = spec.data.clients, spec.training.rounds, spec.evaluation.every
    method = resolve("method", spec.method.name)(**spec.method.params)
    weigh, pattern = method.weigh.init(clients), found.pattern.start()
    picked = pick(found.rates)
    rows: list[tuple[int, str, str, float]] = []
    came, stayed, before = np.zeros(clients), np.zeros(2), np.zeros(clients, bool)
    for t in range(total):
        row, pattern = found.pattern.row(pattern, t)
        now = Round(t, total, clients, spec.training.client_lr, Key.root(spec.seed).fold("round", t))
        _, weigh = method.weigh.apply(weigh, Seen(row, {}), now)
        here = row.numpy()
        came += here
        stayed += [int((here & before).sum()), int(before.sum())]
        before = here
        if (t + 1) % every and t + 1 < total:
            continue
        rows += [
            (t, "world", "mean", float(came.mean() / (t + 1))),
            (t, "world", "gap", float(np.abs(came / (t + 1) - found.rates).mean())),
        ]
        rows += [(t, "world", "again", float(stayed[0] / stayed[1]))] if stayed[1] else []
        rows += [(t, "weight", who, value) for who, value in _weights(method.weigh.importance(weigh), picked).items()]
    by_client = {
        "rate": found.rates,
        "came": came / total,
        "participations": came,
        "active": found.partition.mix[:, int(found.activity.argmax())],
    }
    last = method.weigh.importance(weigh)
    return rows, by_client | ({} if last is None else {"weight": np.asarray(last.numpy(), np.float64)})


def pick(rates: FloatArray) -> dict[str, int]:
    """The clients whose rates are nearest to those of the paper's frequent and rare one."""
    return {"frequent": int(np.abs(rates - FREQUENT).argmin()), "rare": int(np.abs(rates - RARE).argmin())}


def _weights(x: torch.Tensor | None, picked: Mapping[str, int]) -> dict[str, float]:
    """The mean weight and those of some clients; before its first event a client has none."""
    if x is None or bool(x.isnan().all()):
        return {}
    found = {"mean": float(x.nanmean())} | {who: float(x[k]) for who, k in picked.items()}
    return {who: value for who, value in found.items() if value == value}
