from __future__ import annotations

import numpy as np
import torch

from pmfl.core.keys import Key
from pmfl.core.types import Work
from pmfl.world.datasets import from_arrays
from pmfl.world.networks import MODELS
from pmfl.world.population import CHECK_SAMPLES, Population

SIZES = (3, 16, 40, 1)
N = sum(SIZES)
# Every sample is its own number, so that what a client sees can be read off its inputs.
X = np.arange(N, dtype=np.float32)[:, None]
DATA = from_arrays(X, np.arange(N) % 2, X[:4], np.arange(4) % 2)
OWNED = np.split(np.arange(N), np.cumsum(SIZES)[:-1])
MODEL = MODELS["mlp"]((1,), 2, torch.float32, hidden=4)


def population(**settings: object) -> Population:
    given = {"iterations": 5, "batch_size": 16, **settings}
    return Population(DATA, OWNED, MODEL, Key.root(0), **given)  # type: ignore[arg-type]


def seen(work: Work) -> np.ndarray:
    return work.batches.x.numpy().astype(int).reshape(5, -1)


def test_shapes_labels_and_sizes() -> None:
    work = population().work(0, 2)
    assert work.batches.x.shape == (5, 16, 1)
    assert work.batches.y.shape == (5, 16)
    assert torch.equal(work.batches.y, (work.batches.x[..., 0] % 2).long())
    assert float(work.samples) == 40
    assert work.check is None


def test_a_client_sees_its_own_samples_only() -> None:
    for k, owned in enumerate(OWNED):
        assert set(seen(population().work(3, k)).flatten()) <= set(owned)


def test_no_sample_twice_in_a_pass_and_no_incomplete_mini_batch() -> None:
    rows = seen(population().work(1, 2))
    first, second = rows[:2].flatten(), rows[2:4].flatten()  # 40 samples: two whole mini-batches a pass
    assert len(set(first)) == len(set(second)) == 32


def test_a_small_client_sees_all_it_has_in_every_pass() -> None:
    rows = seen(population().work(1, 0)).flatten()
    for i in range(0, 78, 3):
        assert set(rows[i : i + 3]) == {0, 1, 2}
    assert set(seen(population().work(0, 3)).flatten()) == {59}


def test_draws_are_named_by_round_and_client() -> None:
    one = seen(population().work(4, 2))
    other = population()
    other.work(0, 1)  # whoever else takes part changes nothing
    assert np.array_equal(seen(other.work(4, 2)), one)
    assert not np.array_equal(seen(other.work(5, 2)), one)


def test_held_out_samples_are_the_clients_own_and_never_trained_on() -> None:
    people = population(holds_out=True)
    held_out, trained = set[int](), set[int]()
    for t in range(20):
        work = people.work(t, 2)
        assert work.check is not None
        assert len(work.check.y) == CHECK_SAMPLES
        held_out |= set(work.check.x[:, 0].int().tolist())
        trained |= set(seen(work).flatten())
        assert float(work.samples) == 32
    assert len(held_out) == 8
    assert not held_out & trained
    assert held_out | trained == set(OWNED[2])


def test_a_client_with_one_sample_checks_itself_on_it() -> None:
    work = population(holds_out=True).work(0, 3)
    assert work.check is not None
    assert set(work.check.x[:, 0].int().tolist()) == {59}
