from __future__ import annotations

import heapq
import inspect
import re
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pmfl.core.keys import Key
from pmfl.errors import SpecError
from pmfl.world import partition as module
from pmfl.world.datasets import IntArray
from pmfl.world.partition import PARTITIONS, Partition, cut_classes, dirichlet, iid, log_dirichlet, shards, slices, user

CIFAR = np.repeat(np.arange(10), 5000)


def fits(found: Partition, labels: IntArray, classes: int, clients: int) -> None:
    assert len(found.owned) == clients
    np.testing.assert_array_equal(np.sort(np.concatenate(found.owned)), np.arange(len(labels)))
    assert found.sizes.tolist() == [len(mine) for mine in found.owned]
    assert found.sizes.min() >= 1
    assert all(bool((np.diff(mine) > 0).all()) for mine in found.owned)
    assert found.mix.shape == (clients, classes)
    for k in {0, clients // 2, clients - 1}:
        shares = np.bincount(labels[found.owned[k]], minlength=classes) / len(found.owned[k])
        np.testing.assert_array_equal(found.mix[k], shares)


def draw_labels(samples: int, classes: int, seed: int) -> IntArray:
    return Key.root(seed).numpy().integers(0, classes, samples)


@pytest.mark.parametrize("name", PARTITIONS)
@given(data=st.data())
@settings(deadline=None, max_examples=25)
def test_every_sample_once_and_nobody_empty(name: str, data: st.DataObject) -> None:
    clients = data.draw(st.integers(1, 60) | st.integers(1, 5000), "clients")
    # Many clients and many classes at once: test_the_far_corner.
    classes = data.draw(st.integers(1, 30) | st.integers(1, min(1000, 1_000_000 // clients)), "classes")
    options: dict[str, Any] = {}
    least = 1
    if name in ("slices", "dirichlet"):
        options["alpha"] = data.draw(st.sampled_from([0.001, 0.01, 0.1, 1.0, 100.0]) | st.floats(0.001, 100), "alpha")
    if name == "dirichlet":
        options["smallest"] = least = data.draw(st.integers(1, 4), "smallest")
    if name == "shards":
        options["shards_per_client"] = least = data.draw(st.integers(1, 4), "shards")
    samples = clients * least + data.draw(st.integers(0, 300), "more")
    labels = draw_labels(samples, classes, data.draw(st.integers(0, 5), "seed"))
    users = np.arange(samples) % (clients + data.draw(st.integers(0, samples - clients), "users"))
    found = PARTITIONS[name](labels, classes, clients, Key.root(1), users, **options)
    fits(found, labels, classes, clients)
    if name == "dirichlet":
        assert found.sizes.min() >= least


@pytest.mark.parametrize("name", PARTITIONS)
def test_a_key_decides(name: str) -> None:
    labels, users = draw_labels(2000, 10, 0), np.arange(2000) % 100
    first, again, other = (PARTITIONS[name](labels, 10, 50, Key.root(seed), users) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first.mix, again.mix)
    assert all(np.array_equal(a, b) for a, b in zip(first.owned, again.owned, strict=True))
    assert not np.array_equal(first.mix, other.mix)


@pytest.mark.parametrize("name", PARTITIONS)
def test_a_million_labels_on_ten_thousand_clients(name: str) -> None:
    labels, users = draw_labels(1_000_000, 10, 0), np.arange(1_000_000) // 50
    options = {"alpha": 0.001} if name in ("slices", "dirichlet") else {}
    start = time.thread_time()
    found = PARTITIONS[name](labels, 10, 10_000, Key.root(0), users, **options)
    assert time.thread_time() - start < 1.0  # takes 0.05 to 0.2 s
    assert found.sizes.sum() == 1_000_000
    assert found.sizes.min() >= (10 if name == "dirichlet" else 1)


@pytest.mark.parametrize("alpha", [0.001, 100.0])
@pytest.mark.parametrize("name", ["slices", "dirichlet"])
def test_the_far_corner(name: str, alpha: float) -> None:
    labels = draw_labels(5000, 1000, 0)
    options = {"smallest": 1} if name == "dirichlet" else {}
    fits(PARTITIONS[name](labels, 1000, 5000, Key.root(0), None, alpha=alpha, **options), labels, 1000, 5000)


def test_slices_reproduce_the_reference_mini_partition() -> None:
    # ALGORITHMS 1.1: seed 0, 3 clients, 3 labels of 10 samples each.
    mix = np.array(
        [
            [2.75547442e-01, 7.03747817e-01, 2.07047409e-02],
            [2.32032454e-04, 9.12541895e-01, 8.72260726e-02],
            [9.99999999e-01, 9.35329181e-10, 3.26319656e-15],
        ]
    )
    owner = cut_classes(np.repeat(np.arange(3), 10), mix)
    owned = [set(np.flatnonzero(owner == k).tolist()) for k in range(3)]
    assert owned == [{0, 1, *range(10, 14), 20, 21}, {*range(14, 20), *range(22, 30)}, set(range(2, 10))]


def test_slices_reproduce_the_reference_on_cifar_counts() -> None:
    mix = np.random.RandomState(1).dirichlet(np.full(10, 0.1), 250)
    owner = cut_classes(CIFAR, mix)
    assert np.bincount(owner)[:10].tolist() == [201, 215, 185, 199, 177, 190, 224, 247, 188, 203]
    assert np.bincount(CIFAR[owner == 0], minlength=10).tolist() == [49, 0, 0, 0, 35, 50, 0, 0, 67, 0]


def test_slices_end_at_halves_to_even() -> None:
    owner = cut_classes(np.zeros(5, np.int64), np.ones((2, 1)))  # 2.5 becomes 2
    assert owner.tolist() == [0, 0, 1, 1, 1]
    owner = cut_classes(np.zeros(7, np.int64), np.ones((2, 1)))  # 3.5 becomes 4
    assert owner.tolist() == [0, 0, 0, 0, 1, 1, 1]


def test_slices_make_clients_of_nearly_equal_size() -> None:
    sizes = [slices(CIFAR, 10, 250, Key.root(seed), alpha=0.1).sizes for seed in range(12)]
    assert np.mean([mine.min() for mine in sizes]) >= 150  # the reference: 164 over 60 seeds
    assert np.mean([mine.max() for mine in sizes]) <= 270  # the reference: 254


def test_slices_are_consecutive_in_the_order_of_the_data_set() -> None:
    labels = draw_labels(3000, 4, 0)
    found = slices(labels, 4, 20, Key.root(0), alpha=0.5)
    for label in range(4):
        owner = np.empty(3000, np.int64)
        for k, mine in enumerate(found.owned):
            owner[mine] = k
        assert (np.diff(owner[labels == label]) >= 0).all()


@pytest.mark.parametrize("name", ["slices", "dirichlet"])
def test_alpha_goes_from_one_label_to_all(name: str) -> None:
    labels = draw_labels(20_000, 10, 0)
    sharp, mild, even = (
        PARTITIONS[name](labels, 10, 50, Key.root(0), None, alpha=alpha).mix.max(1).mean() for alpha in (0.01, 0.5, 100)
    )
    assert sharp > 0.75
    assert sharp > mild > even
    assert even < 0.2


def test_dirichlet_gives_nothing_more_to_a_client_with_its_even_share() -> None:
    labels = np.sort(draw_labels(10_000, 10, 0))
    found = dirichlet(labels, 10, 20, Key.root(3), alpha=0.1, smallest=1)
    for counts in found.mix * found.sizes[:, None]:
        before = np.cumsum(counts) - counts
        assert (counts[before >= 500.5] < 0.5).all()


def test_dirichlet_proportions_have_their_distribution() -> None:
    labels = np.zeros(20_000, np.int64)
    found = [dirichlet(labels, 1, 5, Key.root(seed), alpha=0.5, smallest=1).sizes / 2e4 for seed in range(200)]
    # Dirichlet(0.5 x 5): each share has mean 1/5 and variance (1/5)(4/5) / 3.5
    np.testing.assert_allclose(np.mean(found, 0), 0.2, atol=0.05)
    assert abs(np.var(found) - 0.16 / 3.5) < 0.008


def test_dirichlet_deals_a_class_in_random_order() -> None:
    mine = dirichlet(np.zeros(1000, np.int64), 1, 2, Key.root(0), alpha=100, smallest=1).owned[0]
    assert mine[-1] > 900
    assert mine[0] < 100


@given(
    sizes=st.lists(st.integers(0, 30), min_size=1, max_size=40),
    smallest=st.integers(1, 5),
    seed=st.integers(0, 3),
)
@settings(deadline=None, max_examples=60)
def test_top_up_is_taking_from_the_largest_one_at_a_time(sizes: list[int], smallest: int, seed: int) -> None:
    clients, samples = len(sizes), sum(sizes)
    if samples < clients * smallest:
        return
    owner = Key.root(seed).numpy().permutation(np.repeat(np.arange(clients), sizes))
    found = module._top_up(owner, clients, smallest)
    heap = [(-size, k) for k, size in enumerate(sizes)]
    heapq.heapify(heap)
    left = list(sizes)
    for _ in range(sum(max(smallest - size, 0) for size in sizes)):
        size, k = heapq.heappop(heap)
        left[k] -= 1
        heapq.heappush(heap, (size + 1, k))
    expected = [max(size, smallest) for size in left]
    assert np.bincount(found, minlength=clients).tolist() == expected
    for k in range(clients):  # a donor keeps the first of its samples
        mine = np.flatnonzero(owner == k)
        assert (found[mine[: expected[k]]] == k).all()


def test_top_up_takes_the_last_samples_of_the_largest() -> None:
    owner = np.array([0, 0, 0, 0, 2, 2])
    assert module._top_up(owner, 4, 1).tolist() == [0, 0, 1, 3, 2, 2]
    assert owner.tolist() == [0, 0, 0, 0, 2, 2]


@pytest.mark.parametrize("alpha", [1e-320, 1e-300, 1e-10, 0.001, 0.5, 1.0, 100.0, 1e300])
def test_log_dirichlet_is_finite_and_sums_to_one(alpha: float) -> None:
    logs = log_dirichlet(alpha, (200, 10), Key.root(0))
    assert np.isfinite(logs).all()
    np.testing.assert_allclose(np.exp(logs).sum(1), 1.0, rtol=1e-12)


@pytest.mark.parametrize("alpha", [0.05, 0.7, 1.0, 20.0])
def test_log_dirichlet_has_its_moments(alpha: float) -> None:
    rows = np.exp(log_dirichlet(alpha, (40_000, 4), Key.root(0)))
    np.testing.assert_allclose(rows.mean(0), 0.25, atol=0.01)
    np.testing.assert_allclose(rows.var(0), 0.25 * 0.75 / (4 * alpha + 1), rtol=0.05)


def test_shards_are_equal_and_few_labels_each() -> None:
    found = shards(CIFAR, 10, 100, Key.root(0), shards_per_client=2)
    assert set(found.sizes.tolist()) == {500}
    labels_seen = (found.mix > 0).sum(1)
    assert labels_seen.max() <= 2
    assert labels_seen.mean() > 1.5
    one = shards(np.array([1, 0, 1, 0]), 2, 2, Key.root(0), shards_per_client=1)
    assert sorted(mine.tolist() for mine in one.owned) == [[0, 2], [1, 3]]


def test_iid_sizes_differ_by_one_and_mixes_are_alike() -> None:
    found = iid(CIFAR[:49_999], 10, 60, Key.root(0))
    assert set(found.sizes.tolist()) == {833, 834}
    assert abs(found.mix - 0.1).max() < 0.06


def test_user_keeps_people_together() -> None:
    users = np.array([7, 3, 7, 9, 3, 9, 9])
    labels = np.zeros(7, np.int64)
    found = user(labels, 1, 3, Key.root(0), users)
    assert [mine.tolist() for mine in found.owned] == [[1, 4], [0, 2], [3, 5, 6]]
    many = np.arange(1000) % 101
    found = user(np.zeros(1000, np.int64), 1, 10, Key.root(0), many)
    people = [set(many[mine].tolist()) for mine in found.owned]
    assert sum(map(len, people)) == 101
    assert set(map(len, people)) == {10, 11}
    assert people[0] != set(range(10))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda key: slices(np.zeros(3, np.int64), 1, 4, key), ["slices: 3 samples", "4 clients", "at most 3"]),
        (lambda key: iid(np.zeros(0, np.int64), 1, 1, key), ["iid: 0 samples", "1 clients"]),
        (lambda key: iid(np.zeros(3, np.int64), 1, 0, key), ["iid: 0 clients", "at least 1"]),
        (lambda key: iid(np.array([0, 5]), 5, 1, key), ["labels run from 0 to 5", "5 classes"]),
        (lambda key: iid(np.array([-1, 0]), 5, 1, key), ["labels run from -1 to 0"]),
        (
            lambda key: dirichlet(np.zeros(99, np.int64), 1, 10, key),
            ["99 samples", "10 clients with at least 10 each", "smallest to at most 9, or data.clients to at most 9"],
        ),
        (lambda key: dirichlet(np.zeros(3, np.int64), 1, 10, key), ["too few", "lower data.clients to at most 0"]),
        (
            lambda key: shards(np.zeros(9, np.int64), 1, 5, key),
            ["9 samples", "5 x 2 = 10 shards", "shards_per_client to at most 1"],
        ),
        (lambda key: user(np.zeros(3, np.int64), 1, 2, key), ["does not say which user", "slices"]),
        (
            lambda key: user(np.zeros(3, np.int64), 1, 3, key, np.array([1, 1, 2])),
            ["3 clients for the data of 2 users", "at most 2"],
        ),
        (lambda key: user(np.zeros(3, np.int64), 1, 1, key, np.array([1])), ["1 user numbers for 3 samples"]),
    ],
)
def test_what_cannot_be_is_refused_with_numbers(make: Callable[[Key], Partition], says: list[str]) -> None:
    with pytest.raises(SpecError) as refused:
        make(Key.root(0))
    for words in says:
        assert words in str(refused.value)


def test_every_parameter_is_explained() -> None:
    for name, function in PARTITIONS.items():
        signature = inspect.signature(function)
        assert list(signature.parameters)[:5] == ["labels", "classes", "clients", "key", "users"], name
        own = [p.name for p in signature.parameters.values() if p.kind is inspect.Parameter.KEYWORD_ONLY]
        told = re.findall(r"^\s*(\w+): .+$", inspect.getdoc(function) or "", flags=re.MULTILINE)
        assert told == own, name
