from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cross_entropy

from pmfl.core.client import by_autograd, by_transform, train_client
from pmfl.core.keys import Key
from pmfl.core.types import Batch, Downlink, Model, Scalar, Scalars, Vector, Work
from pmfl.errors import SpecError
from pmfl.methods.pmfl import pmfl
from pmfl.study.run import Run
from pmfl.study.spec import run_spec
from pmfl.world.masks import draw_masks
from pmfl.world.networks import MODELS
from pmfl.world.precision import in_bfloat16

KEY = Key.root(0)


def some(name: str) -> tuple[Model, Batch]:
    model = MODELS[name]((8, 8, 3), 10)
    x = torch.randn((2, 4, 8, 8, 3), generator=KEY.torch()).permute(0, 1, 4, 2, 3)
    y = torch.arange(8).view(2, 4)
    return model, Batch(x, y, draw_masks(model, KEY, (2, 4)) if model.masks else ())


@pytest.mark.parametrize("name", ["cnn-cifar10", "cnn-cifar100", "mlp"])
def test_the_gradient_is_the_same_to_a_few_percent(name: str) -> None:
    model, batches = some(name)
    short, batch, w = in_bfloat16(model), batches.at(0), model.init(KEY)

    def objective(of: Model, w: Vector) -> tuple[Scalar, Scalars]:
        return cross_entropy(of.logits(w, batch.x, batch.masks), batch.y), {}

    exact, value, _ = by_autograd(lambda w: objective(model, w), w)
    fast, near, _ = by_autograd(lambda w: objective(short, w), w)
    assert fast.dtype == torch.float32
    assert 0 < float((fast - exact).norm() / exact.norm()) < 0.05
    assert float((near - value).abs()) < 0.05
    transformed, _, _ = by_transform(lambda w: objective(short, w), w)
    assert float((transformed - fast).norm() / fast.norm()) < 0.05


def test_a_call_without_a_graph_does_not_serve_one_that_needs_it() -> None:
    model, batches = some("mlp")
    short, batch = in_bfloat16(model), batches.at(0)
    w = model.init(KEY).requires_grad_()
    with torch.no_grad():
        z = short.represent(w, batch.x, ())
    logits = short.classify(w, z, ())
    (gradient,) = torch.autograd.grad(logits.sum(), w)
    assert float(gradient.abs().sum()) > 0
    again = torch.autograd.grad(short.logits(w, batch.x, ()).sum(), w)[0]
    assert torch.equal(again, torch.autograd.grad(short.logits(w, batch.x, ()).sum(), w)[0])


def test_a_client_of_the_paper_trains_with_it() -> None:
    model, batches = some("cnn-cifar10")
    rule, w = pmfl().client, model.init(KEY)
    sent = Downlink(w, torch.tensor(0.01), {})
    work = Work(batches, torch.tensor(8.0))
    memory = train_client(rule, model, sent, rule.init(w), work).memory
    exact = train_client(rule, model, sent, memory, work).vector
    fast = train_client(rule, in_bfloat16(model), sent, memory, work).vector
    assert 0 < float((fast - exact).norm() / exact.norm()) < 0.1


def spec(**engine: object) -> dict[str, object]:
    small = {"rounds": 3, "iterations": 2, "batch_size": 4, "model": {"name": "mlp", "hidden": 8}}
    return {
        "method": "pmfl",
        "data": {"clients": 6},
        "participation": {"mean": 0.5},
        "training": small,
        "engine": engine,
    }


def test_fast_is_another_run_of_the_same_question() -> None:
    exact, fast = run_spec(spec()), run_spec(spec(profile="fast"))
    assert exact.question_id == fast.question_id
    assert exact.run_id == run_spec(spec(profile="exact")).run_id != fast.run_id
    assert fast.engine.arithmetic()["profile"] == "fast"


@pytest.mark.parametrize("lanes", [1, 2])
def test_fast_plays_and_keeps_its_history_in_half_the_bytes(lanes: int) -> None:
    exact, fast = Run(run_spec(spec(lanes=lanes))), Run(run_spec(spec(lanes=lanes, profile="fast")))
    for run in (exact, fast):
        list(run)
        run.close()
    assert torch.allclose(exact.w, fast.w, atol=0.02)
    assert not torch.equal(exact.w, fast.w)
    # Five models of the history in half, the last one whole.
    assert fast.engine.memories.size() / exact.engine.memories.size() == pytest.approx(3.5 / 6, abs=0.01)


def test_double_precision_cannot_be_fast() -> None:
    with pytest.raises(SpecError, match="double precision cannot be fast"):
        run_spec(spec(profile="fast", dtype="float64"))
