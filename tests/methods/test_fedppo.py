from __future__ import annotations

from typing import Any, get_args

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from pmfl.core.client import by_autograd, by_transform, train_client
from pmfl.core.keys import Key
from pmfl.core.method import Method
from pmfl.core.tree import leaves, stack
from pmfl.core.types import Batch, Downlink, Model, Round, Seen, Uplink, Work, nobody
from pmfl.errors import MethodError
from pmfl.methods.actor_critic import blank_choice
from pmfl.methods.fedppo import Availability, Judgement, fedppo, hear
from pmfl.world.datasets import from_arrays
from pmfl.world.population import Population
from tests.oracle import fedppo as oracle
from tests.toy import F64, SmallEngine, coins, examples, normal, play_rounds


def at(t: int, clients: int, seed: int = 0) -> Round:
    return Round(t, 100, clients, 0.1, Key.root(seed).fold("round", t))


def answers(clients: int, received: dict[int, float], trained: dict[int, float], loss: dict[int, float]) -> Seen:
    """The answers of those who took part, by client; first and last loss average to ``loss``."""
    took_part = torch.zeros(clients, dtype=torch.bool)
    took_part[list(received)] = True

    def row(of: dict[int, float], more: float = 0.0) -> Tensor:
        return torch.tensor([of[k] + more for k in sorted(of)], dtype=F64)

    return Seen(
        took_part,
        {
            "check/received": row(received),
            "check/trained": row(trained),
            "loss/first": row(loss, 0.25),
            "loss/last": row(loss, -0.25),
        },
    )


def asked(state: Judgement, *who: int) -> Judgement:
    """The same state, had these been asked, in this order."""
    places = torch.ones(len(who), dtype=torch.bool)
    return state._replace(asked=state.asked._replace(who=torch.tensor(who), counts=places))


# The vectors of the reference


def test_vector_of_states_and_rewards() -> None:
    state = asked(fedppo(share=0.5).select.init(4), 2, 0)._replace(loss=torch.tensor([1.6, 0, 1.2, 0.0], dtype=F64))
    state = hear(state, answers(4, {0: 0.2, 2: 0.3}, {2: 0.30, 0: 0.50}, {2: 1.0, 0: 1.0}))
    assert state.s.tolist() == pytest.approx([0.25, 0.5, 0, 0.3, 0])
    state = asked(state, 1, 2)._replace(loss=torch.tensor([1.0, 1e-5 / 2, 0.8, 0], dtype=F64))
    state = hear(state, answers(4, {1: 0.38, 2: 0.42}, {1: 0.10, 2: 0.35}, {1: 0.9, 2: 0.7}))
    assert state.s.tolist() == pytest.approx([0.4, 0.5, 0.1, 0.35, 0])
    assert state.buffer.who[-1].tolist() == [2, 0]
    assert state.buffer.reward[-1].tolist() == pytest.approx([0.4, 0.8])
    state = hear(asked(state, 0, 3), answers(4, {0: 0.40, 3: 0.50}, {0: 0.6, 3: 0.1}, {0: 0.5, 3: 1.0}))
    assert float(state.s[0]) == pytest.approx(0.45)
    assert state.buffer.reward[-1].tolist() == pytest.approx([0.100045, 0.799955], abs=5e-7)
    assert int(state.complete) == 2


# What is written down, against the oracle


@examples(25)
@given(seed=st.integers(0, 10**6), availability=st.sampled_from(get_args(Availability)))
def test_books_follow_the_oracle_with_empty_rounds(seed: int, availability: Any) -> None:
    clients, key = 7, Key.root(seed)
    method = fedppo(share=0.4, availability=availability, hidden=3, update_every=2, epochs=2)
    books, state, last = oracle.Books(clients, discard_every=2), method.select.init(clients), nobody(clients)
    order: list[int] = []
    for t in range(14):
        draw = key.fold(t)
        available = coins(draw.fold("there"), 0.5, clients) & bool(coins(draw.fold("empty"), 0.8, 1))
        chosen, state = method.select.apply(state, available, last, at(t, clients, seed))
        who = last.clients.tolist()
        received, trained = (
            {k: float(v) for k, v in zip(who, last.scalars[f"check/{n}"], strict=True)} if who else {}
            for n in ("received", "trained")
        )
        loss = {k: float(last.scalars["loss/first"][i]) - 0.25 for i, k in enumerate(who)}
        books.hear(order, received, trained, loss)
        torch.testing.assert_close(state.s, torch.tensor(books.s, dtype=F64))
        torch.testing.assert_close(state.loss, torch.tensor(books.loss, dtype=F64))
        counts = state.buffer.counts
        kept = list(zip(state.buffer.who[counts].tolist(), state.buffer.reward[counts].tolist(), strict=True))
        assert [k for k, _ in kept] == [k for k, _ in books.complete]
        assert [r for _, r in kept] == pytest.approx([r for _, r in books.complete])
        assert int(state.complete) == books.rounds
        assert int(state.policy.steps) == 2 * books.updates
        order = state.asked.who[state.asked.counts].tolist()
        assert set(chosen.nonzero().flatten().tolist()) <= set(order)
        answering = chosen & coins(draw.fold("answer"), 0.8, clients)
        ids = answering.nonzero().flatten().tolist()
        values = torch.rand(3, clients, generator=draw.fold("values").torch(), dtype=F64).tolist()
        last = answers(clients, *({k: row[k] for k in ids} for row in values)) if ids else nobody(clients)
    assert all(torch.isfinite(leaf).all() for _, leaf in leaves(state) if isinstance(leaf, Tensor))


