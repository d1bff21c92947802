import math

import torch

from pmfl.core.keys import Key
from pmfl.core.types import Batch, Seen, nobody
from tests.toy import draw_batch, normal, tiny_model


def test_a_mini_batch_is_one_of_many() -> None:
    model = tiny_model(keep=0.5)
    batches = draw_batch(model, Key.root(0), 4, 3)
    one = batches.at(2)
    assert torch.equal(one.x, batches.x[2])
    assert torch.equal(one.y, batches.y[2])
    assert [mask.shape for mask in one.masks] == [mask.shape[1:] for mask in batches.masks]
    assert torch.equal(one.masks[1], batches.masks[1][2])


def test_without_dropout_there_are_no_masks() -> None:
    assert Batch(torch.zeros(2, 3, 1), torch.zeros(2, 3)).at(0).masks == ()


def test_logits_are_those_of_representation_and_classifier() -> None:
    model = tiny_model(keep=0.5)
    w, batch = model.init(Key.root(1)), draw_batch(model, Key.root(2), 5)
    z = model.represent(w, batch.x, batch.masks)
    assert torch.equal(model.logits(w, batch.x, batch.masks), model.classify(w, z, batch.masks))
    assert torch.equal(model.logits(w, batch.x), model.classify(w, model.represent(w, batch.x, ()), ()))
    assert not torch.equal(model.logits(w, batch.x), model.logits(w, batch.x, batch.masks))


def test_who_took_part_comes_in_order_of_client() -> None:
    seen = Seen(torch.tensor([False, True, False, True]), {"loss": torch.tensor([1.0, 4.0])})
    assert seen.clients.tolist() == [1, 3]
    assert seen.mean("loss") == 2.5


def test_the_mean_of_what_nobody_reported_is_nan() -> None:
    assert math.isnan(nobody(3).mean("loss"))
    assert math.isnan(Seen(torch.tensor([False]), {"loss": torch.zeros(0)}).mean("loss"))


def test_means_are_taken_in_double_precision() -> None:
    values = torch.full((1000,), 0.1) + normal(Key.root(0), 1000).float() * 1e-7
    seen = Seen(torch.ones(1000, dtype=torch.bool), {"loss": values})
    assert seen.mean("loss") == float(values.double().mean())


def test_nobody_is_nobody() -> None:
    seen = nobody(4)
    assert seen.took_part.tolist() == [False] * 4
    assert seen.clients.numel() == 0
