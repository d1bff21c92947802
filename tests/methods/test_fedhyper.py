from __future__ import annotations

from typing import Any, get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from pmfl.core.client import by_autograd, by_transform, train_client
from pmfl.core.keys import Key
from pmfl.core.method import Method, plain_client
from pmfl.core.tree import leaves
from pmfl.core.types import Batch, Downlink, Local, Model, Round, Seen, Work, nobody
from pmfl.methods.fedhyper import Form, LocalPace, LocalRule, Variant, cosine, dot, fedhyper
from tests.oracle import fedhyper as oracle
from tests.toy import F64, NO_MODEL, PRESENT, TARGETS, examples, normal, play_rounds, points, toy_engine

VARIANTS = get_args(Variant)
STEPS = [[1.0, 0.0], [0.5, 0.5], [-2.0, 0.0], [3.0, 1.0], [3.0, 1.0]]
NOW = Round(0, 10, 2, 0.01, Key.root(0))


def seen(*there: bool) -> Seen:
    return Seen(torch.tensor(there), {})


def drive(method: Method, steps: oracle.Steps) -> tuple[list[float], Tensor, list[float]]:
    """The server's rate and model, and the learning rate it sends next, after each step (None: nobody took part)."""
    w = torch.zeros(2, dtype=F64)
    state, rates, path, sent = method.server.init(w), [], [], []
    for step in steps:
        delta = torch.zeros(2, dtype=F64) if step is None else torch.tensor(step, dtype=F64)
        w, state = method.server.apply(state, w, delta, nobody(2) if step is None else seen(True, False), NOW)
        rates.append(float(state.rate))
        path.append(w)
        sent.append(float(method.server.send(state, w, NOW).lr))
    return rates, torch.stack(path), sent


def test_vector_of_g_with_the_bounds_of_the_code() -> None:
    rates, path, sent = drive(fedhyper(variant="g", bounds="code"), STEPS)
    assert rates == pytest.approx([1, 1.5, 0.5, 0.2, 5])
    torch.testing.assert_close(path, points("(1,0) (1.75,.75) (.75,.75) (1.35,.95) (16.35,5.95)"))
    assert sent == pytest.approx([0.01] * 5)


def test_vector_of_gm_with_the_bounds_of_the_code() -> None:
    rates, path, _ = drive(fedhyper(variant="gm", bounds="code"), STEPS)
    assert rates == pytest.approx([1, 1.5, 0.8, 0.8, 5])
    torch.testing.assert_close(path, points("(1,0) (2.2,.75) (.348,.66) (2.8812,1.379) (26.2836,11.437)"))


def test_vector_of_sl_with_the_bounds_of_the_code() -> None:
    rates, path, sent = drive(fedhyper(variant="sl", bounds="code"), STEPS)
    assert rates == pytest.approx([1, 1.5, 0.5, -5.5, 4.5])
    assert sent == pytest.approx([0.01, 0.015, 0.005, 0.001, 0.045])
    torch.testing.assert_close(path, torch.tensor(STEPS, dtype=F64).cumsum(0))


def test_vector_of_g_with_the_bounds_of_the_paper() -> None:
    rates, _, _ = drive(fedhyper(variant="g"), STEPS)
    assert rates == pytest.approx([1, 1.5, 0.5, 1 / 3, 3])


def test_sl_with_the_bounds_of_the_paper_scales_the_scheduled_rate() -> None:
    _, _, sent = drive(fedhyper(variant="sl"), STEPS)
    assert sent == pytest.approx([0.01, 0.015, 0.005, 0.001, 0.1])
    state = fedhyper(variant="sl").server.init(torch.zeros(2))._replace(rate=torch.tensor(2.0, dtype=F64))
    lr = fedhyper(variant="sl").server.send(state, torch.zeros(2), NOW._replace(client_lr=0.25)).lr
    assert lr.dtype == torch.float32
    assert float(lr) == 0.5


