"""What holds for every method that comes with the package."""

import inspect
import re
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor

from pmfl.core.client import by_transform, train_client
from pmfl.core.keys import Key
from pmfl.core.tree import leaves, stack
from pmfl.core.types import Batch, Model, Round, Work
from pmfl.methods import BUILT_IN
from tests.toy import draw_work, normal, play_rounds, tiny_model, training_engine


def factory(name: str) -> Any:
    module, function = BUILT_IN[name].split(":")
    return getattr(import_module(module), function)


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_parameter_has_a_line_in_the_docstring(name: str) -> None:
    make = factory(name)
    parameters = inspect.signature(make).parameters
    documented = re.findall(r"^ {4}(\w+): \S.*$", make.__doc__, re.MULTILINE)
    assert documented == list(parameters)
    assert all(parameter.kind is parameter.KEYWORD_ONLY for parameter in parameters.values())
    assert all(parameter.default is not parameter.empty for parameter in parameters.values())


@pytest.mark.parametrize("name", BUILT_IN)
def test_the_docstring_starts_with_a_sentence(name: str) -> None:
    first = factory(name).__doc__.splitlines()[0]
    assert first.endswith(".")
    assert first[0].isupper()


def separable(model: Model, key: Key) -> Work:
    """Work whose labels follow from the inputs."""
    work = draw_work(model, key, iterations=5, batch=16, check=16)
    assert work.check is not None

    def labelled(batch: Batch) -> Batch:
        return batch._replace(y=(batch.x[..., 0] > 0).long() + (batch.x[..., 1] > 0.5).long())

    return work._replace(batches=labelled(work.batches), check=labelled(work.check))


def mean_loss(model: Model, w: Tensor, works: list[Work]) -> float:
    x, y = (torch.cat([getattr(work.batches, part).flatten(0, 1) for work in works]) for part in ("x", "y"))
    return float(torch.nn.functional.cross_entropy(model.logits(w, x), y))


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_round_with_everybody_lowers_the_loss(name: str) -> None:
    """The sign of the step, end to end; and again after a few rounds, when histories are not empty."""
    model, key = tiny_model(), Key.root(2)
    works = [separable(model, key.fold("work", k)) for k in range(4)]
    w, method = 0.3 * normal(key, model.size), factory(name)()
    rates = torch.ones(4, dtype=torch.float64)
    everybody = torch.ones(4, 4, dtype=torch.bool)
    played = play_rounds(method, training_engine(method.client, model, works), everybody, w=w, total=50, rates=rates)
    losses = [mean_loss(model, now, works) for now in (w, *played.path)]
    assert losses[1] < losses[0]
    assert losses[-1] < losses[1]


@pytest.mark.parametrize("name", BUILT_IN)
def test_lanes_train_as_one_by_one(name: str) -> None:
    """Under vmap with gradients by transform, from memories that hold something."""
    model, key = tiny_model(keep=0.8), Key.root(3)
    method = factory(name)()
    rule, server = method.client, method.server
    w = normal(key, model.size)
    sent = server.send(server.init(w), w, Round(0, 10, 4, 0.1, Key.root(0)))
    works = [draw_work(model, key.fold("now", k), iterations=3, batch=4, check=4) for k in range(3)]
    memories = [
        train_client(
            rule, model, sent, rule.init(w), draw_work(model, key.fold("old", k), iterations=3, batch=4, check=4)
        ).memory
        for k in range(3)
    ]
    alone = [train_client(rule, model, sent, m, work) for m, work in zip(memories, works, strict=True)]

    def one(memory: Any, work: Work) -> tuple[Any, ...]:
        return tuple(train_client(rule, model, sent, memory, work, by_transform))

    lanes = torch.vmap(one, in_dims=(None if memories[0] == () else 0, 0))(stack(memories), stack(works))
    for (path, together), (_, apart) in zip(leaves(lanes), leaves(tuple(stack(alone))), strict=True):
        torch.testing.assert_close(together, apart, rtol=0, atol=1e-12, msg=path)
