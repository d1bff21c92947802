"""From the store to the few hundred numbers a chart shows, however many rounds and clients there were."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pmfl.report.series import Setting
from pmfl.study import frames
from pmfl.study.store import RunRow, Store

Rows: TypeAlias = list[dict[str, Any]]
FloatArray: TypeAlias = npt.NDArray[np.float64]
IntArray: TypeAlias = npt.NDArray[np.int64]

POINTS = 200  # per curve: more cannot be told apart on a page


@dataclass(frozen=True)
class Took:
    """Who took part in which round of one run."""

    t: IntArray  # one entry per participation
    client: IntArray
    rounds: int  # played so far
    clients: int

    @property
    def rates(self) -> FloatArray:
        """The share of rounds in which each client took part, [K]."""
        rates: FloatArray = np.bincount(self.client, minlength=self.clients) / max(self.rounds, 1)
        return rates


def curves(store: Store, panel: Sequence[Setting]) -> tuple[Rows, Rows]:
    """Test and train accuracy by round: label, round, mean, low and high over seeds.

    ``each`` evaluations make a point, and ``end`` is the last round. Only rounds that all drawn seeds of a setting have
    reached count, so that a mean is always over the same seeds.
    """
    found: tuple[Rows, Rows] = ([], [])
    for setting in panel:
        tables = [_of(frames.rounds(store, [run.run_id]), "accuracy") for run in setting.shown]
        for rows, split in zip(found, ("test", "train"), strict=True):
            rows += curve(setting.label, [_of(table, split, "split").sort_by("t") for table in tables])
    return found


def took_part(store: Store, run: RunRow) -> Took:
    """Participation of one run."""
    table = frames.participation(store, [run.run_id])
    t, client = table["t"].to_numpy(), table["client"].to_numpy()
    return Took(t, client, run.t or int(t.max(initial=-1)) + 1, int(run.spec["data"]["clients"]))


def last_accuracies(store: Store, run: RunRow, clients: int, measurements: int = 1) -> FloatArray | None:
    """The global model's accuracy on each client's own training data, [K], as mean of the last measurements.

    None where it was not measured, NaN for a client without data.
    """
    table = _of(frames.clients(store, [run.run_id]), "accuracy")
    if not len(table):
        return None
    first = np.unique(table["t"].to_numpy())[-measurements:][0]
    last = table.filter(pc.greater_equal(table["t"], first))
    client = last["client"].to_numpy()
    with np.errstate(invalid="ignore"):
        found: FloatArray = np.bincount(client, last["value"].to_numpy(), clients) / np.bincount(client, None, clients)
    return found


@dataclass(frozen=True)
class Fairness:
    """The final model on each client's own data, and how often each took part; all seeds of a setting, pooled."""

    label: str
    rate: FloatArray
    accuracy: FloatArray
    seed: IntArray  # which of the seeds each entry is of, 0, 1, …


def fairness(store: Store, panel: Sequence[Setting]) -> list[Fairness]:
    """Per setting: rate and accuracy of every client of every finished seed."""
    found = []
    for setting in panel:
        rates, accuracies = [], []
        for run in setting.done:
            took = took_part(store, run)
            accuracy = last_accuracies(store, run, took.clients)
            if accuracy is not None:
                known = ~np.isnan(accuracy)
                rates.append(took.rates[known])
                accuracies.append(accuracy[known])
        if rates:
            seed = np.repeat(np.arange(len(rates)), [len(one) for one in rates])
            found.append(Fairness(setting.label, np.concatenate(rates), np.concatenate(accuracies), seed))
    return found


