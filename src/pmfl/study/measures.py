"""How a run's records become the one number that a claim is about.

top5_mean, last10_mean, final   of a curve's evaluations: mean of the 5 best, mean of the last 10, the last
mean, late_mean, late_median    of a curve: over the whole run, over its second half
lowest, highest                 of a curve's second half
fluctuation                     mean absolute change from one evaluation to the next, over the second half
settling                        fluctuation in the last quarter over fluctuation in the second quarter
at_budget                       mean of the 5 best evaluations until clients have computed what a run of FedAvg costs
share, spread, correlation      over clients: share within a limit, standard deviation, Spearman's rank correlation
range_of_final                  over seeds: largest minus smallest final value
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pmfl.study.expression import OVER_SEEDS, Measure
from pmfl.study.metrics import summary_of

FloatArray = npt.NDArray[np.float64]
EMPTY: Mapping[str, Mapping[str, Any]] = {}


class Recorded:
    """The tables of some runs, by run and metric."""

    def __init__(self, rounds: pa.Table, clients: pa.Table, specs: Mapping[str, Mapping[str, Any]] = EMPTY) -> None:
        self._specs = specs
        named = rounds.append_column("name", pc.binary_join_element_wise(rounds["split"], rounds["metric"], "/"))
        self._curves = _grouped(named, "name", "t")
        self._clients = _grouped(clients, "metric", "client")

    def curve(self, run_id: str, name: str) -> FloatArray:
        """The values of split/metric in the order of rounds; empty where nothing was recorded."""
        return self._curves.get((run_id, name), (np.empty(0),) * 2)[1]

    def clients(self, run_id: str, metric: str) -> dict[int, float]:
        """A metric by client."""
        who, values = self._clients.get((run_id, metric), (np.empty(0), np.empty(0)))
        return dict(zip(who.astype(int).tolist(), values.tolist(), strict=True))

    def measured(self, measure: Measure, run_id: str) -> float | None:
        """The number a run gives; None where what it needs was not recorded."""
        if measure.name in _OF_CURVE or measure.name in (*_SUMMARIES, "at_budget", *OVER_SEEDS):
            curve = self.curve(run_id, measure.of)
            if not len(curve):
                return None
            if measure.name in _OF_CURVE:
                return _OF_CURVE[measure.name](curve)
            if measure.name == "at_budget":
                return self._at_budget(measure.of, run_id)
            word = "final" if measure.name in OVER_SEEDS else measure.name
            return summary_of(curve.tolist(), lower_is_better=measure.of.endswith("/loss"))[word]
        found = self.clients(run_id, measure.of)
        if measure.name == "correlation":
            other = self.clients(run_id, measure.other)
            shared = [k for k in found if k in other and found[k] == found[k] and other[k] == other[k]]
            return _spearman([found[k] for k in shared], [other[k] for k in shared])
        values = np.fromiter(found.values(), np.float64, len(found))
        values = values[~np.isnan(values)]
        if not len(values):
            return None
        if measure.limit is None:
            return float(values.std())
        above, edge = measure.limit[0] == ">=", measure.limit[1]
        return float((values >= edge).mean() if above else (values <= edge).mean())

    def _at_budget(self, name: str, run_id: str) -> float | None:
        """What is reached while a run has spent no more than FedAvg would have spent on all of it."""
        from pmfl.study.cost import client_flops

        came, spec = self._curves.get((run_id, "local/clients")), self._specs.get(run_id)
        if came is None or spec is None:
            return None
        plain_method = {**spec, "method": {"name": "fedavg", "params": {}}}
        share = client_flops(plain_method) / client_flops(spec)
        at, mean = came
        spent = np.cumsum(
            np.diff(np.r_[-1, at]) * mean
        )  # participations; means are over the rounds since the one before
        t, values = self._curves[run_id, name]
        within = values[np.interp(t, at, spent) <= share * spent[-1] * (1 + 1e-9)]
        return summary_of(within.tolist(), lower_is_better=name.endswith("/loss"))["top5_mean"] if len(within) else None


def fluctuation(curve: FloatArray) -> float:
    """Mean absolute change from one evaluation to the next.

    >>> fluctuation(np.array([0.5, 0.75, 0.5]))
    0.25
    """
    return float(np.abs(np.diff(curve)).mean()) if len(curve) > 1 else 0.0


def settling(curve: FloatArray) -> float:
    """Fluctuation in the last quarter over fluctuation in the second: below 1, a curve steadies."""
    quarter = len(curve) // 4
    before, after = fluctuation(curve[quarter : 2 * quarter]), fluctuation(curve[len(curve) - quarter :])
    return after / before if before > 0 else 1.0


def late(curve: FloatArray) -> FloatArray:
    """The second half."""
    return curve[len(curve) // 2 :]


_SUMMARIES = ("top5_mean", "last10_mean", "final")
_OF_CURVE: Mapping[str, Callable[[FloatArray], float]] = {
    "mean": lambda curve: float(curve.mean()),
    "late_mean": lambda curve: float(late(curve).mean()),
    "late_median": lambda curve: float(np.median(late(curve))),
    "lowest": lambda curve: float(late(curve).min()),
    "highest": lambda curve: float(late(curve).max()),
    "fluctuation": lambda curve: fluctuation(late(curve)),
    "settling": settling,
}


def _spearman(first: list[float], second: list[float]) -> float | None:
    from scipy.stats import rankdata

    if len(first) < 2 or len(set(first)) < 2 or len(set(second)) < 2:
        return None
    return float(np.corrcoef(rankdata(first), rankdata(second))[0, 1])


def _grouped(table: pa.Table, name: str, order: str) -> dict[tuple[str, str], tuple[FloatArray, FloatArray]]:
    """Arrays of ``order`` and value for each run and name."""
    table = table.sort_by([("run_id", "ascending"), (name, "ascending"), (order, "ascending")])
    runs, names = (table[column].combine_chunks().dictionary_encode() for column in ("run_id", name))
    codes = np.stack([runs.indices.to_numpy(), names.indices.to_numpy()]) if len(table) else np.empty((2, 0))
    starts = np.flatnonzero(np.any(codes[:, 1:] != codes[:, :-1], axis=0)) + 1 if len(table) else np.empty(0, int)
    at, values = (table[column].to_numpy().astype(np.float64) for column in (order, "value"))
    edges = [0, *starts.tolist(), len(table)] if len(table) else [0]
    found = {}
    for first, end in itertools.pairwise(edges):
        which = (runs[first].as_py(), names[first].as_py())
        found[which] = (at[first:end], values[first:end])
    return found