def test_rewards_wait_while_nobody_takes_part() -> None:
    state = asked(fedppo(share=0.5).select.init(4), 2, 0)
    state = hear(state, answers(4, {0: 0.2, 2: 0.3}, {0: 0.5, 2: 0.3}, {0: 1.0, 2: 1.0}))
    assert hear(asked(state, 1, 3), nobody(4)).waiting.counts.tolist() == [True, True]
    assert int(hear(asked(state, 1, 3), nobody(4)).complete) == 0
    later = hear(asked(state, 1, 3), answers(4, {3: 0.6}, {3: 0.1}, {3: 1.0}))
    assert later.buffer.reward[-1].tolist() == pytest.approx([0.3 + 0.3, 0.5 + 0.3])
    assert later.waiting.counts.tolist() == [False, True]  # client 1 was asked and did not answer
    assert later.waiting.share.tolist() == [0, 1]


def test_a_first_participation_has_decreased_nothing() -> None:
    state = hear(
        asked(fedppo(share=0.5).select.init(4), 1, 2), answers(4, {1: 0, 2: 0}, {1: 0, 2: 0}, {1: 2.0, 2: 1.0})
    )
    assert state.waiting.share.tolist() == [0.5, 0.5]
    assert state.loss.tolist() == [0, 2, 1, 0]
    state = hear(asked(state, 1, 0), answers(4, {0: 0, 1: 0}, {0: 0, 1: 0}, {0: 2.0, 1: 1.0}))
    assert state.waiting.share.tolist() == pytest.approx([1 / (1 + 1e-5), 1e-5 / (1 + 1e-5)])


# Choosing


def first_choice(method: Method, available: Tensor, seed: int = 0) -> tuple[Tensor, Judgement]:
    clients = len(available)
    state: tuple[Tensor, Judgement]
    state = method.select.apply(method.select.init(clients), available, nobody(clients), at(0, clients, seed))
    return state


def test_mask_asks_available_clients_only_and_all_of_them_if_they_are_few() -> None:
    available = torch.arange(20) % 3 == 0
    for seed in range(20):
        chosen, _ = first_choice(fedppo(share=0.25), available, seed)
        assert int(chosen.sum()) == 5
        assert not (chosen & ~available).any()
    chosen, state = first_choice(fedppo(share=0.9), available)
    assert torch.equal(chosen, available)
    assert int(state.asked.counts.sum()) == 7
    chosen, state = first_choice(fedppo(), torch.zeros(20, dtype=torch.bool))
    assert not chosen.any()
    assert not state.asked.counts.any()


def test_override_asks_anyone_and_intersect_only_those_of_them_who_are_there() -> None:
    available = torch.arange(20) % 3 == 0
    anyone, _ = first_choice(fedppo(share=0.5, availability="override"), available)
    there, state = first_choice(fedppo(share=0.5, availability="intersect"), available)
    assert int(anyone.sum()) == 10
    assert (anyone & ~available).any()
    assert torch.equal(there, anyone & available)
    assert int(state.asked.counts.sum()) == 10


def test_at_least_one_client_is_asked() -> None:
    assert int(first_choice(fedppo(share=0.0), torch.ones(4).bool())[0].sum()) == 1
    assert first_choice(fedppo(), torch.ones(1).bool())[0].tolist() == [True]


def test_choices_come_from_the_key_alone() -> None:
    available = torch.ones(50).bool()
    (a, first), (b, second), (c, other) = (first_choice(fedppo(), available, seed) for seed in (0, 0, 1))
    assert torch.equal(a, b)
    assert torch.equal(first.policy.theta, second.policy.theta)
    assert not torch.equal(a, c)
    assert not torch.equal(first.policy.theta, other.policy.theta)
    state = first
    _, state = fedppo().select.apply(state, available, nobody(50), at(1, 50))
    assert torch.equal(state.policy.theta, first.policy.theta)  # drawn once
    assert state.asked.who.tolist() != first.asked.who.tolist()


# Learning


