from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from pmfl.core import sums
from pmfl.core.keys import Key
from pmfl.core.sums import FIXED_POINT, RANGE, check_range, exact_weighted_sum, from_fixed_point
from pmfl.errors import Diverged
from tests.toy import examples, normal

weights = st.floats(-100, 100, allow_nan=False)
entries = st.floats(-100, 100, allow_nan=False)
terms = st.lists(st.tuples(weights, st.tuples(entries, entries, entries)), max_size=8)
precision = st.sampled_from([torch.float32, torch.float64])

Terms = list[tuple[float, tuple[float, float, float]]]


def split(terms: Terms, dtype: torch.dtype) -> tuple[list[float], list[Tensor]]:
    return [weight for weight, _ in terms], [torch.tensor(vector, dtype=dtype) for _, vector in terms]


@examples(150)
@given(terms=terms, dtype=precision)
def test_sums_are_those_of_fractions_rounded_term_by_term(terms: Terms, dtype: torch.dtype) -> None:
    by, vectors = split(terms, dtype)
    total = exact_weighted_sum(by, vectors, 3)
    for i in range(3):
        # A term is a product of two float64, rounded to a multiple of 2^-40, half to even.
        ticks = [
            Fraction(float(vector[i]) * weight) * int(FIXED_POINT) for weight, vector in zip(by, vectors, strict=True)
        ]
        assert int(total[i]) == sum(round(tick) for tick in ticks)
        exact = sum(Fraction(float(v[i])) * Fraction(w) for w, v in zip(by, vectors, strict=True))
        assert abs(Fraction(int(total[i]), int(FIXED_POINT)) - exact) <= len(terms) * Fraction(1, 2**39)


