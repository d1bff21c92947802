"""Proximal policy optimisation (PPO) of which clients to ask: an actor, a critic, and how they learn from choices.

Pure functions of flat float64 vectors: in double precision a choice does not hang on how a sum was split over threads.
Actor and critic are separate networks with two hidden tanh layers; ``theta`` holds the actor's weights, then the
critic's. Shape suffixes: K clients, C clients chosen in a round, R rounds.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear

from pmfl.core.client import by_autograd
from pmfl.core.keys import Key


class PPO(NamedTuple):
    """How the policy looks and learns."""

    hidden: int
    lr: float
    discount: float
    clip: float
    entropy: float
    epochs: int


class Policy(NamedTuple):
    """The networks' weights and Adam's memory of their gradients."""

    theta: Tensor  # [Q]
    mean: Tensor  # [Q]
    square: Tensor  # [Q]
    steps: Tensor  # [] int64


class Choice(NamedTuple):
    """What one round chose, in the order drawn, and what came of it; or several rounds, with a leading axis."""

    s: Tensor  # [K + 1] what the policy saw
    eligible: Tensor  # [K] bool; who could be drawn
    value: Tensor  # [] what the critic expected
    who: Tensor  # [C] int64
    logp: Tensor  # [C] of drawing each in a single draw
    counts: Tensor  # [C] bool; whether this place of the choice is a transition to learn from
    reward: Tensor  # [C] until the reward is complete: its local part
    share: Tensor  # [C] until the reward is complete: the part of the global accuracy that goes to it


def shapes(clients: int, hidden: int) -> list[tuple[int, int]]:
    """(outputs, inputs) of the six layers: three of the actor, then three of the critic."""
    body = [(hidden, clients + 1), (hidden, hidden)]
    return [*body, (clients, hidden), *body, (1, hidden)]


def blank_policy(clients: int, hidden: int) -> Policy:
    """A policy before its weights are drawn."""
    zeros = torch.zeros(sum(n * (m + 1) for n, m in shapes(clients, hidden)), dtype=torch.float64)
    return Policy(zeros, zeros, zeros, torch.tensor(0))


def blank_choice(clients: int, chosen: int, *rounds: int) -> Choice:
    """No choice at all, in the shape of one, or of several."""
    places = torch.zeros(*rounds, chosen, dtype=torch.float64)
    s, value = torch.zeros(*rounds, clients + 1, dtype=torch.float64), torch.zeros(rounds, dtype=torch.float64)
    eligible = torch.ones(*rounds, clients, dtype=torch.bool)
    return Choice(s, eligible, value, places.long(), places, places.bool(), places, places)


def draw_theta(clients: int, hidden: int, key: Key) -> Tensor:
    """Weights and biases, uniform within 1 / sqrt(inputs) of zero."""
    limits = torch.cat([torch.full((n * (m + 1),), m**-0.5, dtype=torch.float64) for n, m in shapes(clients, hidden)])
    return (2 * torch.rand(limits.shape, generator=key.torch(), dtype=torch.float64) - 1) * limits


def consult(theta: Tensor, s: Tensor, eligible: Tensor, hidden: int) -> tuple[Tensor, Tensor]:
    """The actor's log-probabilities [..., K], of those who are eligible alone, and the critic's value [...]."""
    layers = shapes(eligible.shape[-1], hidden)
    parts = torch.split(theta, [size for n, m in layers for size in (n * m, n)])
    outputs = []
    for first in (0, 3):
        z = s
        for i in range(first, first + 3):
            z = linear(z, parts[2 * i].view(layers[i]), parts[2 * i + 1])
            z = z if i == first + 2 else z.tanh()
        outputs.append(z)
    return outputs[0].masked_fill(~eligible, -torch.inf).log_softmax(-1), outputs[1].squeeze(-1)


def choose(theta: Tensor, s: Tensor, eligible: Tensor, chosen: int, hidden: int, key: Key) -> Choice:
    """Draw ``chosen`` of those who are eligible, or all if they are fewer, one after the other without replacement.

    Adding Gumbel noise and taking the largest is such a draw in one go, and ends however sure the actor is.
    """
    logp, value = consult(theta, s, eligible, hidden)
    u = torch.rand(logp.shape, generator=key.torch(), dtype=torch.float64)
    noise = -(-u.clamp(min=torch.finfo(torch.float64).tiny).log()).log()
    who = (logp + noise).topk(chosen).indices
    counts = torch.arange(chosen) < eligible.sum()
    zeros = torch.zeros(chosen, dtype=torch.float64)
    return Choice(s, eligible, value, who, torch.where(counts, logp[who], 0.0), counts, zeros, zeros)


def discounted(rewards: Tensor, discount: float) -> Tensor:
    """G_i = r_i + discount * G_{i+1}, over all transitions in order."""
    returns, total = [], 0.0
    for reward in reversed(rewards.tolist()):
        total = reward + discount * total
        returns.append(total)
    return torch.tensor(returns[::-1], dtype=torch.float64)


def standardised(g: Tensor) -> Tensor:
    """Centred and scaled. A single return has no spread: it becomes 0, as equal returns do."""
    return (g - g.mean()) / (g.std(correction=min(1, g.numel() - 1)) + 1e-7)


def objective(theta: Tensor, choices: Choice, returns: Tensor, ppo: PPO) -> Tensor:
    """The clipped surrogate, the critic's squared error and the entropy, over all transitions of some rounds."""
    counts = choices.counts
    logp_RK, value_R = consult(theta, choices.s, choices.eligible, ppo.hidden)
    entropy_R = -(logp_RK.exp() * logp_RK.masked_fill(~choices.eligible, 0.0)).sum(-1)
    ratio = (logp_RK.gather(1, choices.who)[counts] - choices.logp[counts]).exp()
    value, expected, entropy = (x[:, None].expand_as(counts)[counts] for x in (value_R, choices.value, entropy_R))
    advantage = returns - expected
    surrogate = torch.minimum(ratio * advantage, ratio.clamp(1 - ppo.clip, 1 + ppo.clip) * advantage)
    return (-surrogate + 0.5 * (value - returns).square() - ppo.entropy * entropy).mean()


@torch.enable_grad()
def learn(policy: Policy, choices: Choice, ppo: PPO) -> Policy:
    """A few epochs of Adam over all transitions of some rounds at once."""
    some = choices.counts.any(1)
    choices = Choice(*(part[some] for part in choices))
    returns = standardised(discounted(choices.reward[choices.counts], ppo.discount))
    for _ in range(ppo.epochs):
        gradient, _, _ = by_autograd(lambda theta: (objective(theta, choices, returns, ppo), {}), policy.theta)
        age = (policy.steps + 1).double()
        mean = 0.9 * policy.mean + 0.1 * gradient
        square = 0.999 * policy.square + 0.001 * gradient.square()
        size = (square / (1 - 0.999**age)).sqrt() + 1e-8
        policy = Policy(policy.theta - ppo.lr * mean / (1 - 0.9**age) / size, mean, square, policy.steps + 1)
    return policy
