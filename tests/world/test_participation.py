from __future__ import annotations

import inspect
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pmfl.core.keys import Key
from pmfl.core.tree import load_tree, save_tree
from pmfl.errors import SpecError
from pmfl.world.participation import (
    PATTERNS,
    Pattern,
    activity,
    always,
    bernoulli,
    cyclic,
    groups,
    markov,
    matrix,
    rates,
    rates_of,
    summary,
)
from pmfl.world.partition import FloatArray, cut_classes, slices

CIFAR = np.repeat(np.arange(10), 5000)
KEY = Key.root(0)
DRAWN: dict[str, Callable[..., Pattern]] = {name: make for name, make in PATTERNS.items() if callable(make)}


def frequency(pattern: Pattern, rounds: int) -> FloatArray:
    seen, state = np.zeros(len(pattern.rates)), pattern.start()
    for t in range(rounds):
        here, state = pattern.row(state, t)
        seen += here.numpy()
    return seen / rounds


# Rates


def test_rates_reproduce_the_reference_mini_vector() -> None:
    # ALGORITHMS 1.1: the mini partition's actual shares, and the Z drawn after it.
    mix = np.array([[2, 4, 2], [0, 6, 8], [8, 0, 0]]) / np.array([[8], [14], [8]])
    z = np.array([4.57839285e-02, 9.53969714e-01, 2.46357051e-04])
    np.testing.assert_allclose(rates_of(mix, z, mean=0.1, floor=0.02), [0.1465477286, 0.1226954816, 0.02], rtol=1e-7)


def test_rates_reproduce_the_reference_on_cifar_counts() -> None:
    rng = np.random.RandomState(1)
    owner = cut_classes(CIFAR, rng.dirichlet(np.full(10, 0.1), 250))
    counts = np.bincount(owner * 10 + CIFAR, minlength=2500).reshape(250, 10)
    found = rates_of(counts / counts.sum(1, keepdims=True), rng.dirichlet(np.full(10, 0.1)), mean=0.1, floor=0.02)
    assert found.sum() == pytest.approx(27.6720712057, abs=1e-9)
    np.testing.assert_allclose(
        found[:6], [0.205599692, 0.0223658088, 0.02, 0.02, 0.02, 0.3083893569], rtol=0, atol=5e-10
    )
    assert found.max() == pytest.approx(0.7711801729, abs=1e-9)


@pytest.mark.parametrize("seed", range(6))
def test_rates_have_about_the_mean_asked_for(seed: int) -> None:
    key = Key.root(seed)
    mix = slices(CIFAR, 10, 250, key, alpha=0.1).mix
    found = rates(mix, key, mean=0.1, beta=0.1, floor=0.02)
    assert found.min() >= 0.02
    assert found.max() <= 1
    assert 0.095 <= found.mean() <= 0.115
    assert 0.1 < (found == 0.02).mean() < 0.7


@given(
    seed=st.integers(0, 50),
    classes=st.sampled_from([1, 2, 10, 100]),
    beta=st.floats(0.001, 100),
    mean=st.floats(0.01, 1),
    floor=st.floats(0.01, 1) | st.just(0.0),
    normalise=st.booleans(),
)
@settings(deadline=None, max_examples=60)
def test_rates_are_probabilities_above_the_floor(
    seed: int, classes: int, beta: float, mean: float, floor: float, normalise: bool
) -> None:
    mix = Key.root(seed).numpy().dirichlet(np.ones(classes), 30)
    if floor > mean:
        floor, mean = mean, floor
    try:
        found = rates(mix, Key.root(seed), mean=mean, beta=beta, floor=floor, normalise=normalise)
    except SpecError:
        active = mix @ activity(classes, Key.root(seed), beta=beta) > 1e-280
        assert normalise
        assert np.where(active, 1, floor).mean() < mean
        return
    assert found.shape == (30,)
    assert floor <= found.min() <= found.max() <= 1
    if normalise:
        assert found.mean() == pytest.approx(mean, abs=1e-9)


