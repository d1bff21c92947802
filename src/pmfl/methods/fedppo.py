"""FedPPO: a policy learns which clients to ask, rewarded by what their models and the global one then achieve.

What is new: an actor and a critic (actor_critic.py) see s = (accuracy of the global model, newest accuracy of every
client's local model), and the actor draws clients. A client's reward is its local accuracy, plus the accuracy of the
new global model times the client's share of the round's decrease in training loss (since its last participation, and
at least 1e-5; a client met for the first time has decreased nothing).

Deviations. The original judges every model on the server's test set, which nothing but a test may look at. Here:
  - Each client evaluates the model it received and the one it trained on samples held out of its own *training* data.
    The accuracy of a global model is the mean over those who received it.
  - Hence a global model is judged one round late: s_0 is the accuracy of the newest model anyone has judged, and the
    rewards of round t are completed by the next round in which somebody takes part. Until then they wait; the policy
    learns from complete rounds only: after the first one, then after every ``update_every`` more.
  - A participation's training loss is the mean of its first and last mini-batch, which every client reports anyway.
  - Only clients that answered are learned from, and only those that could have been drawn have a probability.
  - Noisy clients are not sorted out beforehand, and clients train as they do under every other method.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from pmfl.core.method import ClientRule, Method, SelectRule, accuracy, add_step
from pmfl.core.params import Rate, Share, Size, Weight
from pmfl.core.types import Batch, Local, Model, Round, Seen, Uplink, Vector
from pmfl.errors import MethodError
from pmfl.methods.actor_critic import PPO, Choice, Policy, blank_choice, blank_policy, choose, draw_theta, learn
from pmfl.methods.fedavg import MEANS

Availability = Literal["mask", "override", "intersect"]
Mean = Literal["participants", "samples"]

SMALLEST_DROP = 1e-5
CHECKS_HINT = "keep the client rule `judging_client`; engines give `Work.check` where a client rule has `checks`"


class Judgement(NamedTuple):
    """What the server has learned about clients, and about choosing them."""

    s: Tensor  # [K + 1] float64; accuracy of the global model, then of each client's newest local model
    loss: Tensor  # [K] float64; training loss of each client's last participation, 0 before the first
    policy: Policy
    played: Tensor  # [] int64; rounds so far
    complete: Tensor  # [] int64; rounds whose rewards are complete
    asked: Choice  # of the round before
    waiting: Choice  # answered; waits for its global model to be judged
    buffer: Choice  # [update_every, ...] complete and not learned from, newest last


def judge(model: Model, local: Local[Any], delta: Vector, check: Batch | None) -> Uplink:
    """Send the update, and how the received and the trained model do on the client's held-out samples."""
    if check is None:
        raise MethodError("fedppo: a client has no held-out training samples to judge models by", hint=CHECKS_HINT)
    received, trained = (accuracy(model.logits(w, check.x), check.y) for w in (local.sent.w, local.w))
    return Uplink(delta, local.memory, {"check/received": received, "check/trained": trained}, delta)


judging_client: ClientRule[tuple[()]] = ClientRule(init=lambda w: (), reply=judge, checks=True)


def reported(last: Seen, *names: str) -> Tensor:
    """The mean over ``names`` of what each client that took part has reported, [n] float64."""
    missing = ", ".join(name for name in names if name not in last.scalars)
    if missing:
        raise MethodError(f"fedppo: clients took part without reporting {missing}", hint=CHECKS_HINT)
    return torch.stack([last.scalars[name].double() for name in names]).mean(0)