@examples(100)
@given(terms=terms, dtype=precision, seed=st.integers(0, 2**32), cut=st.integers(0, 8))
def test_order_and_sharding_change_no_bit(terms: Terms, dtype: torch.dtype, seed: int, cut: int) -> None:
    by, vectors = split(terms, dtype)
    order = torch.randperm(len(terms), generator=Key.root(seed).torch()).tolist()
    shards = [order[:cut], order[cut:]]
    parts = [exact_weighted_sum([by[i] for i in ids], [vectors[i] for i in ids], 3) for ids in shards]
    assert torch.equal(parts[0] + parts[1], exact_weighted_sum(by, vectors, 3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_is_summed_stays_as_it_was(dtype: torch.dtype) -> None:
    vector = normal(Key.root(0), 5).to(dtype)
    before = vector.clone()
    exact_weighted_sum([0.25], [vector], 5)
    assert torch.equal(vector, before)


def test_long_vectors_are_summed_block_by_block(monkeypatch: pytest.MonkeyPatch) -> None:
    key = Key.root(0)
    vectors = [normal(key.fold(i), 50) for i in range(3)]
    copies = [vector.clone() for vector in vectors]
    whole = exact_weighted_sum([1.0, -2.0, 0.3], vectors, 50)
    monkeypatch.setattr(sums, "BLOCK", 7)
    assert torch.equal(exact_weighted_sum([1.0, -2.0, 0.3], copies, 50), whole)


@pytest.mark.parametrize("wide", [1 << 20, 7])
def test_rows_of_a_wide_device_give_the_same_integers(wide: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sums, "WIDE", wide)
    rows, by = normal(Key.root(4), 5 * 50).view(5, 50), [0.1, -2.0, 3.7, 0.0, 1e-9]
    rows /= rows.abs().max()
    assert torch.equal(sums.sum_of_rows(by, rows), exact_weighted_sum(by, list(rows), 50))
    assert torch.equal(sums.sum_of_rows([], rows[:0]), torch.zeros(50, dtype=torch.int64))
    assert sums.sum_of_rows(by, rows[:, :0]).tolist() == []


def test_the_sum_of_nothing_is_zero() -> None:
    assert exact_weighted_sum([], [], 2).tolist() == [0, 0]


def test_back_to_floating_point() -> None:
    total = torch.tensor([int(FIXED_POINT), -int(FIXED_POINT) // 4])
    assert from_fixed_point(total, torch.float64).tolist() == [1.0, -0.25]
    assert from_fixed_point(total, torch.float32).dtype == torch.float32
    assert total.tolist() == [int(FIXED_POINT), -int(FIXED_POINT) // 4]


def test_weights_and_vectors_must_pair() -> None:
    with pytest.raises(ValueError, match="zip"):
        exact_weighted_sum([1.0], [], 2)


FINE = torch.ones(2)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), RANGE])
def test_divergence_names_round_and_clients(bad: float) -> None:
    vectors = [FINE, torch.tensor([0.0, bad]), FINE, torch.tensor([bad, 1.0])]
    with pytest.raises(Diverged, match="round 7: the update of clients 4, 9 ") as caught:
        check_range([0.5, 1.0, 0.5, 1.0], vectors, [2, 4, 6, 9], 7)
    assert (caught.value.round, caught.value.clients) == (7, [4, 9])
    assert "client_lr" in caught.value.hint


def test_the_weight_counts_towards_the_range() -> None:
    check_range([0.25], [torch.tensor([-RANGE])], [0], 0)
    with pytest.raises(Diverged, match=r"client 0 "):
        check_range([1.5], [torch.tensor([-RANGE])], [0], 0)


def test_many_large_terms_are_out_of_range_together() -> None:
    """Each is below the range, but integers that overflow would wrap without a word."""
    large = torch.tensor([RANGE * 0.6])
    check_range([1.0], [large], [0], 0)
    with pytest.raises(Diverged) as caught:
        check_range([1.0, 1.0], [large, large], [3, 5], 0)
    assert caught.value.clients == [3, 5]


@examples(50)
@given(count=st.integers(1, 6), sign=st.sampled_from([-1.0, 1.0]))
def test_what_passes_the_check_cannot_overflow(count: int, sign: float) -> None:
    largest = sign * RANGE / count * (1 - 1e-6)
    vectors = [torch.tensor([largest], dtype=torch.float64)] * count
    check_range([1.0] * count, vectors, list(range(count)), 0)
    total = from_fixed_point(exact_weighted_sum([1.0] * count, [v.clone() for v in vectors], 1), torch.float64)
    assert float(total) == pytest.approx(largest * count)


def test_nothing_to_check() -> None:
    check_range([], [], [], 0)
    check_range([1.0], [torch.zeros(0)], [0], 0)


@examples(50)
@given(terms=st.lists(st.tuples(weights, st.tuples(entries, entries, entries)), min_size=1, max_size=8))
def test_where_terms_are_small_the_same_integers_are_added_in_floating_point(terms: Terms) -> None:
    by, vectors = split([(weight / 100, vector) for weight, vector in terms], torch.float32)
    bound = sum(abs(w) * float(v.abs().max()) for w, v in zip(by, vectors, strict=True))
    assert bound < sums.SMALL
    assert torch.equal(exact_weighted_sum(by, vectors, 3, bound), exact_weighted_sum(by, vectors, 3))


def test_where_terms_are_large_floating_point_would_lose_the_last_integer() -> None:
    vectors = [torch.tensor([2.0**14], dtype=torch.float64), torch.tensor([2.0**-40], dtype=torch.float64)]
    assert int(exact_weighted_sum([1.0, 1.0], vectors, 1, bound=2.0**14 + 1)[0]) == 2**54 + 1
    assert int(exact_weighted_sum([1.0, 1.0], vectors, 1, bound=0.0)[0]) == 2**54  # what a wrong bound would do


def test_nobody_sums_to_nothing() -> None:
    assert exact_weighted_sum([], [], 3, bound=0.0).tolist() == [0, 0, 0]