def received(previous: list[float], joined: int, lr: float = 0.1) -> Local[Any]:
    w = torch.zeros(2, dtype=F64)
    extra = {"previous": torch.tensor(previous, dtype=F64), "joined": torch.tensor(float(joined), dtype=F64)}
    return Local(w, Downlink(w, torch.tensor(lr, dtype=F64), extra), ())


def test_vector_of_cl() -> None:
    rule = fedhyper(variant="cl").client
    local = received([-0.5, 0.2], joined=10)
    local = local._replace(scratch=rule.begin(NO_MODEL, local, Batch(torch.zeros(4, 1), torch.zeros(4, 1))))
    betas = []
    for e, end in enumerate(points("(-.1,0) (-.2,.05) (-.3,.1) (-.2,.1)")):
        gradient = (local.w - end) / (local.sent.lr * local.scratch.rate)
        w, scratch = rule.step(NO_MODEL, local._replace(e=e), gradient)
        torch.testing.assert_close(w, end)
        local = local._replace(w=w, scratch=scratch)
        betas.append(float(scratch.rate))
    assert betas == pytest.approx([1, 1.0606, 1.074494, 1.063212], abs=5e-7)


@examples(20)
@given(seed=st.integers(0, 10**6), normalise=st.booleans())
def test_server_rates_follow_the_oracle_with_empty_rounds(seed: int, normalise: bool) -> None:
    key = Key.root(seed)
    steps = [
        None if v < -0.8 else d for v, d in zip(normal(key, 12), normal(key.fold("d"), 12, 2).tolist(), strict=True)
    ]
    cases: list[tuple[Variant, Form, list[float]]] = [
        ("g", "paper", oracle.paper_rates(steps, 3, normalise)),
        ("g+cl", "paper", oracle.paper_rates(steps, 3, normalise)),
        ("sl", "paper", oracle.paper_rates(steps, 10, normalise)),
        ("g", "code", oracle.code_g(steps, normalise)),
        ("cl", "code", [1.0] * 12),
    ]
    for variant, bounds, expected in cases:
        rates, _, _ = drive(fedhyper(variant=variant, bounds=bounds, normalise=normalise), steps)
        assert rates == pytest.approx(expected)
    _, _, sent = drive(fedhyper(variant="sl", bounds="code", normalise=normalise), steps)
    assert sent == pytest.approx(oracle.code_sl(steps, 0.01, normalise))
    momentum: list[tuple[Variant, Form, float, float]] = [
        ("gm", "paper", -2 / 3, 2.0),
        ("gm+cl", "paper", -2 / 3, 2.0),
        ("gm", "code", -0.2, 4.0),
        ("gm+cl", "code", -0.2, 4.0),
    ]
    for variant, bounds, low, high in momentum:
        rates, path, _ = drive(fedhyper(variant=variant, bounds=bounds, normalise=normalise), steps)
        expected, expected_path = oracle.gm(steps, low, high, normalise)
        assert rates == pytest.approx(expected)
        torch.testing.assert_close(path, torch.tensor(expected_path, dtype=F64))


@examples(20)
@given(seed=st.integers(0, 10**6), normalise=st.booleans(), lr=st.floats(0.01, 1.5))
def test_local_rates_follow_the_oracle(seed: int, normalise: bool, lr: float) -> None:
    target, delta = normal(Key.root(seed), 2).tolist(), normal(Key.root(seed).fold("delta"), 2).tolist()

    def gradient(w: oracle.Point) -> oracle.Point:
        return [w[i] - target[i] for i in range(2)]

    cases: list[tuple[LocalRule, tuple[list[float], oracle.Point]]] = [
        ("multiply", oracle.code_cl([0.0, 0.0], gradient, lr, 6, delta, 7, normalise)),
        ("add", oracle.paper_cl([0.0, 0.0], gradient, lr, 6, delta, normalise)),
    ]
    for local_rule, (betas, end) in cases:
        rule = fedhyper(variant="cl", local_rule=local_rule, normalise=normalise).client
        local, found = received(delta, joined=7, lr=lr), []
        local = local._replace(scratch=rule.begin(NO_MODEL, local, Batch(torch.zeros(6, 1), torch.zeros(6, 1))))
        for e in range(6):
            at = local.w - torch.tensor(target, dtype=F64)
            w, scratch = rule.step(NO_MODEL, local._replace(e=e), at)
            local = local._replace(w=w, scratch=scratch)
            found.append(float(scratch.rate))
        assert found == pytest.approx(betas)
        assert local.w.tolist() == pytest.approx(end)


