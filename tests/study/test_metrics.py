from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pmfl.core.types import Seen, Uplink, nobody
from pmfl.engines.local import LocalReplies, Scores
from pmfl.errors import Diverged
from pmfl.study.metrics import (
    client_metrics,
    deviation,
    mean_interval,
    split_metrics,
    summary_of,
    training_metrics,
)

SCORES = Scores(torch.tensor([0.5, 1.5, 4.0, 2.0], dtype=torch.float64), torch.tensor([True, False, True, True]))


def test_split_metrics_are_sample_means() -> None:
    assert split_metrics("test", SCORES) == {"test/accuracy": 0.75, "test/loss": 2.0}


def test_client_metrics_are_means_over_each_clients_own_samples() -> None:
    found = client_metrics(SCORES, np.array([2, 0, 2, 0]), 3)
    assert found["accuracy"].tolist()[::2] == [0.5, 1.0]
    assert found["loss"].tolist()[::2] == [1.75, 2.25]
    assert math.isnan(found["accuracy"][1])


def replies(*updates: list[float]) -> LocalReplies:
    uplinks = [Uplink(torch.tensor(u), (), {}, torch.tensor(u)) for u in updates]
    return LocalReplies(nobody(9), list(range(len(updates))), uplinks, 3, torch.zeros(2))


def test_deviation_equals_the_definition() -> None:
    centre = np.array([0.5, 1.0])
    direct = sum(
        1 - float(np.dot(u, centre) / np.linalg.norm(u) / np.linalg.norm(centre)) for u in ([1.0, 0.0], [0.0, 2.0])
    )
    found = deviation(replies([1.0, 0.0], [0.0, 2.0], [0.0, 0.0]))
    assert found["local/deviation"] == pytest.approx(direct, abs=1e-12)
    assert found["local/deviation_mean"] == pytest.approx(direct / 2, abs=1e-12)


def test_equal_updates_do_not_deviate_and_nobody_says_nothing() -> None:
    assert deviation(replies(*[[1.0, 1.0]] * 3))["local/deviation"] == pytest.approx(0, abs=1e-12)
    assert deviation(replies()) == {}
    assert deviation(replies([0.0, 0.0])) == {}


def test_deviation_of_an_update_that_is_not_finite_is_divergence() -> None:
    with pytest.raises(Diverged, match="round 3: the update of client 1 "):
        deviation(replies([1.0, 0.0], [math.inf, 0.0]))


def test_training_metrics_are_means_over_participants() -> None:
    seen = Seen(torch.tensor([True, False, True]), {"loss/first": torch.tensor([1.0, 3.0]), "x/last": torch.ones(2)})
    assert training_metrics(seen) == {"local/clients": 2.0, "local/loss": 2.0}


@settings(deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=40))
def test_summaries_equal_direct_computation(curve: list[float]) -> None:
    found = summary_of(curve)
    assert found["final"] == curve[-1]
    assert found["last10_mean"] == pytest.approx(np.mean(curve[-10:]))
    assert found["top5_mean"] == pytest.approx(np.mean(np.sort(curve)[::-1][:5]))
    assert summary_of(curve, lower_is_better=True)["top5_mean"] == pytest.approx(np.mean(np.sort(curve)[:5]))


@settings(deadline=None)
@given(st.lists(st.floats(-10, 10), min_size=2, max_size=12))
def test_intervals_are_students(values: list[float]) -> None:
    found = mean_interval(values)
    half = scipy.stats.t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values))
    assert found["mean"] == pytest.approx(np.mean(values))
    assert found["high"] - found["mean"] == pytest.approx(half, abs=1e-9)
    assert found["mean"] - found["low"] == pytest.approx(half, abs=1e-9)


def test_one_seed_has_no_interval() -> None:
    found = mean_interval([0.5])
    assert found["mean"] == 0.5
    assert math.isnan(found["low"])
