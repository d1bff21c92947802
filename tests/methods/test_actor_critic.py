from __future__ import annotations

from collections import Counter
from itertools import permutations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from pmfl.core.keys import Key
from pmfl.methods.actor_critic import (
    PPO,
    Choice,
    Policy,
    blank_policy,
    choose,
    discounted,
    draw_theta,
    learn,
    objective,
    shapes,
    standardised,
)
from tests.oracle import fedppo as oracle
from tests.toy import F64, examples, normal

SETTINGS = PPO(hidden=4, lr=1e-2, discount=0.7, clip=0.2, entropy=0.01, epochs=5)


def test_vector_of_returns() -> None:
    assert discounted(torch.tensor([0.4, 0.8, 0.6]), 0.7).tolist() == pytest.approx([1.254, 1.22, 0.6])
    assert oracle.returns([0.4, 0.8, 0.6], 0.7) == pytest.approx([1.254, 1.22, 0.6])
    assert oracle.rewards([0.3, 0.5], 0.4, [0.2, 0.6]) == pytest.approx([0.4, 0.8])


def test_vector_of_network_sizes() -> None:
    sizes = [n * (m + 1) for n, m in shapes(4, 64)]
    assert (sum(sizes[:3]), sum(sizes[3:])) == (4804, 4609)
    assert blank_policy(4, 64).theta.numel() == 4804 + 4609


def likes(theta_bias: list[float], hidden: int = 4) -> Tensor:
    """Weights of a policy with these logits, whatever it sees."""
    clients = len(theta_bias)
    theta = blank_policy(clients, hidden).theta.clone()
    end = sum(n * (m + 1) for n, m in shapes(clients, hidden)[:3])
    theta[end - clients : end] = torch.tensor(theta_bias, dtype=F64)
    return theta


def test_draws_are_those_of_repeated_draws_without_repetition() -> None:
    logits = [0.0, 1.0, -1.0, 0.5]
    theta, s, eligible = likes(logits), torch.zeros(5, dtype=F64), torch.tensor([True, True, True, False])
    n = 4000
    found = Counter(tuple(choose(theta, s, eligible, 2, 4, Key.root(i)).who.tolist()) for i in range(n))
    p = oracle.probabilities(logits, eligible.tolist())
    for order in permutations(range(3), 2):
        expected = oracle.chance_of(order, p)
        assert found[order] / n == pytest.approx(expected, abs=4 * (expected * (1 - expected) / n) ** 0.5), order
    assert sum(found.values()) == sum(found[order] for order in permutations(range(3), 2))


def test_a_collapsed_actor_still_gives_distinct_clients() -> None:
    choice = choose(likes([1e6, 0.0, 0.0, 0.0]), torch.zeros(5, dtype=F64), torch.ones(4).bool(), 3, 4, Key.root(0))
    assert int(choice.who[0]) == 0
    assert len(set(choice.who.tolist())) == 3
    assert choice.counts.all()
    assert torch.isfinite(choice.logp).all()


def test_log_probabilities_are_those_of_single_draws_among_the_eligible() -> None:
    logits, eligible = [0.3, 1.0, -1.0, 0.5], [True, False, True, True]
    choice = choose(likes(logits), torch.zeros(5, dtype=F64), torch.tensor(eligible), 3, 4, Key.root(0))
    p = torch.tensor(oracle.probabilities(logits, eligible), dtype=F64)
    torch.testing.assert_close(choice.logp, p.log()[choice.who])
    assert sorted(choice.who.tolist()) == [0, 2, 3]


def test_first_weights_are_uniform_within_the_usual_limits() -> None:
    theta, sizes = draw_theta(30, 20, Key.root(0)), [n * (m + 1) for n, m in shapes(30, 20)]
    for part, (_, m) in zip(torch.split(theta, sizes), shapes(30, 20), strict=True):
        limit = m**-0.5
        assert 0.8 * limit < part.abs().max() < limit


def random_choices(key: Key, rounds: int = 3, clients: int = 3, places: int = 2) -> Choice:
    """Some complete rounds; the last place of the first one does not count, and one client is not eligible there."""
    theta, drawn = draw_theta(clients, SETTINGS.hidden, key), list[Choice]()
    for r in range(rounds):
        eligible = torch.tensor([r > 0] + [True] * (clients - 1))
        choice = choose(theta, normal(key.fold("s", r), clients + 1), eligible, places, SETTINGS.hidden, key.fold(r))
        drawn.append(choice._replace(reward=normal(key.fold("r", r), places).abs()))
    counts = torch.ones(rounds, places, dtype=torch.bool)
    counts[0, -1] = False
    return Choice(*(torch.stack(rows) for rows in zip(*drawn, strict=True)))._replace(counts=counts)


