"""Measures of runs, against computations that share nothing with them."""

from __future__ import annotations

import itertools
import math
import statistics

import numpy as np
import pyarrow as pa
import pytest
import torch

from pmfl.study.cost import client_flops
from pmfl.study.expression import parse_measure
from pmfl.study.frames import empty
from pmfl.study.measures import Recorded, fluctuation, settling
from pmfl.study.metrics import client_metrics, from_mean
from pmfl.study.spec import run_spec

CURVE = [0.1, 0.5, 0.45, 0.7, 0.65, 0.72, 0.71, 0.69, 0.74, 0.73, 0.75, 0.745]


def recorded(specs: dict | None = None) -> Recorded:
    rounds = [
        {"run_id": "a", "t": 10 * i + 9, "metric": "accuracy", "split": "test", "value": v} for i, v in enumerate(CURVE)
    ]
    rounds += [
        {"run_id": "a", "t": 10 * i + 9, "metric": "loss", "split": "test", "value": 1 - v} for i, v in enumerate(CURVE)
    ]
    rounds += [{"run_id": "a", "t": 10 * i + 9, "metric": "clients", "split": "local", "value": 4.0} for i in range(12)]
    clients = [
        {"run_id": "a", "t": 119, "client": k, "metric": metric, "value": value}
        for metric, values in (
            ("accuracy", [0.9, 0.7, 0.8, math.nan]),
            ("weight", [2.0, 9.0, 9.0, 1.0]),
            ("same", [1.0] * 4),
        )
        for k, value in enumerate(values)
    ]
    rounds_, clients_ = [
        pa.Table.from_pylist(rows, schema=empty(name).schema)
        for name, rows in (("rounds", rounds), ("clients", clients))
    ]
    return Recorded(rounds_, clients_, specs or {})


def measured(text: str, specs: dict | None = None) -> float | None:
    return recorded(specs).measured(parse_measure(text), "a")


def test_curves_become_numbers() -> None:
    half = CURVE[6:]
    wanted = {
        "top5_mean": statistics.mean(sorted(CURVE)[-5:]),
        "last10_mean": statistics.mean(CURVE[2:]),
        "final": CURVE[-1],
        "mean": statistics.mean(CURVE),
        "late_mean": statistics.mean(half),
        "late_median": statistics.median(half),
        "lowest": min(half),
        "highest": max(half),
        "fluctuation": statistics.mean(abs(b - a) for a, b in itertools.pairwise(half)),
    }
    for name, value in wanted.items():
        assert measured(f"{name}(test/accuracy)") == pytest.approx(value), name
    assert measured("top5_mean(test/loss)") == pytest.approx(statistics.mean(sorted(1 - v for v in CURVE)[:5]))


def test_a_curve_settles() -> None:
    assert settling(np.array([0, 4, 0, 4, 0, 4, 0, 4, 1, 2, 1, 2, 1, 2, 1, 2.0])) == pytest.approx(0.25)
    assert settling(np.ones(16)) == 1.0
    assert fluctuation(np.ones(1)) == 0.0


def test_clients_become_numbers() -> None:
    assert measured("share(accuracy >= 0.8)") == pytest.approx(2 / 3)
    assert measured("share(accuracy <= 0.7)") == pytest.approx(1 / 3)
    assert measured("spread(accuracy)") == pytest.approx(statistics.pstdev([0.9, 0.7, 0.8]))
    assert recorded().measured(parse_measure("correlation(same, weight)"), "a") is None
    # The client without an accuracy does not count: 0.9, 0.7, 0.8 against 2, 9, 9.
    assert measured("correlation(accuracy, weight)") == pytest.approx(-(3**0.5) / 2)


def test_rank_correlation_is_scipys() -> None:
    from scipy.stats import spearmanr

    rng = np.random.Generator(np.random.PCG64(1))
    x, y = rng.integers(0, 9, 40).astype(float), rng.random(40)
    rows = [
        {"run_id": "a", "t": 0, "client": k, "metric": name, "value": float(v)}
        for name, values in (("x", x), ("y", y))
        for k, v in enumerate(values)
    ]
    table = pa.Table.from_pylist(rows, schema=empty("clients").schema)
    found = Recorded(empty("rounds"), table).measured(parse_measure("correlation(x, y)"), "a")
    assert found == pytest.approx(spearmanr(x, y).statistic)


def test_what_was_not_recorded_is_none() -> None:
    for text in ("final(train/accuracy)", "share(loss <= 1)", "spread(loss)", "at_budget(test/accuracy)"):
        assert measured(text) is None


def test_accuracy_at_equal_computation() -> None:
    given = {"training": {"rounds": 120, "model": "mlp"}}
    plain, contrast = (run_spec({**given, "method": name}).model_dump(mode="json") for name in ("fedavg", "pmfl"))
    ratio = client_flops(contrast) / client_flops(plain)
    assert 1.5 < ratio < 4
    assert measured("at_budget(test/accuracy)", {"a": plain}) == measured("top5_mean(test/accuracy)")
    reached = [v for i, v in enumerate(CURVE) if 10 * (i + 1) <= 120 / ratio]
    assert measured("at_budget(test/accuracy)", {"a": contrast}) == pytest.approx(statistics.mean(sorted(reached)[-5:]))


def test_deviation_is_its_definition() -> None:
    """Dev^t = sum of 1 - cosine to the mean update, in plain Python."""
    rng = np.random.Generator(np.random.PCG64(0))
    updates = [rng.standard_normal(7) for _ in range(5)]
    mean = [sum(column) / 5 for column in zip(*updates, strict=True)]

    def cosine(a: list[float], b: list[float]) -> float:
        dot = sum(x * y for x, y in zip(a, b, strict=True))
        return dot / math.sqrt(sum(x * x for x in a)) / math.sqrt(sum(y * y for y in b))

    tensors = [torch.tensor(update) for update in updates]
    found = from_mean(
        tensors, lambda weights: sum((w * u for w, u in zip(weights, tensors, strict=True)), torch.zeros(7))
    )
    assert float(found.sum()) == pytest.approx(sum(1 - cosine(list(update), mean) for update in updates), rel=1e-6)


def test_client_metrics_are_means_over_own_samples() -> None:
    from pmfl.engines.local import Scores

    scores = Scores(torch.tensor([0.5, 1.5, 2.0, 4.0], dtype=torch.float64), torch.tensor([True, False, True, True]))
    found = client_metrics(scores, np.array([0, 0, 1, 3]), 4)
    assert found["accuracy"][[0, 1, 3]].tolist() == [0.5, 1.0, 1.0]
    assert found["loss"][[0, 1, 3]].tolist() == [1.0, 2.0, 4.0]
    assert np.isnan(found["accuracy"][2])