def test_normalising_keeps_the_order_of_clients() -> None:
    mix = slices(CIFAR, 10, 250, KEY, alpha=0.1).mix
    plain = rates(mix, KEY, mean=0.3, beta=0.1, floor=0.02)
    exact = rates(mix, KEY, mean=0.3, beta=0.1, floor=0.02, normalise=True)
    assert exact.mean() == pytest.approx(0.3, abs=1e-12)
    assert abs(plain.mean() - 0.3) > 1e-3
    assert (np.diff(exact[np.lexsort((exact, plain))]) >= 0).all()


def test_a_hundred_classes_are_capped_at_one() -> None:
    found = rates_of(np.eye(100), np.eye(100)[3], mean=0.1, floor=0.02)
    assert found[3] == 1
    assert set(np.delete(found, 3)) == {0.02}


def test_a_rate_depends_on_the_key_and_the_clients_own_data_only() -> None:
    mix = slices(CIFAR, 10, 100, KEY, alpha=0.1).mix
    everyone = rates(mix, KEY, mean=0.1, beta=0.1, floor=0.02)
    np.testing.assert_allclose(rates(mix[40:60], KEY, mean=0.1, beta=0.1, floor=0.02), everyone[40:60], rtol=1e-12)
    assert not np.allclose(rates(mix, Key.root(1), mean=0.1, beta=0.1, floor=0.02), everyone)
    expected = np.clip(mix @ activity(10, KEY, beta=0.1), 0.02, 1)
    np.testing.assert_allclose(everyone, expected, rtol=1e-12)


def test_small_beta_makes_one_class_active() -> None:
    assert activity(10, KEY, beta=0.001).max() > 0.99
    assert activity(10, KEY, beta=1000.0).max() < 0.15
    assert activity(10, KEY, beta=0.1).sum() == pytest.approx(1)


def test_impossible_rates_are_refused() -> None:
    with pytest.raises(SpecError, match=r"floor = 0\.2 is above mean = 0\.1"):
        rates_of(np.eye(2), np.array([0.5, 0.5]), mean=0.1, floor=0.2)
    with pytest.raises(SpecError, match="only 1 of 4 clients"):
        rates_of(np.eye(4), np.eye(4)[0], mean=0.5, floor=0.02, normalise=True)


# Patterns


@pytest.mark.parametrize("p", [0.02, 0.05, 0.1, 0.402, 0.9])
def test_bernoulli_and_markov_have_their_rates(p: float) -> None:
    some = np.full(500, p)
    for make in (bernoulli, markov):
        pattern = make(some, Key.root(3))
        assert abs(frequency(pattern, 1500).mean() - p) < 0.01
        np.testing.assert_allclose(pattern.rates, p)


@pytest.mark.parametrize(("p", "come", "leave"), [(0.02, 0.020408, 1.0), (0.1, 0.05, 0.45), (0.402, 0.05, 0.074378)])
def test_markov_moves_with_its_probabilities(p: float, come: float, leave: float) -> None:
    rows = matrix(markov(np.full(2000, p), KEY), 200).double()
    before, after = rows[:-1], rows[1:]
    assert float(((1 - before) * after).sum() / (1 - before).sum()) == pytest.approx(come, abs=0.002)
    assert float((before * (1 - after)).sum() / before.sum()) == pytest.approx(leave, abs=0.01)


def test_markov_starts_at_its_rate_and_moves_before_round_0() -> None:
    pattern = markov(np.full(100_000, 0.02), KEY)
    state = pattern.start()
    assert float(state.here.double().mean()) == pytest.approx(0.02, abs=0.002)
    first, after = pattern.row(state, 0)
    assert float(first.double().mean()) == pytest.approx(0.02, abs=0.002)
    assert not (first & state.here).any()  # at this rate nobody stays
    assert torch.equal(after.here, first)


def test_markov_as_printed_forgets_its_rates() -> None:
    pattern = markov(np.full(500, 0.1), KEY, rule="printed")
    assert abs(frequency(pattern, 2000).mean() - 1 / 1.9) < 0.03
    np.testing.assert_allclose(pattern.rates, 1 / 1.9)
    assert float(pattern.start().here.double().mean()) == pytest.approx(0.1, abs=0.05)


def test_markov_wakes_as_often_as_told() -> None:
    slow, fast = (matrix(markov(np.full(500, 0.5), KEY, wake=wake), 300) for wake in (0.01, 1.0))
    assert int((slow[1:] != slow[:-1]).sum()) < 0.03 * slow.numel()
    assert int((fast[1:] != fast[:-1]).sum()) == fast[1:].numel()  # comes and goes with certainty


