"""What paired seeds can tell: intervals, tests, families of tests, and how many seeds would decide.

Differences are taken seed by seed, since under one seed all methods meet the same clients. Which test decides is
chosen by the number of seeds and of comparisons alone, never by looking at the numbers: the exact permutation test
where it can reach the level at all (with n seeds its p-value is never below 2^(1 - n)), else Student's paired test.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from pmfl.core.keys import Key

FloatArray: TypeAlias = npt.NDArray[np.float64]
Verdict: TypeAlias = Literal["holds", "does not hold", "undecided", "not run"]

LEVEL = 0.05  # of a family of comparisons
POWER = 0.8  # with which so many more seeds would decide
EXACT = 16  # up to so many seeds all sign changes are tried
DRAWS = 20_000  # of sign changes, and of bootstrap samples, where there are too many
MOST_SEEDS = 1000  # beyond it nobody will run them


@dataclass(frozen=True)
class Paired:
    """A difference over paired seeds: how large, how sure."""

    n: int
    mean: float
    low: float  # 95 % interval, BCa bootstrap; NaN for a single seed
    high: float
    t_low: float  # 95 % interval, Student's t
    t_high: float
    effect: float  # Cohen's d of the differences: mean / sd
    p_permutation: float
    p_wilcoxon: float
    p_t: float


@dataclass(frozen=True)
class Judged:
    """A directed claim, first > second, after correction for its family."""

    verdict: Verdict
    p: float  # Holm-adjusted
    test: Literal["permutation", "t", "none"]
    needed: int | None  # seeds that would decide an undecided one; None: more than anybody will run


def paired(first: Sequence[float], second: Sequence[float]) -> Paired:
    """The difference of two settings over the same seeds.

    >>> found = paired([3.0, 4.0, 5.5], [1.0, 2.5, 3.0])
    >>> found.n, found.mean, found.p_permutation
    (3, 2.0, 0.25)
    """
    d = np.asarray(first, np.float64) - np.asarray(second, np.float64)
    n, mean = len(d), float(d.mean())
    nan = float("nan")
    if n < 2:
        return Paired(n, mean, nan, nan, nan, nan, nan, 1.0, 1.0, 1.0)
    spread = float(d.std(ddof=1))
    half = _t_quantile(0.975, n - 1) * spread / n**0.5
    low, high = bca(d)
    effect = mean / spread if spread > 0 else float(np.sign(mean)) * float("inf") if mean else 0.0
    return Paired(
        n, mean, low, high, mean - half, mean + half, effect, sign_flip_p(d), wilcoxon_p(d), t_p(mean, spread, n)
    )


def bca(sample: Sequence[float] | FloatArray, level: float = 0.95) -> tuple[float, float]:
    """Interval of the mean by the bias-corrected and accelerated bootstrap; NaN for a single value."""
    from scipy.special import ndtr, ndtri

    x = np.asarray(sample, np.float64)
    n = len(x)
    if n < 2:
        return float("nan"), float("nan")
    if np.ptp(x) <= 1e-12 * np.abs(x).max():  # they differ in their last digits at most
        return float(x.min()), float(x.max())
    means = _resampled_means(x)
    below = (means < x.mean()).mean() + (means == x.mean()).mean() / 2
    z0 = ndtri(np.clip(below, 1 / (2 * len(means)), 1 - 1 / (2 * len(means))))
    # For a mean, leaving one out moves it by (mean - x_i) / (n - 1): the acceleration is the skewness over 6 sqrt(n).
    away = (x - x.mean()) / np.ptp(x)
    acceleration = float((away**3).sum() / (6 * (away**2).sum() ** 1.5))
    ends = []
    for tail in ((1 - level) / 2, (1 + level) / 2):
        z = z0 + ndtri(tail)
        share = ndtr(z0 + z / (1 - acceleration * z))
        ends.append(float(np.quantile(means, share)))
    return ends[0], ends[1]


def sign_flip_p(differences: Sequence[float] | FloatArray) -> float:
    """Two-sided p of the paired permutation test of the mean: exact for up to 16 seeds.

    >>> sign_flip_p([1.0, 2.0, 3.0, 4.0, 5.0])
    0.0625
    """
    d = np.asarray(differences, np.float64)
    seen = abs(float(d.sum()))
    slack = 1e-12 * float(np.abs(d).sum())
    if len(d) <= EXACT:
        signs = 1.0 - 2.0 * ((np.arange(2 ** len(d))[:, None] >> np.arange(len(d))) & 1)
        return float((np.abs(signs @ d) >= seen - slack).mean())
    draws = _rng("flips", len(d)).integers(0, 2, (DRAWS, len(d))) * 2.0 - 1
    return float(((np.abs(draws @ d) >= seen - slack).sum() + 1) / (DRAWS + 1))


def wilcoxon_p(differences: Sequence[float] | FloatArray) -> float:
    """Two-sided p of Wilcoxon's signed-rank test, exact for up to 16 seeds also with ties; zeros are left out."""
    d = np.asarray(differences, np.float64)
    d = d[d != 0]
    if not len(d):
        return 1.0
    ranks = _ranks(np.abs(d))
    return sign_flip_p(ranks * np.sign(d))


