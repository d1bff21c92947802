"""The statistics, against scipy and against simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats

from pmfl.core.keys import Key
from pmfl.study.statistics import (
    bca,
    decisive_test,
    friedman,
    holm,
    judge,
    paired,
    seeds_needed,
    sign_flip_p,
    wilcoxon_p,
)


def draws(name: str, *shape: int) -> np.ndarray:
    return Key.root(7).fold(name).numpy().standard_normal(shape)


@pytest.mark.parametrize("n", [2, 5, 8, 11])
def test_the_permutation_test_is_scipys(n: int) -> None:
    d = draws("flips", n) + 0.7
    theirs = scipy.stats.permutation_test((d,), np.mean, permutation_type="samples", n_resamples=10**6)
    assert sign_flip_p(d) == pytest.approx(theirs.pvalue, abs=1e-12)


@pytest.mark.parametrize("n", [4, 7, 12])
def test_wilcoxon_is_scipys(n: int) -> None:
    d = draws("ranks", n) + 0.5
    assert wilcoxon_p(d) == pytest.approx(scipy.stats.wilcoxon(d, method="exact").pvalue, abs=1e-12)


def test_wilcoxon_with_ties_and_zeros_by_hand() -> None:
    # |d| = 1, 1, 2: ranks 1.5, 1.5, 3; the sum 6 is reached by two of eight sign patterns.
    assert wilcoxon_p([1, 1, 2, 0]) == 0.25
    assert wilcoxon_p([0.0, 0.0]) == 1.0


def test_more_seeds_than_can_be_enumerated() -> None:
    d = draws("many", 25) + 0.6
    assert sign_flip_p(d) == pytest.approx(scipy.stats.ttest_1samp(d, 0).pvalue, abs=0.01)


@pytest.mark.parametrize("n", [5, 12, 40])
def test_the_bca_interval_is_scipys(n: int) -> None:
    x = np.exp(draws("bca", n))  # skewed, so that the correction matters
    theirs = scipy.stats.bootstrap((x,), np.mean, n_resamples=20_000, method="BCa", rng=1).confidence_interval
    width = theirs.high - theirs.low
    assert bca(x) == pytest.approx((theirs.low, theirs.high), abs=0.06 * width)


def test_an_interval_of_equal_values_is_a_point() -> None:
    assert bca([2.0, 2.0, 2.0]) == (2.0, 2.0)
    assert all(map(math.isnan, bca([1.0])))


def test_holm_as_worked_out_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def test_paired_numbers_are_scipys() -> None:
    a, b = draws("a", 9) + 1, draws("b", 9)
    found, theirs = paired(a.tolist(), b.tolist()), scipy.stats.ttest_rel(a, b)
    interval = theirs.confidence_interval(0.95)
    assert found.p_t == pytest.approx(theirs.pvalue)
    assert (found.t_low, found.t_high) == pytest.approx((interval.low, interval.high))
    assert found.effect == pytest.approx((a - b).mean() / (a - b).std(ddof=1))


def test_one_seed_tells_nothing() -> None:
    (found,) = judge([paired([3.0], [1.0])])
    assert (found.verdict, found.test, found.p, found.needed) == ("undecided", "none", 1.0, None)


def test_seeds_that_all_agree_to_the_digit() -> None:
    up, same = judge([paired([2.0, 3.0, 4.0], [1.0, 2.0, 3.0]), paired([1.0, 2.0], [1.0, 2.0])])
    assert up.verdict == "holds"
    assert (same.verdict, same.needed) == ("undecided", None)


def test_verdicts_have_a_direction() -> None:
    up, down = draws("up", 10) * 0.1 + 1, draws("down", 10) * 0.1 - 1
    zero = [0.0] * 10
    verdicts = [one.verdict for one in judge([paired(up.tolist(), zero), paired(down.tolist(), zero)])]
    assert verdicts == ["holds", "does not hold"]


@pytest.mark.parametrize(
    ("n", "family", "test"), [(5, 1, "t"), (6, 1, "permutation"), (10, 7, "permutation"), (8, 7, "t"), (1, 1, "none")]
)
def test_the_test_that_decides_is_known_beforehand(n: int, family: int, test: str) -> None:
    assert decisive_test(n, family) == test


def test_seeds_needed_are_those_of_a_power_analysis() -> None:
    # Classical values of a two-sided paired t-test at 5 % and 80 % power.
    assert [seeds_needed(d) for d in (0.2, 0.5, 0.8, 1.0)] == [199, 34, 15, 10]
    assert seeds_needed(0.0) is None
    assert seeds_needed(0.01) is None
    assert seeds_needed(math.inf) == 2
    assert seeds_needed(80.0) == 2


@pytest.mark.parametrize("seeds", [5, 10])
def test_false_verdicts_are_as_rare_as_promised(seeds: int) -> None:
    """1,500 families of 5 comparisons without any difference: a wrong verdict in any is at most 5 %."""
    wrong, families = 0, 1500
    world = draws(f"null {seeds}", families, 5, seeds)
    for family in world:
        found = []
        for d in family:
            mean, spread = float(d.mean()), float(d.std(ddof=1))
            p = scipy.stats.ttest_1samp(d, 0).pvalue if decisive_test(seeds, 5) == "t" else sign_flip_p(d)
            assert spread > 0
            assert math.isfinite(mean)
            found.append(p)
        wrong += min(holm(found)) < 0.05
    assert wrong / families < 0.05 + 3 * (0.05 * 0.95 / families) ** 0.5


def test_friedman_and_nemenyi() -> None:
    table = draws("blocks", 12, 4) + np.array([0.0, 0.0, 0.5, 3.0])
    found = friedman(table.tolist())
    assert found is not None
    assert found.p == pytest.approx(scipy.stats.friedmanchisquare(*table.T).pvalue)
    assert found.ranks[3] == min(found.ranks)
    assert sum(found.ranks) == pytest.approx(10)
    # Demsar (2006), table 5: q for 4 classifiers is 2.569.
    assert found.critical == pytest.approx(2.569 * (4 * 5 / (6 * 12)) ** 0.5, rel=1e-3)


def test_friedman_with_ties() -> None:
    table = np.round(draws("ties", 15, 3))
    found = friedman(table.tolist())
    assert found is not None
    assert found.p == pytest.approx(scipy.stats.friedmanchisquare(*table.T).pvalue)
    assert friedman([[1.0, 2.0]]) is None


def test_an_interval_of_nearly_equal_numbers_is_one() -> None:
    for x in ([0.3, 0.3 + 1e-16], [1e-200, 2e-200, 4e-200], [0.0, 0.0, 0.0]):
        low, high = bca(x)
        assert min(x) <= low <= high <= max(x)