@pytest.mark.parametrize("local_rule", get_args(LocalRule))
def test_toy_follows_the_oracle_with_five_iterations(local_rule: LocalRule) -> None:
    method = fedhyper(local_rule=local_rule)
    path = play_rounds(method, toy_engine(method, iterations=5), PRESENT).path
    expected = oracle.quadratics(TARGETS.tolist(), PRESENT.tolist(), lr=0.1, iterations=5, local=local_rule)
    torch.testing.assert_close(path, torch.tensor(expected, dtype=F64), atol=1e-9, rtol=0)
    plain = play_rounds(fedhyper(variant="g"), toy_engine(fedhyper(variant="g"), iterations=5), PRESENT).path
    assert (path[-1] - plain[-1]).abs().max() > 1e-3


def test_every_participation_starts_from_rate_one_and_needs_a_third_iteration_to_change_anything() -> None:
    rule = fedhyper(variant="cl").client
    pace = rule.begin(NO_MODEL, received([1.0, 0.0], joined=2), Batch(torch.zeros(5, 1), torch.zeros(5, 1)))
    assert float(pace.rate) == 1

    def path(variant: Variant, iterations: int) -> Tensor:
        method = fedhyper(variant=variant)
        return play_rounds(method, toy_engine(method, iterations), PRESENT).path

    assert torch.equal(path("g", 2), path("g+cl", 2))
    assert not torch.equal(path("g", 3), path("g+cl", 3))


def test_server_lr_scales_the_step_but_not_what_is_remembered() -> None:
    one, half = (drive(fedhyper(variant="gm", server_lr=lr), STEPS) for lr in (1.0, 0.5))
    assert one[0] == half[0]
    torch.testing.assert_close(half[1], 0.5 * one[1])


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_round_without_participants_changes_nothing(variant: Variant) -> None:
    rule = fedhyper(variant=variant).server
    w, state = rule.apply(rule.init(torch.zeros(2)), torch.zeros(2), torch.ones(2), seen(True, True), NOW)
    after_w, after = rule.apply(state, w, torch.zeros(2), nobody(2), NOW)
    assert torch.equal(after_w, w)
    assert after is state


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("variant", VARIANTS)
def test_state_keeps_its_form_and_rules_are_pure(variant: Variant, dtype: torch.dtype) -> None:
    rule = fedhyper(variant=variant).server
    w, step = torch.zeros(5, dtype=dtype), torch.arange(5, dtype=dtype)
    empty = rule.init(w)
    _, first = rule.apply(empty, w, step, seen(True, True, False), NOW)
    kept = {path: leaf.clone() for path, leaf in leaves(first) if isinstance(leaf, Tensor)}
    moved, second = rule.apply(first, w, step, seen(True, True, True), NOW)
    again, _ = rule.apply(first, w, step, seen(True, True, True), NOW)
    assert torch.equal(moved, again)
    assert moved.dtype == dtype
    for (path, a), (_, b), (_, c) in zip(leaves(empty), leaves(first), leaves(second), strict=True):
        assert isinstance(a, Tensor)
        assert isinstance(c, Tensor)
        assert (a.shape, a.dtype) == (c.shape, c.dtype), path
        assert isinstance(b, Tensor)
        assert torch.equal(b, kept[path])
    assert int(second.joined) == 3
    sent = rule.send(second, w, NOW)
    assert sent.lr.dtype == dtype
    assert set(sent.extra) == ({"previous", "joined"} if "cl" in variant else set())
    assert (fedhyper(variant=variant).client is plain_client) == ("cl" not in variant)