def test_the_policy_is_updated_after_one_complete_round_and_then_after_every_five() -> None:
    method, clients = fedppo(share=0.5, hidden=4), 4
    state, last, steps = method.select.init(clients), nobody(clients), []
    for t in range(14):
        chosen, state = method.select.apply(state, torch.ones(clients).bool(), last, at(t, clients))
        ids = chosen.nonzero().flatten().tolist()
        last = answers(clients, *({k: 0.1 * k for k in ids} for _ in range(3)))
        steps.append(int(state.policy.steps))
    assert steps == [0, 0, 5, 5, 5, 5, 5, 10, 10, 10, 10, 10, 15, 15]


def test_the_policy_comes_to_prefer_clients_that_are_rewarded() -> None:
    clients, good = 10, 3
    method = fedppo(share=0.2, hidden=8, policy_lr=1e-2, discount=0.0, update_every=2)
    state, last, hits = method.select.init(clients), nobody(clients), []
    for t in range(120):
        chosen, state = method.select.apply(state, torch.ones(clients).bool(), last, at(t, clients))
        ids = chosen.nonzero().flatten().tolist()
        hits.append(int(chosen[:good].sum()))
        accuracies = {k: 0.9 if k < good else 0.1 for k in ids}
        last = answers(clients, dict.fromkeys(ids, 0.5), accuracies, dict.fromkeys(ids, 1.0))
    assert sum(hits[:10]) / 10 < 1.2  # 0.6 of 2 by chance
    assert sum(hits[-20:]) / 20 > 1.7


# Form, size and errors


@pytest.mark.parametrize("availability", get_args(Availability))
def test_state_keeps_its_form_and_the_rule_is_pure(availability: Any) -> None:
    clients = 9
    rule = fedppo(share=0.4, availability=availability, hidden=3, update_every=1).select
    state, last = rule.init(clients), nobody(clients)
    form = [(path, leaf.shape, leaf.dtype) for path, leaf in leaves(state) if isinstance(leaf, Tensor)]
    assert len(form) == len(list(leaves(state)))
    for t in range(8):
        available = coins(Key.root(t), 0.6, clients) if t != 4 else torch.zeros(clients).bool()
        before = {path: leaf.clone() for path, leaf in leaves(state) if isinstance(leaf, Tensor)}
        chosen, new = rule.apply(state, available, last, at(t, clients))
        again, _ = rule.apply(state, available, last, at(t, clients))
        assert torch.equal(chosen, again)
        assert all(torch.equal(leaf, before[path]) for path, leaf in leaves(state) if isinstance(leaf, Tensor))
        state = new
        assert form == [(path, leaf.shape, leaf.dtype) for path, leaf in leaves(state) if isinstance(leaf, Tensor)]
        ids = chosen.nonzero().flatten().tolist()
        last = answers(clients, *({k: 0.1 * k for k in ids} for _ in range(3))) if ids else nobody(clients)


def test_five_thousand_clients_are_no_trouble() -> None:
    clients = 5000
    rule = fedppo().select
    state, last = rule.init(clients), nobody(clients)
    for t in range(4):
        chosen, state = rule.apply(state, torch.ones(clients).bool(), last, at(t, clients))
        ids = chosen.nonzero().flatten().tolist()
        assert len(ids) == 500
        last = answers(clients, *(dict.fromkeys(ids, 0.5) for _ in range(3)))
    assert int(state.policy.steps) == 5
    assert sum(leaf.numel() for _, leaf in leaves(state) if isinstance(leaf, Tensor)) < 1000 * clients


def test_what_clients_must_report_is_said_when_it_is_missing() -> None:
    took_part = Seen(torch.ones(4).bool(), {"check/received": torch.ones(4), "loss/first": torch.ones(4)})
    with pytest.raises(MethodError, match="without reporting check/trained") as caught:
        hear(fedppo().select.init(4), took_part)
    assert "judging_client" in caught.value.hint


def test_options_reach_the_rules() -> None:
    seen = Seen(torch.ones(2).bool(), {"samples": torch.tensor([1.0, 3.0])})
    for mean, expected in (("participants", [0.5, 0.5]), ("samples", [0.25, 0.75])):
        weigh = fedppo(mean=mean).weigh  # type: ignore[arg-type]  # mypy widens a literal in a loop to str
        assert weigh.apply(weigh.init(2), seen, at(0, 2))[0].tolist() == expected
    w, _ = fedppo(server_lr=0.5).server.apply((), torch.zeros(2), torch.ones(2), seen, at(0, 2))
    assert w.tolist() == [0.5, 0.5]
    assert blank_choice(4, 2, 3).s.shape == (3, 5)


# Clients


def linear_model(features: int = 3, classes: int = 2) -> Model:
    """The smallest classifier: one linear layer, without an encoder."""

    def classify(w: Tensor, z: Tensor, masks: tuple[Tensor, ...]) -> Tensor:
        return z @ w[classes:].view(features, classes) + w[:classes]

    size = classes * (features + 1)
    return Model(size, lambda key: torch.zeros(size), lambda w, x, masks: x, classify)


