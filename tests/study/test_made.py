"""What is answered without training: participation and weights, against sums done by hand, and a clock."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pmfl.core.keys import Key
from pmfl.study.archive import Archive, add
from pmfl.study.clock import clock_numbers
from pmfl.study.cost import client_flops
from pmfl.study.made import SVHN, Made, clients_of, known_labels, pick, world_numbers
from pmfl.study.spec import RunSpec, run_spec
from pmfl.study.world import build_partition
from pmfl.world.datasets import from_arrays
from pmfl.world.sources.known import KNOWN


def spec_of(**training: object) -> RunSpec:
    return run_spec(
        {
            "data": {"dataset": "cifar10", "clients": 30},
            "training": {"rounds": 200, "model": "cnn-cifar10", **training},
            "evaluation": {"every": 50},
        }
    )


def test_labels_are_not_read_where_their_counts_are_published() -> None:
    """Slices depend on how many samples a class has: in any order, clients hold the same shares."""
    spec = spec_of()
    made = known_labels(spec)
    assert made is not None
    assert np.bincount(made.train.y).tolist() == [5000] * 10
    rng = np.random.Generator(np.random.PCG64(3))
    y = rng.permutation(made.train.y)
    shuffled = from_arrays(np.zeros((len(y), 1, 1, 1), np.uint8), y, np.zeros((10, 1, 1, 1), np.uint8), np.arange(10))
    first, second = (build_partition(spec, Key.root(0), dataset) for dataset in (made, shuffled))
    assert np.array_equal(first.mix, second.mix)
    assert sum(SVHN) == KNOWN["svhn"].train


def test_other_data_sets_are_read() -> None:
    given = {"data": {"dataset": "digits", "clients": 20}}
    assert known_labels(run_spec(given)) is None
    shards = {"dataset": "cifar10", "partition": {"name": "shards"}}
    assert known_labels(run_spec({"data": shards})) is None
    assert clients_of(run_spec(given)).dataset.name == "digits"


def test_participation_and_weights_are_what_they_say() -> None:
    spec = spec_of()
    rows, by_client = world_numbers(spec)
    found = clients_of(spec)
    here, state = [], found.pattern.start()
    for t in range(200):
        row, state = found.pattern.row(state, t)
        here.append(row.numpy())
    came = np.stack(here)
    assert by_client["participations"].tolist() == came.sum(0).tolist()
    last = {f"{split}/{metric}": value for t, split, metric, value in rows if t == 199}
    assert last["world/mean"] == pytest.approx(came.mean())
    assert last["world/gap"] == pytest.approx(np.abs(came.mean(0) - found.rates).mean())
    assert last["world/again"] == pytest.approx((came[1:] & came[:-1]).sum() / came[:-1].sum())
    weights = [_weight(came[:, k], 50) for k in range(30)]
    assert by_client["weight"] == pytest.approx(np.array(weights))
    assert last["weight/mean"] == pytest.approx(np.mean(weights))
    for who, k in pick(found.rates).items():
        assert last[f"weight/{who}"] == pytest.approx(weights[k])
    assert {t for t, *_ in rows} == {49, 99, 149, 199}


def _weight(came: np.ndarray, cutoff: int) -> float:
    """Mean length of the intervals that end with a participation, or after ``cutoff`` rounds."""
    intervals, since = [], 0
    for here in came:
        since += 1
        if here or since == cutoff:
            intervals.append(since)
            since = 0
    return float(np.mean(intervals))


def test_what_is_made_is_kept_apart_from_what_was_trained(tmp_path: Path) -> None:
    spec = spec_of(rounds=20)
    made = Made("weights", [spec])
    (row,) = made.runs()
    assert row.run_id == f"world-{spec.run_id}"
    assert add(tmp_path, [made]) == [row] or len(Archive(tmp_path).runs()) == 1
    kept = Archive(tmp_path)
    assert add(tmp_path, [made]) == []
    assert kept.clients([row.run_id]).num_rows == made.clients([row.run_id]).num_rows == 5 * 30
    assert kept.rounds([row.run_id]).num_rows == made.rounds([row.run_id]).num_rows > 0


def test_a_clock_measures_training_and_aggregation() -> None:
    spec = run_spec(
        {
            "method": "fedau",
            "data": {"dataset": "digits", "clients": 4},
            "participation": {"pattern": "always"},
            "training": {"rounds": 3, "iterations": 1},
        }
    )
    rows, by_client = clock_numbers(spec)
    assert by_client == {}
    assert [metric for _, _, metric, _ in rows] == ["aggregate", "train"] * 3 + ["flops"]
    assert all(value > 0 for *_, value in rows)
    assert rows[-1][3] == client_flops(spec)


def test_a_clock_needs_no_images() -> None:
    spec = spec_of(rounds=1, iterations=1, batch_size=1)
    rows, _ = clock_numbers(spec.model_copy(update={"method": run_spec({"method": "fedavg"}).method}))
    assert "aggregate" in {metric for _, _, metric, _ in rows}