def test_unnormalised_rates_saturate_where_cosines_do_not() -> None:
    large = [[30.0, 0.0], [3.0, 30.0], [30.0, -2.0]]
    rates, _, _ = drive(fedhyper(variant="g"), large)
    assert rates == pytest.approx([1, 3, 3])
    rates, _, _ = drive(fedhyper(variant="g", normalise=True), large)
    assert 1 < rates[1] < 1.2
    assert rates == pytest.approx(
        drive(fedhyper(variant="g", normalise=True), [[v / 1e3 for v in d] for d in large])[0]
    )


def test_cosine_of_zero_is_zero() -> None:
    assert float(cosine(torch.zeros(3), torch.ones(3))) == 0
    assert float(cosine(torch.ones(3), torch.ones(3))) == pytest.approx(1)


def test_dot_is_right_and_the_same_for_any_number_of_threads() -> None:
    a, b = (normal(Key.root(seed), 300_001).float() for seed in (1, 2))
    threads = torch.get_num_threads()
    try:
        found = set()
        for n in (1, 2, 3):
            torch.set_num_threads(n)
            found.add(float(dot(a, b)))
    finally:
        torch.set_num_threads(threads)
    assert len(found) == 1
    assert found.pop() == pytest.approx(float((a.double() * b.double()).sum()), abs=1e-3)


def linear_model(features: int, classes: int) -> Model:
    """The smallest classifier: one linear layer, without an encoder."""

    def classify(w: Tensor, z: Tensor, masks: tuple[Tensor, ...]) -> Tensor:
        return z @ w[classes:].view(features, classes) + w[:classes]

    size = classes * (features + 1)
    return Model(size, lambda key: torch.zeros(size), lambda w, x, masks: x, classify)


def separable(k: int, iterations: int = 5) -> Work:
    """Samples whose first feature tells their class."""
    y = torch.arange(iterations * 8).reshape(iterations, 8) % 2
    x = normal(Key.root(k), iterations, 8, 3).float() * 0.3
    x[..., 0] += 2.0 * y - 1
    return Work(Batch(x, y), torch.tensor(8.0))


@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize("local_rule", get_args(LocalRule))
def test_clients_are_the_same_one_by_one_and_under_vmap(local_rule: LocalRule, normalise: bool) -> None:
    rule, model = fedhyper(local_rule=local_rule, normalise=normalise).client, linear_model(3, 2)
    w = normal(Key.root(0), model.size).float()
    extra = {"previous": -0.1 * w, "joined": torch.tensor(4.0)}
    sent = Downlink(w, torch.tensor(0.5), extra)
    works = [separable(k) for k in range(3)]

    def one(x: Tensor, y: Tensor) -> Tensor:
        return train_client(rule, model, sent, (), Work(Batch(x, y), torch.tensor(8.0)), by_transform).vector

    together = torch.vmap(one)(*(torch.stack([getattr(work.batches, f) for work in works]) for f in ("x", "y")))
    for work, lane in zip(works, together, strict=True):
        torch.testing.assert_close(train_client(rule, model, sent, (), work, by_autograd).vector, lane)


@pytest.mark.parametrize("variant", VARIANTS)
def test_learns_a_separable_problem(variant: Variant) -> None:
    method, model = fedhyper(variant=variant), linear_model(3, 2)
    w = torch.zeros(model.size)
    state = method.server.init(w)
    first = last = 0.0
    for t in range(20):
        sent = method.server.send(state, w, NOW._replace(t=t, client_lr=0.1))
        uplinks = [train_client(method.client, model, sent, (), separable(10 * t + k)) for k in range(2)]
        last = float(sum(uplink.scalars["loss/first"] for uplink in uplinks)) / 2
        first = first or last
        step = torch.stack([uplink.vector for uplink in uplinks]).mean(0)
        w, state = method.server.apply(state, w, step, seen(True, True), NOW)
    assert last < 0.5 * first


def test_local_pace_is_named_for_what_it_holds() -> None:
    pace = fedhyper(local_rule="add").client.begin(
        NO_MODEL, received([1.0, 2.0], joined=4), Batch(torch.zeros(5, 1), torch.zeros(5, 1))
    )
    assert isinstance(pace, LocalPace)
    assert pace.share == 0.2
    assert pace.move.tolist() == [1, 2]
