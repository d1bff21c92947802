from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pmfl.core.keys import Key
from pmfl.report.attendance import BINS, ROWS, attended, binned, foreseen
from pmfl.report.gather import Took
from pmfl.world.participation import bernoulli, cyclic, matrix


def took_of(here: np.ndarray) -> Took:
    t, client = np.nonzero(here)
    return Took(t, client, *here.shape)


def test_few_clients_and_rounds_are_drawn_one_by_one() -> None:
    here = Key.root(0).numpy().random((50, 8)) < np.linspace(0.9, 0.1, 8)
    seen = attended(took_of(here))
    assert seen.exact
    assert seen.every_client
    order = np.argsort(-here.sum(0), kind="stable")
    np.testing.assert_array_equal(seen.cells, here.T[order])
    np.testing.assert_array_equal(seen.shown, order)
    np.testing.assert_array_equal(seen.by_round, here.sum(1))
    np.testing.assert_allclose(seen.rates, here.mean(0))


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 700), st.integers(1, 1500), st.integers(0, 99))
def test_cells_are_shares_and_nothing_is_lost(clients: int, rounds: int, seed: int) -> None:
    here = Key.root(seed).numpy().random((rounds, clients)) < 0.05
    seen = attended(took_of(here))
    rows, columns = seen.cells.shape
    assert rows <= ROWS
    assert columns <= 600
    assert 0 <= seen.cells.min() <= seen.cells.max() <= 1
    _, across = binned(seen.by_round)
    np.testing.assert_allclose((seen.cells * np.diff(seen.bands)[:, None] * across).sum(), here.sum())
    assert seen.bands[-1] == clients
    assert across.sum() == rounds


def test_many_rounds_are_put_into_bins() -> None:
    seen = attended(took_of(np.ones((10_000, 3), bool)))
    assert seen.cells.shape[1] <= BINS
    assert not seen.exact
    np.testing.assert_array_equal(seen.cells, 1)


def test_a_run_without_participants_is_an_empty_picture() -> None:
    seen = attended(took_of(np.zeros((5, 4), bool)))
    assert seen.cells.shape == (4, 5)
    assert seen.times.sum() == 0


def test_a_pattern_is_looked_at_without_a_matrix() -> None:
    rates = np.linspace(0.05, 0.9, 90)
    pattern = bernoulli(rates, Key.root(1))
    seen = foreseen(pattern, 30, rates, rows=10)
    here = matrix(pattern, 30).numpy()
    np.testing.assert_array_equal(seen.cells, here.T[seen.shown])
    np.testing.assert_array_equal(seen.times, here.sum(0))
    np.testing.assert_array_equal(seen.by_round, here.sum(1))
    assert not seen.every_client
    assert list(seen.shown[[0, -1]]) == [89, 0]
    assert seen.exact


def test_a_small_pattern_shows_everybody_and_a_long_one_is_binned() -> None:
    rates = np.full(6, 0.5)
    seen = foreseen(cyclic(rates, Key.root(1), cycle=4), 1200, rates)
    assert seen.every_client
    assert not seen.exact
    np.testing.assert_array_equal(seen.cells, 0.5)