@pytest.mark.parametrize("offset", ["uniform", "fedau"])
def test_cyclic_is_exact_in_every_cycle(offset: Any) -> None:
    p = np.array([0.001, 0.02, 0.07, 0.402, 0.5, 0.99])
    pattern = cyclic(np.repeat(p, 50), KEY, offset=offset)
    rows = matrix(pattern, 300).reshape(3, 100, 6, 50).sum(1)
    expected = torch.tensor([1, 2, 7, 40, 50, 99])  # naively .07 gives 8 and .402 gives 41
    assert (rows == expected[None, :, None]).all()
    np.testing.assert_allclose(pattern.rates[::50], expected.numpy() / 100)


def test_cyclic_rounds_form_one_block() -> None:
    rows = matrix(cyclic(np.full(200, 0.3), KEY, cycle=20), 20)
    changes = (rows != rows.roll(1, 0)).sum(0)
    assert (changes == 2).all()


def test_cyclic_offsets_are_uniform_over_the_cycle() -> None:
    rows = matrix(cyclic(np.full(20_000, 0.3), KEY), 100).double().mean(1)
    assert float((rows - 0.3).abs().max()) < 0.02


def test_cyclic_as_in_fedau_has_a_dead_start() -> None:
    rows = matrix(cyclic(np.full(20_000, 0.3), KEY, offset="fedau"), 400).double().mean(1)
    for t, share in ((0, 0.01), (10, 0.15), (29, 0.42), (50, 0.42), (69, 0.42), (99, 0.0)):
        assert float(rows[t]) == pytest.approx(share, abs=0.02)
    assert float(rows.mean()) == pytest.approx(0.3, abs=1e-9)
    whole = matrix(cyclic(np.ones(3), KEY, offset="fedau"), 202)
    assert whole.sum(0).tolist() == [200, 200, 200]  # a cycle of 101 rounds
    np.testing.assert_allclose(cyclic(np.ones(3), KEY, offset="fedau").rates, 100 / 101)


def test_groups_take_turns() -> None:
    rows = matrix(groups(np.full(103, 0.1), KEY, groups=5, rounds_each=2), 20)
    assert set(rows.sum(1).tolist()) == {20, 21}
    assert torch.equal(rows[0], rows[1])
    assert not (rows[1] & rows[2]).any()
    assert torch.equal(rows[:10], rows[10:])
    assert (rows[:10].sum(0) == 2).all()
    assert rows[0].nonzero().flatten().tolist() != list(range(21))


def test_groups_may_come_in_part() -> None:
    pattern = groups(np.full(1000, 0.1), KEY, groups=4, share=0.3)
    assert abs(frequency(pattern, 800).mean() - 0.075) < 0.005
    np.testing.assert_allclose(pattern.rates, 0.075)
    whole, part = matrix(groups(np.full(1000, 0.1), KEY, groups=4), 12), matrix(pattern, 12)
    assert not (part & ~whole).any()
    assert not torch.equal(part[0], part[4])
    assert not matrix(groups(np.full(10, 0.1), KEY, share=0.0), 5).any()
    with pytest.raises(SpecError, match="3 clients cannot form 5 groups"):
        groups(np.full(3, 0.1), KEY)


def test_always_is_everyone() -> None:
    pattern = always(np.full(7, 0.1), KEY)
    assert matrix(pattern, 3).all()
    assert pattern.rates.tolist() == [1.0] * 7


@pytest.mark.parametrize("make", [bernoulli, markov, cyclic])
def test_rate_0_is_never_and_rate_1_is_always(make: Callable[..., Pattern]) -> None:
    rows = matrix(make(np.array([0.0, 1.0, 1e-320]), KEY), 300)
    assert not rows[:, 0].any()
    assert rows[:, 1].all()


