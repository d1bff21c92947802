from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pmfl.core.client import by_autograd, by_transform, train_client
from pmfl.core.keys import Key
from pmfl.core.method import plain_client
from pmfl.methods.fedavg import fedavg
from pmfl.methods.fedprox import fedprox
from tests.methods.test_pmfl import close, samples_of
from tests.oracle import local_training as oracle
from tests.toy import Sizes, downlink, draw_work, examples, normal, play_toy, points, tiny_model

PATH = (
    "(.189,0) (.153279,.0945) (.124309,.45464) (.100815,.463213) (.270761,.375665) (.270761,.375665) "
    "(.219587,.399165) (.367085,.276473)"
)


def test_toy() -> None:
    torch.testing.assert_close(play_toy(fedprox(proximal=0.1)).path, points(PATH), rtol=0, atol=1e-6)


@pytest.mark.parametrize("server_lr", [0.5, 1.0])
def test_without_a_pull_it_is_fedavg(server_lr: float) -> None:
    pulled, plain = play_toy(fedprox(proximal=0, server_lr=server_lr)), play_toy(fedavg(server_lr=server_lr))
    assert torch.equal(pulled.path, plain.path)


@examples(15)
@given(
    seed=st.integers(0, 2**32),
    mu=st.sampled_from([0.0, 0.01, 1.0]),
    keep=st.sampled_from([1.0, 0.7]),
    differentiate=st.sampled_from([by_autograd, by_transform]),
)
def test_training_agrees_with_the_method_written_out(seed: int, mu: float, keep: float, differentiate: Any) -> None:
    key, sizes = Key.root(seed), Sizes()
    model = tiny_model(sizes, keep=keep)
    received = normal(key, model.size)
    work = draw_work(model, key, iterations=3, batch=2)
    uplink = train_client(fedprox(proximal=mu).client, model, downlink(received), (), work, differentiate)
    delta = oracle.fedprox_participation(sizes.layers, received.tolist(), samples_of(work), lr=0.1, mu=mu)
    close(uplink.vector, delta)


def test_the_loss_on_record_is_the_plain_one() -> None:
    model = tiny_model()
    w = normal(Key.root(0), model.size)
    work = draw_work(model, Key.root(1), iterations=1, batch=3)
    pulled = train_client(fedprox(proximal=5.0).client, model, downlink(w), (), work)
    plain = train_client(plain_client, model, downlink(w), (), work)
    assert torch.equal(pulled.scalars["loss/first"], plain.scalars["loss/first"])
