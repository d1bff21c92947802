from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from pmfl.core.client import by_autograd, by_transform, train_client
from pmfl.core.keys import Key
from pmfl.core.method import ClientRule, plain_client
from pmfl.core.tree import stack
from pmfl.core.types import Batch, Local, Model, Scalar, Scalars, Uplink, Work
from tests.methods.test_pmfl import samples_of
from tests.oracle import local_training
from tests.toy import NO_MODEL, Sizes, downlink, draw_work, examples, normal, tiny_model

DIFFERENTIATE = [by_autograd, by_transform]


@examples(12)
@given(seed=st.integers(0, 2**32), keep=st.sampled_from([1.0, 0.6]), differentiate=st.sampled_from(DIFFERENTIATE))
def test_plain_training_agrees_with_algorithm_1_written_out(seed: int, keep: float, differentiate: Any) -> None:
    key, sizes = Key.root(seed), Sizes()
    model = tiny_model(sizes, keep=keep)
    received, work = normal(key, model.size), draw_work(model, key, iterations=4, batch=3)
    uplink = train_client(plain_client, model, downlink(received, lr=0.3), (), work, differentiate)
    delta = local_training.fedprox_participation(sizes.layers, received.tolist(), samples_of(work), lr=0.3, mu=0.0)
    torch.testing.assert_close(uplink.vector, torch.tensor(delta, dtype=torch.float64), rtol=0, atol=1e-10)


@examples(12)
@given(seed=st.integers(0, 2**32), keep=st.sampled_from([1.0, 0.6]))
def test_both_ways_to_differentiate_agree(seed: int, keep: float) -> None:
    key, model = Key.root(seed), tiny_model(keep=keep)
    work = draw_work(model, key, iterations=3, batch=4)
    sent = downlink(normal(key, model.size))
    one, other = (train_client(plain_client, model, sent, (), work, way) for way in DIFFERENTIATE)
    torch.testing.assert_close(one.vector, other.vector, rtol=0, atol=1e-14)
    assert one.scalars.keys() == other.scalars.keys()
    for name, value in one.scalars.items():
        torch.testing.assert_close(value, other.scalars[name], rtol=0, atol=1e-14)


@pytest.mark.parametrize("keep", [1.0, 0.6])
def test_lanes_train_as_one_by_one(keep: float) -> None:
    key, model = Key.root(4), tiny_model(keep=keep)
    works = [draw_work(model, key.fold(k), iterations=3, batch=4) for k in range(4)]
    sent = downlink(normal(key, model.size))

    def one(batches: Batch, samples: Tensor) -> tuple[Tensor, Scalars]:
        uplink = train_client(plain_client, model, sent, (), Work(batches, samples), by_transform)
        return uplink.vector, uplink.scalars

    vectors, scalars = torch.vmap(one)(stack([w.batches for w in works]), stack([w.samples for w in works]))
    for k, work in enumerate(works):
        alone = train_client(plain_client, model, sent, (), work)
        torch.testing.assert_close(vectors[k], alone.vector, rtol=0, atol=1e-13)
        for name, value in alone.scalars.items():
            torch.testing.assert_close(scalars[name][k], value, rtol=0, atol=1e-13)


@pytest.mark.parametrize("differentiate", DIFFERENTIATE)
def test_the_order_of_calls_and_what_each_sees(differentiate: Any) -> None:
    """begin, then (loss, step) with the model before the step, then reply with the trained model."""
    calls: list[tuple[Any, ...]] = []

    def begin(model: Model, local: Local[int], batches: Batch) -> str:
        calls.append(("begin", local.w.tolist(), local.e, local.memory, batches.y.shape[0]))
        return "made by begin"

    def loss(model: Model, local: Local[int], batch: Batch) -> tuple[Scalar, Scalars]:
        calls.append(("loss", local.e, local.scratch, local.memory, batch.y.tolist()))
        return local.w.sum(), {"mine": local.w.detach().sum()}

    def step(model: Model, local: Local[int], gradient: Tensor) -> tuple[Tensor, str]:
        calls.append(("step", local.e, local.w.tolist(), gradient.tolist(), torch.is_grad_enabled()))
        return local.w - gradient, f"made by step {local.e}"

    def reply(model: Model, local: Local[int], delta: Tensor, check: Batch | None) -> Uplink:
        calls.append(("reply", local.w.tolist(), local.scratch, delta.tolist(), check, torch.is_grad_enabled()))
        return Uplink(2 * delta, local.memory + 1, {"said": torch.tensor(5.0)}, delta)

    rule = ClientRule(init=lambda w: 0, begin=begin, loss=loss, step=step, reply=reply)
    work = Work(Batch(torch.zeros(2, 1, 1), torch.tensor([[7], [8]])), torch.tensor(30))
    uplink = train_client(rule, NO_MODEL, downlink(torch.tensor([1.0, 2.0])), 41, work, differentiate)
    assert calls == [
        ("begin", [1.0, 2.0], 0, 41, 2),
        ("loss", 0, "made by begin", 41, [7]),
        ("step", 0, [1.0, 2.0], [1.0, 1.0], False),
        ("loss", 1, "made by step 0", 41, [8]),
        ("step", 1, [0.0, 1.0], [1.0, 1.0], False),
        ("reply", [-1.0, 0.0], "made by step 1", [-2.0, -2.0], None, False),
    ]
    assert uplink.vector.tolist() == [-4.0, -4.0]
    assert uplink.memory == 42
    assert {name: float(value) for name, value in uplink.scalars.items()} == {
        "loss/first": 3.0,
        "loss/last": 1.0,
        "mine/first": 3.0,
        "mine/last": 1.0,
        "said": 5.0,
        "samples": 30.0,
    }


def test_a_rule_that_checks_is_given_held_out_samples() -> None:
    model = tiny_model()
    work = draw_work(model, Key.root(0), iterations=1, batch=2, check=5)

    def reply(model: Model, local: Local[Any], delta: Tensor, check: Batch | None) -> Uplink:
        assert check is not None
        return Uplink(delta, (), {"checked": torch.tensor(check.y.numel())}, delta)

    rule = ClientRule(init=lambda w: (), reply=reply, checks=True)
    uplink = train_client(rule, model, downlink(normal(Key.root(1), model.size)), (), work)
    assert int(uplink.scalars["checked"]) == 5


@pytest.mark.parametrize("differentiate", DIFFERENTIATE)
def test_nothing_that_goes_in_is_changed_and_nothing_that_comes_out_has_a_graph(differentiate: Any) -> None:
    model = tiny_model()
    w, work = normal(Key.root(0), model.size), draw_work(model, Key.root(1), iterations=3, batch=2)
    before = w.clone()
    uplink = train_client(plain_client, model, downlink(w), (), work, differentiate)
    assert torch.equal(w, before)
    assert not w.requires_grad
    assert not uplink.vector.requires_grad
    assert not any(value.requires_grad for value in uplink.scalars.values())