def samples(key: Key, *shape: int) -> Batch:
    """Samples whose first feature tells their class."""
    y = torch.arange(int(torch.tensor(shape).prod())).reshape(shape) % 2
    x = normal(key, *shape, 3) * 0.3
    x[..., 0] += 2.0 * y - 1
    return Batch(x, y)


def work(k: int, check: Batch | None) -> Work:
    return Work(samples(Key.root(k), 4, 8), torch.tensor(32.0), check)


def test_clients_judge_by_held_out_samples_and_by_nothing_else() -> None:
    model, rule = linear_model(), fedppo().client
    assert rule.checks
    w, held_out = -normal(Key.root(5), model.size).abs(), samples(Key.root(9), 40)
    sent = Downlink(w, torch.tensor(1.0, dtype=F64), {})
    uplink = train_client(rule, model, sent, (), work(0, held_out))
    for name, v in (("received", w), ("trained", w + uplink.update)):
        correct = (model.logits(v, held_out.x).argmax(-1) == held_out.y).double().mean()
        assert float(uplink.scalars[f"check/{name}"]) == pytest.approx(float(correct))
    assert uplink.scalars["check/trained"] > uplink.scalars["check/received"]
    swapped = train_client(rule, model, sent, (), work(0, held_out._replace(y=1 - held_out.y)))
    assert float(swapped.scalars["check/trained"]) == pytest.approx(1 - float(uplink.scalars["check/trained"]))
    assert torch.equal(swapped.vector, uplink.vector)
    with pytest.raises(MethodError, match="held-out") as caught:
        train_client(rule, model, sent, (), work(0, None))
    assert "Work.check" in caught.value.hint


def test_what_judges_is_neither_trained_on_nor_from_the_test_set() -> None:
    rows = np.arange(90, dtype=np.float32)[:, None]
    dataset = from_arrays(rows[:60], np.arange(60) % 2, rows[60:], np.arange(30) % 2)
    owned = [np.arange(k, 60, 3) for k in range(3)]
    holds_out = fedppo().client.checks
    population = Population(
        dataset, owned, linear_model(1), Key.root(0), iterations=20, batch_size=5, holds_out=holds_out
    )
    for k in range(3):
        trained, judged = set[float](), set[float]()
        for t in range(3):
            it = population.work(t, k)
            assert it.check is not None
            trained |= set(it.batches.x.flatten().tolist())
            judged |= set(it.check.x.flatten().tolist())
        assert trained
        assert judged
        assert not trained & judged
        assert trained | judged == set(range(k, 60, 3))


def test_clients_are_the_same_one_by_one_and_under_vmap() -> None:
    model, rule = linear_model(), fedppo().client
    sent = Downlink(normal(Key.root(1), model.size), torch.tensor(0.5, dtype=F64), {})
    works = [work(k, samples(Key.root(100 + k), 10)) for k in range(3)]

    def one(lane: Work) -> tuple[Tensor, Any]:
        uplink = train_client(rule, model, sent, (), lane, by_transform)
        return uplink.vector, uplink.scalars

    vectors, scalars = torch.vmap(one)(stack(works))
    for i, it in enumerate(works):
        alone = train_client(rule, model, sent, (), it, by_autograd)
        torch.testing.assert_close(vectors[i], alone.vector)
        for name in ("check/received", "check/trained"):
            assert float(scalars[name][i]) == pytest.approx(float(alone.scalars[name]))


@pytest.mark.parametrize("availability", get_args(Availability))
def test_a_whole_run_learns_a_separable_problem(availability: Any) -> None:
    model, method, clients = linear_model(), fedppo(share=0.3, availability=availability), 10

    def participate(sent: Downlink, memory: Any, k: int, now: Round) -> Uplink:
        key = Key.root(k)
        batches, check = samples(key.fold("batch", now.t), 4, 8), samples(key.fold("check"), 16)
        return train_client(method.client, model, sent, memory, Work(batches, torch.tensor(48.0), check))

    present = coins(Key.root(0), 0.5, 30, clients)
    present[7] = False
    played = play_rounds(method, SmallEngine(method.client, participate), present, w=torch.zeros(8, dtype=F64))
    judged = [float(state.select.s[0]) for state in played.states]
    assert judged[1] < 0.8
    assert judged[-1] > 0.95
    assert int(played.states[-1].select.policy.steps) >= 5 * 4
    asked_for = [outcome.replies.seen.took_part for outcome in played.outcomes]
    assert max(int(who.sum()) for who in asked_for) == 3
    outside = sum(int((who & ~here).sum()) for who, here in zip(asked_for, present, strict=True))
    assert (outside > 0) == (availability == "override")