def as_layers(theta: list[float], clients: int, hidden: int) -> list[oracle.Layer]:
    layers, i = [], 0
    for n, m in shapes(clients, hidden):
        matrix = [theta[i + r * m : i + (r + 1) * m] for r in range(n)]
        layers.append((matrix, theta[i + n * m : i + n * m + n]))
        i += n * m + n
    return layers


def transitions(choices: Choice, g: list[float]) -> list[oracle.Transition]:
    found: list[oracle.Transition] = []
    for r, i in choices.counts.nonzero().tolist():
        found.append(
            oracle.Transition(
                choices.s[r].tolist(),
                choices.eligible[r].tolist(),
                int(choices.who[r, i]),
                float(choices.logp[r, i]),
                float(choices.value[r]),
                g[len(found)],
            )
        )
    return found


@examples(10)
@given(seed=st.integers(0, 10**6))
def test_objective_and_its_gradient_follow_the_oracle(seed: int) -> None:
    choices = random_choices(Key.root(seed))
    g = standardised(discounted(choices.reward[choices.counts], 0.7))
    assert g.tolist() == pytest.approx(
        oracle.standardise(oracle.returns(choices.reward[choices.counts].tolist(), 0.7)), abs=1e-9
    )
    theta = draw_theta(3, SETTINGS.hidden, Key.root(seed).fold("now")) * 2  # not the policy that chose

    def slow(weights: list[float]) -> float:
        layers = as_layers(weights, 3, SETTINGS.hidden)
        return oracle.objective(layers[:3], layers[3:], transitions(choices, g.tolist()), 0.2, 0.01)

    assert float(objective(theta, choices, g, SETTINGS)) == pytest.approx(slow(theta.tolist()))
    gradient = torch.func.grad(objective)(theta, choices, g, SETTINGS)
    for i in range(0, theta.numel(), 7):
        up, down = theta.tolist(), theta.tolist()
        up[i] += 1e-5
        down[i] -= 1e-5
        assert float(gradient[i]) == pytest.approx((slow(up) - slow(down)) / 2e-5, abs=2e-6)


def test_learning_is_adam_on_the_objective_as_torch_has_it() -> None:
    choices = random_choices(Key.root(3))
    theta = draw_theta(3, SETTINGS.hidden, Key.root(4))
    learned = learn(blank_policy(3, SETTINGS.hidden)._replace(theta=theta), choices, SETTINGS)
    actor, critic = (
        nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, outputs)).double()
        for outputs in (3, 1)
    )
    with torch.no_grad():
        weights = [*actor.parameters(), *critic.parameters()]
        for weight, part in zip(weights, torch.split(theta, [w.numel() for w in weights]), strict=True):
            weight.copy_(part.view_as(weight))
    counts = choices.counts
    rewards = oracle.standardise(oracle.returns(choices.reward[counts].tolist(), SETTINGS.discount))
    g = torch.tensor(rewards, dtype=F64)
    advantage = g - choices.value[:, None].expand_as(counts)[counts]
    adam = torch.optim.Adam(weights, lr=SETTINGS.lr)
    gradients = []
    for _ in range(SETTINGS.epochs):
        policy = torch.distributions.Categorical(logits=actor(choices.s).masked_fill(~choices.eligible, -torch.inf))
        logp = policy.logits.gather(1, choices.who)[counts]
        entropy = policy.entropy()[:, None].expand_as(counts)[counts]
        value = critic(choices.s).expand_as(counts)[counts]
        rho = (logp - choices.logp[counts]).exp()
        loss = -torch.min(rho * advantage, rho.clamp(0.8, 1.2) * advantage) + 0.5 * nn.functional.mse_loss(value, g)
        adam.zero_grad()
        (loss - 0.01 * entropy).mean().backward()
        gradients.append(torch.cat([w.grad.flatten() for w in weights if w.grad is not None]).tolist())
        adam.step()
    expected = torch.cat([w.detach().flatten() for w in weights])
    torch.testing.assert_close(learned.theta, expected, atol=1e-9, rtol=0)
    assert oracle.adam(theta.tolist(), gradients, SETTINGS.lr) == pytest.approx(learned.theta.tolist(), abs=1e-9)
    assert int(learned.steps) == SETTINGS.epochs


def test_learning_from_a_single_transition_works() -> None:
    one = choose(likes([0.0, 0.0, 0.0]), torch.zeros(4, dtype=F64), torch.ones(3).bool(), 1, 4, Key.root(0))
    row = Choice(*(part[None] for part in one._replace(reward=torch.tensor([0.7], dtype=F64))))
    learned = learn(Policy(likes([0.0, 0.0, 0.0]), *blank_policy(3, 4)[1:]), row, SETTINGS)
    assert all(torch.isfinite(part).all() for part in learned)
    assert standardised(torch.tensor([0.7], dtype=F64)).tolist() == [0]
    assert standardised(torch.tensor([0.7, 0.7], dtype=F64)).tolist() == [0, 0]
