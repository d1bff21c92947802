from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from pmfl.core.method import ClientRule
from pmfl.core.types import Downlink, Round, Seen
from pmfl.engines.local import LocalEngine, exactly
from pmfl.errors import Diverged, EngineError, MethodError
from pmfl.study.run import Run
from pmfl.study.spec import run_spec


def run(**engine: object) -> Run:
    method = engine.pop("method", "pmfl")
    workers = engine.pop("workers", 1)
    given = {
        "method": method,
        "data": {"clients": 12},
        "participation": {"mean": 0.4},
        "training": {"rounds": 6, "iterations": 3, "batch_size": 4, "model": {"name": "mlp", "hidden": 8}},
        "evaluation": {"every": 3},
        "engine": engine,
    }
    return Run(run_spec(given), workers=workers)  # type: ignore[arg-type]


def played(one: Run) -> torch.Tensor:
    for _ in one:
        pass
    one.close()
    return one.w


@pytest.mark.parametrize("method", ["pmfl", "mifa", "fedvarp", "moon", "fedhyper", "fedppo"])
def test_two_workers_give_the_bits_of_one(method: str) -> None:
    assert torch.equal(played(run(method=method)), played(run(method=method, workers=2)))


def test_evaluation_is_a_mean_over_samples() -> None:
    one = run()
    dataset = one.world.dataset
    scores = one.engine.evaluate(one.w, dataset.test, dataset)
    x = torch.from_numpy(dataset.test.x.astype(np.float32) / 255).permute(0, 3, 1, 2)
    x = (x - dataset.mean[0]) / dataset.std[0]
    logits = one.model.logits(one.w, x)
    y = torch.from_numpy(dataset.test.y)
    assert torch.allclose(scores.loss.mean().float(), cross_entropy(logits, y), atol=1e-5)
    assert torch.equal(scores.correct, logits.argmax(-1) == y)


def test_a_weighted_sum_names_who_diverged() -> None:
    one = run()
    state = one.state.server
    now = Round(3, 6, 12, 0.1, one.key)
    sent = Downlink(state.w, torch.tensor(float("nan")), {})
    chosen = torch.zeros(12, dtype=torch.bool)
    chosen[[2, 7]] = True
    replies = one.engine.train(sent, chosen, now)
    with pytest.raises(Diverged, match="round 3") as caught:
        replies.weighted_sum(torch.ones(12, dtype=torch.float64))
    assert caught.value.clients == [2, 7]
    assert caught.value.exit_code == 4


def test_a_round_without_anybody_sums_to_zero() -> None:
    one = run()
    sent = Downlink(one.w, torch.tensor(0.1), {})
    replies = one.engine.train(sent, torch.zeros(12, dtype=torch.bool), Round(0, 6, 12, 0.1, one.key))
    assert replies.seen.scalars == {}
    assert replies.updates == []
    assert not replies.weighted_sum(torch.ones(12)).any()
    assert isinstance(replies.seen, Seen)


def test_a_rule_that_raises_is_named_with_round_and_client() -> None:
    def broken(w: torch.Tensor) -> tuple[()]:
        raise KeyError("nothing here")

    one = run()
    engine = LocalEngine(ClientRule(init=broken), one.model, one.world.population)
    chosen = torch.zeros(12, dtype=torch.bool)
    chosen[4] = True
    with pytest.raises(MethodError, match="round 5, client 4: a client rule raised KeyError"):
        engine.train(Downlink(one.w, torch.tensor(0.1), {}), chosen, Round(5, 6, 12, 0.1, one.key))


def test_what_an_engine_cannot_do_is_refused() -> None:
    one = run()
    with pytest.raises(EngineError, match="count from 1"):
        LocalEngine(one.method.client, one.model, one.world.population, workers=0)


def test_arithmetic_is_exact_inside_and_as_before_outside() -> None:
    before = torch.get_num_threads()
    with exactly():
        assert torch.get_num_threads() == 1
        assert not torch.backends.cudnn.allow_tf32
    assert torch.get_num_threads() == before
