from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy

from pmfl.core.client import by_autograd, by_transform, train_client
from pmfl.core.keys import Key
from pmfl.core.method import plain_client
from pmfl.core.ring import empty_ring
from pmfl.core.types import Batch, Local, Model
from pmfl.methods.contrast import contrast
from pmfl.methods.moon import NO_POSITIVES, moon
from tests.methods.test_contrast import PAST, SENT, Z
from tests.methods.test_pmfl import bits, close, samples_of, watched
from tests.oracle import local_training as oracle
from tests.toy import Sizes, downlink, draw_work, examples, normal, play_toy, tiny_model

LOGITS = torch.tensor([[2, 0, 1], [0, 1, 0]]).double()
LABELS = torch.tensor([0, 2])


@pytest.mark.parametrize(("previous", "contrastive", "total"), [(1, 0.330085, 1.309610), (2, 0.929984, 1.909509)])
def test_vectors(previous: int, contrastive: float, total: float) -> None:
    valid = torch.ones(previous, dtype=torch.bool)
    l_con = contrast(Z, SENT, PAST[:previous], valid, NO_POSITIVES, 0.5)
    assert float(l_con) == pytest.approx(contrastive, abs=1e-6)
    assert float(cross_entropy(LOGITS, LABELS)) == pytest.approx(0.979525, abs=1e-6)
    assert float(cross_entropy(LOGITS, LABELS) + l_con) == pytest.approx(total, abs=1e-6)


@pytest.mark.parametrize(("previous", "total"), [(1, 1.309610), (2, 1.909509)])
def test_the_whole_loss_on_the_vectors(previous: int, total: float) -> None:
    """Through the client rule, with a model that looks representations up: w is the number of a model."""
    table = torch.stack([Z, SENT, *PAST])

    def represent(w: torch.Tensor, x: torch.Tensor, masks: Any) -> torch.Tensor:
        return table[int(w)].repeat(x.shape[0] // 2, 1)

    model = Model(1, lambda key: torch.zeros(1), represent, lambda w, z, masks: LOGITS)
    rule = moon(local_models=previous).client
    batches = Batch(torch.zeros(2, 2, 1), LABELS.expand(2, 2))
    ring = empty_ring(previous, torch.zeros(1)).push(*(torch.tensor([2.0 + j]) for j in range(previous)))
    local = Local(torch.tensor([0.0]), downlink(torch.tensor([1.0])), ring, e=1)
    local = local._replace(scratch=rule.begin(model, local, batches))
    value, scalars = rule.loss(model, local, batches.at(1))
    assert float(value) == pytest.approx(total, abs=1e-6)
    assert float(scalars["contrast"]) == pytest.approx(total - 0.979525, abs=2e-6)


@examples(20)
@given(
    seed=st.integers(0, 2**32),
    n=st.sampled_from([1, 2, 3]),
    iterations=st.sampled_from([1, 2, 3]),
    keep=st.sampled_from([1.0, 0.7]),
    differentiate=st.sampled_from([by_autograd, by_transform]),
)
def test_training_agrees_with_the_method_written_out(
    seed: int, n: int, iterations: int, keep: float, differentiate: Any
) -> None:
    key, sizes = Key.root(seed), Sizes()
    model = tiny_model(sizes, keep=keep)
    rule = moon(contrast_weight=2.0, temperature=0.3, local_models=n).client
    memory = rule.init(normal(key.fold("start"), model.size))
    previous: list[list[float]] = []
    for t in range(3):
        received = normal(key.fold("received", t), model.size)
        work = draw_work(model, key.fold("work", t), iterations=iterations, batch=2)
        uplink = train_client(rule, model, downlink(received), memory, work, differentiate)
        delta, previous = oracle.moon_participation(
            sizes.layers, received.tolist(), samples_of(work), previous, lr=0.1, weight=2.0, tau=0.3, n=n
        )
        memory = uplink.memory
        close(uplink.vector, delta)
        close(memory.rows[memory.valid], previous)


def test_a_first_participation_has_no_contrast_and_trains_plainly() -> None:
    model = tiny_model()
    rule = moon().client
    w = normal(Key.root(0), model.size)
    work = draw_work(model, Key.root(1), iterations=4, batch=3)
    uplink = train_client(rule, model, downlink(w), rule.init(w), work)
    assert float(uplink.scalars["contrast/first"]) == float(uplink.scalars["contrast/last"]) == 0.0
    plain = train_client(plain_client, model, downlink(w), (), work)
    torch.testing.assert_close(uplink.vector, plain.vector, rtol=0, atol=1e-14)
    again = train_client(rule, model, downlink(w), uplink.memory, work)
    assert float(again.scalars["contrast/first"]) > 0


@pytest.mark.parametrize("keep", [1.0, 0.7])
def test_a_frozen_model_sees_all_mini_batches_in_one_forward(keep: float) -> None:
    model = tiny_model(keep=keep)
    rule = moon(local_models=2).client
    key = Key.root(2)
    memory = rule.init(normal(key, model.size)).push(*(normal(key.fold(i), model.size) for i in range(2)))
    work = draw_work(model, key, iterations=5, batch=3)
    frozen: list[tuple[torch.Tensor, torch.Tensor]] = []
    trained: list[tuple[torch.Tensor, torch.Tensor]] = []
    sent = downlink(normal(key.fold("sent"), model.size))
    train_client(rule, watched(model, frozen, trained), sent, memory, work)
    assert len(trained) == 5
    seen = {bits(w): x.shape[0] for w, x in frozen}
    # Without dropout, the received model's representations of iteration 0 are the local model's.
    assert seen == {bits(memory.rows[0]): 15, bits(memory.rows[1]): 15, bits(sent.w): 12 if keep == 1.0 else 15}
    assert len(frozen) == 3


def test_without_weight_it_is_fedavg() -> None:
    from pmfl.methods.fedavg import fedavg

    assert moon(contrast_weight=0).client is plain_client
    assert moon().client is not plain_client
    assert torch.equal(play_toy(moon(contrast_weight=0)).path, play_toy(fedavg()).path)