def hear(state: Judgement, last: Seen) -> Judgement:
    """Take in the answers of the round before: they complete the rewards that waited, and begin new ones."""
    who, asked, waiting = last.clients, state.asked, state.waiting
    if not who.numel():
        return state
    received = reported(last, "check/received").mean()
    if waiting.counts.any():
        done = waiting._replace(reward=waiting.reward + received * waiting.share)
        rows = (torch.cat([old[1:], new[None]]) for old, new in zip(state.buffer, done, strict=True))
        state = state._replace(buffer=Choice(*rows), complete=state.complete + 1)
    s = torch.cat([received[None], state.s[1:].index_put((who,), reported(last, "check/trained"))])
    loss = state.loss.index_put((who,), reported(last, "loss/first", "loss/last"))
    counts = asked.counts & last.took_part[asked.who]
    drop = counts * (state.loss - loss).clamp(min=SMALLEST_DROP)[asked.who]
    share = drop / drop.sum().clamp(min=SMALLEST_DROP)
    waiting = asked._replace(counts=counts, reward=counts * s[1:][asked.who], share=share)
    return state._replace(s=s, loss=loss, waiting=waiting)


def learned_choice(*, share: float, availability: Availability, update_every: int, ppo: PPO) -> SelectRule[Judgement]:
    """Ask a share of all clients, drawn by a policy that learns from what they report."""

    def init(clients: int) -> Judgement:
        places = max(1, round(share * clients))
        zeros, zero, blank = torch.zeros(clients + 1).double(), torch.tensor(0), blank_choice(clients, places)
        buffer = blank_choice(clients, places, update_every)
        return Judgement(zeros, zeros[1:], blank_policy(clients, ppo.hidden), zero, zero, blank, blank, buffer)

    def apply(before: Judgement, available: Tensor, last: Seen, now: Round) -> tuple[Tensor, Judgement]:
        key, clients = now.key.fold("fedppo"), available.shape[0]
        state = hear(before, last)
        if state.played == 0:
            theta = draw_theta(clients, ppo.hidden, key.fold("weights"))
            state = state._replace(policy=state.policy._replace(theta=theta))
        if state.complete > before.complete and before.complete % update_every == 0:
            emptied = state.buffer._replace(counts=torch.zeros_like(state.buffer.counts))
            state = state._replace(policy=learn(state.policy, state.buffer, ppo), buffer=emptied)
        eligible = available if availability == "mask" else torch.ones_like(available)
        asked = choose(state.policy.theta, state.s, eligible, state.asked.who.shape[0], ppo.hidden, key.fold("draw"))
        chosen = torch.zeros_like(available).index_put((asked.who,), asked.counts)
        chosen = chosen & available if availability == "intersect" else chosen
        return chosen, state._replace(asked=asked, played=state.played + 1)

    return SelectRule(init=init, apply=apply)


def fedppo(
    *,
    share: Share = 0.1,
    availability: Availability = "mask",
    mean: Mean = "participants",
    server_lr: Rate = 1.0,
    discount: Share = 0.7,
    clip: Share = 0.2,
    entropy: Weight = 0.01,
    policy_lr: Rate = 1e-3,
    epochs: Size = 5,
    update_every: Size = 5,
    hidden: Size = 64,
) -> Method:
    """Ask the clients that a policy, learned by proximal policy optimisation, expects to contribute most.

    share: how many clients are asked per round, as a share of all K; at least one
    availability: "mask" asks available clients; "override" anyone, who then trains; "intersect" anyone, who may be away
    mean: what the mean of updates is taken over: "participants", or "samples" (by how many each holds)
    server_lr: eta_g, the global learning rate
    discount: of rewards, along the clients of a round and then of the next
    clip: how far the probability of a choice may move in one update
    entropy: weight of the bonus for undecided policies
    policy_lr: Adam's learning rate for actor and critic
    epochs: gradient steps per update
    update_every: complete rounds between two updates
    hidden: width of the two hidden layers of actor and critic
    """
    ppo = PPO(hidden, policy_lr, discount, clip, entropy, epochs)
    select = learned_choice(share=share, availability=availability, update_every=update_every, ppo=ppo)
    return Method(name="fedppo", client=judging_client, select=select, weigh=MEANS[mean], server=add_step(server_lr))