def quarters(rate: FloatArray, accuracy: FloatArray) -> tuple[float, float]:
    """Mean accuracy of the quarter of clients that took part least, and of the quarter that did most."""
    order = np.argsort(rate, kind="stable")
    quarter = max(len(order) // 4, 1)
    return float(accuracy[order[:quarter]].mean()), float(accuracy[order[-quarter:]].mean())


def fairness_rows(found: Sequence[Fairness]) -> Rows:
    """Who is left behind, in numbers per setting: clients at the bottom, and rare against frequent ones."""
    rows: Rows = []
    for one in found:
        rare, frequent = [], []
        for seed in range(int(one.seed.max()) + 1):
            mine = one.seed == seed
            ends = quarters(one.rate[mine], one.accuracy[mine])
            rare.append(ends[0])
            frequent.append(ends[1])
        low, middle = np.quantile(one.accuracy, (0.1, 0.5)).tolist()
        rows.append(
            {
                "label": one.label,
                "mean": float(one.accuracy.mean()),
                "median": middle,
                "lowest_tenth": low,
                "rarest_quarter": float(np.mean(rare)),
                "most_frequent_quarter": float(np.mean(frequent)),
                "gap": float(np.mean(frequent) - np.mean(rare)),
            }
        )
    return rows


def weights(store: Store, run: RunRow, label: str, took: Took) -> tuple[Rows, Rows]:
    """A method's weights by round: the mean over clients, its most frequent client and its rarest.

    The second rows are the inverse of the two clients' rates: what an exact weight would be.
    """
    table = _of(frames.clients(store, [run.run_id]), "weight")
    if not len(table):
        return [], []
    t, client, value = (table[name].to_numpy() for name in ("t", "client", "value"))
    times = np.bincount(took.client, minlength=took.clients)
    seen = np.flatnonzero((times > 0) & (np.bincount(client, minlength=took.clients) > 0))
    if not len(seen):
        return [], []
    picked = {"most frequent": seen[np.argmax(times[seen])], "rarest": seen[np.argmin(times[seen])]}
    rounds, which = np.unique(t, return_inverse=True)
    mean = np.bincount(which, value) / np.bincount(which)
    rows = [{"label": label, "who": "mean", "round": int(r) + 1, "weight": _short(m)} for r, m in thin(rounds, mean)]
    marks = []
    for who, k in picked.items():
        mine = client == k
        rows += [
            {"label": label, "who": who, "round": int(r) + 1, "weight": _short(m)}
            for r, m in thin(t[mine], value[mine])
        ]
        marks.append({"label": label, "who": who, "inverse": took.rounds / times[k], "rate": times[k] / took.rounds})
    return rows, marks


def curve(label: str, seeds: Sequence[pa.Table], points: int = POINTS) -> Rows:
    """Mean, lowest and highest over seeds by round; at most so many points, each a mean of ``each`` values."""
    ts = [table["t"].to_numpy() for table in seeds]
    t = reduce(np.intersect1d, ts) if ts else np.empty(0, np.int64)
    if not len(t):
        return []
    values = np.stack([table["value"].to_numpy()[np.isin(own, t)] for table, own in zip(seeds, ts, strict=True)])
    each = -(-len(t) // points)
    starts = np.arange(0, len(t), each)
    sizes = np.diff(np.append(starts, len(t)))
    binned = np.add.reduceat(values, starts, axis=1) / sizes
    rounds = np.add.reduceat(t + 1, starts) / sizes
    rows: Rows = []
    for at, one in zip(rounds.tolist(), binned.T, strict=True):
        row = {"label": label, "round": at, "mean": _short(one.mean()), "each": each, "end": int(t[-1]) + 1}
        rows.append(row | ({"low": _short(one.min()), "high": _short(one.max())} if len(one) > 1 else {}))
    return rows


def _of(table: pa.Table, word: str, column: str = "metric") -> pa.Table:
    return table.filter(pc.equal(table[column], word))


def thin(t: IntArray, values: FloatArray) -> list[tuple[int, float]]:
    """At most so many points, evenly spaced, the last one always among them."""
    keep = np.unique(np.linspace(len(t) - 1, 0, min(len(t), POINTS)).round().astype(np.int64))
    return list(zip(t[keep].tolist(), values[keep].tolist(), strict=True))


def _short(value: float) -> float:
    """Enough digits for a picture."""
    return float(f"{value:.5g}")