@pytest.mark.parametrize("name", DRAWN)
def test_rows_depend_on_the_key_and_the_round_only(name: str) -> None:
    p = np.linspace(0.05, 0.95, 40)
    first, again, other = (matrix(DRAWN[name](p, Key.root(seed)), 30) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert first.dtype == torch.bool
    assert first.shape == (30, 40)
    if name != "always":
        assert not torch.equal(first, other)
    pattern = DRAWN[name](p, Key.root(1))
    if pattern.start() == ():
        for t in (17, 3, 29, 3):
            assert torch.equal(pattern.row((), t)[0], first[t])


@pytest.mark.parametrize("name", ["bernoulli", "markov"])
def test_a_clients_draws_do_not_depend_on_how_many_there_are(name: str) -> None:
    few, many = (matrix(DRAWN[name](np.full(clients, 0.3), KEY), 40) for clients in (11, 200))
    assert torch.equal(few, many[:, :11])


@pytest.mark.parametrize("name", DRAWN)
def test_a_state_can_be_saved_and_is_never_changed(name: str, tmp_path: Path) -> None:
    pattern = DRAWN[name](np.linspace(0.05, 0.95, 40), KEY)
    whole, state = matrix(pattern, 20), pattern.start()
    for t in range(9):
        _, state = pattern.row(state, t)
    save_tree(tmp_path / "state", state)
    for t in range(9, 20):
        pattern.row(state, t)
    state = load_tree(tmp_path / "state", pattern.start())
    for t in range(9, 20):
        here, state = pattern.row(state, t)
        assert torch.equal(here, whole[t])


@pytest.mark.parametrize("name", DRAWN)
def test_a_row_of_a_million_clients_is_quick(name: str) -> None:
    pattern = DRAWN[name](np.full(1_000_000, 0.1), KEY)
    state, times = pattern.start(), []
    for t in range(8):
        start = time.thread_time()
        _, state = pattern.row(state, t)
        times.append(time.thread_time() - start)
    assert min(times) < 0.02  # takes 0.2 to 6 ms


@pytest.mark.parametrize(
    ("given_rates", "says"),
    [
        (np.array([0.1, np.nan]), "nan for client 1"),
        (np.array([0.1, 0.2, 1.5]), "1.5 for client 2"),
        (np.array([-0.1]), "-0.1 for client 0"),
        (np.zeros((2, 2)), r"shape \(2, 2\)"),
        (np.zeros(0), r"shape \(0,\)"),
    ],
)
@pytest.mark.parametrize("name", DRAWN)
def test_rates_must_be_probabilities(name: str, given_rates: FloatArray, says: str) -> None:
    with pytest.raises(SpecError, match=says):
        DRAWN[name](given_rates, KEY)


def test_a_pattern_says_when_it_ends() -> None:
    short = Pattern(lambda: (), lambda state, t: (torch.ones(2, dtype=torch.bool), state), np.ones(2), rounds=3)
    assert len(matrix(short, 3)) == 3
    for ask in (matrix, summary, Pattern.check):
        with pytest.raises(SpecError, match="4 rounds are asked for, and the recording ends after 3"):
            ask(short, 4)


def test_summary_by_client_round_and_hour() -> None:
    pattern = cyclic(np.array([0.25, 0.5, 0.75]), KEY, cycle=24)
    found = summary(pattern, 48, round_seconds=3600)
    rows = matrix(pattern, 48).double()
    assert found.mean == pytest.approx(0.5)
    assert found.quartiles == pytest.approx((0.375, 0.5, 0.625))
    np.testing.assert_allclose(found.by_client, [0.25, 0.5, 0.75])
    np.testing.assert_allclose(found.by_round, rows.mean(1))
    np.testing.assert_allclose(found.by_hour, rows.mean(1)[:24])
    short = summary(pattern, 3, round_seconds=1800)
    assert np.isnan(short.by_hour[2:]).all()
    np.testing.assert_allclose(short.by_hour[:2], [rows[:2].mean(), rows[2].mean()])


def test_every_parameter_is_explained() -> None:
    from pmfl.world.trace import trace

    assert PATTERNS["trace"] == "pmfl.world.trace:trace"
    for name, function in {**DRAWN, "trace": trace}.items():
        signature = inspect.signature(function)
        assert list(signature.parameters)[:2] == ["rates", "key"], name
        own = [p.name for p in signature.parameters.values() if p.kind is inspect.Parameter.KEYWORD_ONLY]
        told = re.findall(r"^\s*(\w+): .+$", inspect.getdoc(function) or "", flags=re.MULTILINE)
        assert told == own, name