def t_p(mean: float, spread: float, n: int) -> float:
    """Two-sided p of Student's test that a mean is zero."""
    from scipy.special import stdtr

    if n < 2:
        return 1.0
    if spread == 0:
        return 0.0 if mean else 1.0
    return float(2 * stdtr(n - 1, -abs(mean) / (spread / n**0.5)))


def holm(p: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values, in the order given.

    >>> [round(x, 3) for x in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    order = np.argsort(p, kind="stable")
    found, so_far = [0.0] * len(p), 0.0
    for rank, i in enumerate(order.tolist()):
        so_far = max(so_far, min((len(p) - rank) * p[i], 1.0))
        found[i] = so_far
    return found


def judge(comparisons: Sequence[Paired]) -> list[Judged]:
    """Verdicts on a family of directed claims, each "first > second", at a family-wise level of 5 %.

    One that goes significantly the other way does not hold; one that goes neither way is undecided.
    """
    m = len(comparisons)
    tests: list[Literal["permutation", "t", "none"]] = [decisive_test(one.n, m) for one in comparisons]
    raw = [
        {"permutation": one.p_permutation, "t": one.p_t, "none": 1.0}[test]
        for one, test in zip(comparisons, tests, strict=True)
    ]
    return [
        Judged(
            "undecided" if p >= LEVEL else "holds" if one.mean > 0 else "does not hold",
            p,
            test,
            seeds_needed(one.effect, LEVEL / m) if p >= LEVEL and one.n > 1 else None,
        )
        for one, p, test in zip(comparisons, holm(raw), tests, strict=True)
    ]


def decisive_test(n: int, comparisons: int) -> Literal["permutation", "t", "none"]:
    """Which test decides at ``n`` seeds in a family of so many: known before anything is run."""
    if n < 2:
        return "none"
    return "permutation" if 2.0 ** (1 - n) * comparisons < LEVEL else "t"


def seeds_needed(effect: float, level: float = LEVEL, power: float = POWER) -> int | None:
    """How many paired seeds would show an effect of this size with the given power; None beyond 1,000."""
    from scipy.stats import nct, t

    size = abs(effect)
    if not size > 0:
        return None

    def enough(n: int) -> bool:
        edge = t.ppf(1 - level / 2, n - 1)
        reached = 1 - nct.cdf(edge, n - 1, size * n**0.5)
        return bool(reached >= power or size * n**0.5 > edge + 30)

    if np.isinf(size):
        return 2
    if not enough(MOST_SEEDS):
        return None
    low, high = 1, MOST_SEEDS
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


@dataclass(frozen=True)
class Ranked:
    """Mean ranks of methods over blocks: 1 is best."""

    ranks: tuple[float, ...]
    p: float  # Friedman: whether there is any difference
    critical: float  # Nemenyi: mean ranks that lie closer together cannot be told apart
    blocks: int


def friedman(scores: Sequence[Sequence[float]]) -> Ranked | None:
    """Ranks over settings: ``scores`` has a row per block (setting) and a column per method; higher is better."""
    from scipy.special import chdtrc
    from scipy.stats import studentized_range

    table = np.asarray(scores, np.float64)
    if table.ndim != 2 or table.shape[0] < 2 or table.shape[1] < 2:
        return None
    n, k = table.shape
    ranks = np.stack([_ranks(-row) for row in table])
    mean = ranks.mean(0)
    ties = sum(float((c**3 - c).sum()) for row in ranks for c in [np.unique(row, return_counts=True)[1]])
    correction = 1 - ties / (n * (k**3 - k))
    chi = 12 * n / (k * (k + 1)) * float(((mean - (k + 1) / 2) ** 2).sum()) / correction if correction > 0 else 0.0
    critical = float(studentized_range.ppf(0.95, k, np.inf)) / 2**0.5 * (k * (k + 1) / (6 * n)) ** 0.5
    return Ranked(tuple(mean.tolist()), float(chdtrc(k - 1, chi)), critical, n)


def _ranks(x: FloatArray) -> FloatArray:
    """Ranks from 1, ties sharing their mean."""
    _, where, counts = np.unique(x, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    ranks: FloatArray = (ends - (counts - 1) / 2)[where]
    return ranks


def _resampled_means(x: FloatArray) -> FloatArray:
    means: FloatArray = x[_rng("bootstrap", len(x)).integers(0, len(x), (DRAWS, len(x)))].mean(1)
    return means


def _rng(what: str, n: int) -> np.random.Generator:
    """The same draws for the same question: an interval does not change when it is computed again."""
    return Key.root(0).fold("statistics", what, n).numpy()


def _t_quantile(share: float, freedom: int) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(freedom, share))
