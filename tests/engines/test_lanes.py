from __future__ import annotations

import numpy as np
import pytest
import torch

import pmfl
from pmfl.core.keys import Key
from pmfl.core.tree import leaves, stack
from pmfl.core.types import Downlink, Round
from pmfl.engines.lanes import LanesEngine, device_named
from pmfl.errors import Diverged, EngineError, MethodError
from pmfl.study.run import Run
from pmfl.study.spec import run_spec
from pmfl.world.augment import AUGMENTS
from pmfl.world.networks import MODELS
from pmfl.world.population import Population
from pmfl.world.resident import Resident

METHODS = ["pmfl", "mifa", "fedvarp", "moon", "fedhyper", "fedppo"]


def run(method: str = "pmfl", **engine: object) -> Run:
    given = {
        "method": method,
        "data": {"clients": 12},
        "participation": {"mean": 0.4},
        "training": {"rounds": 6, "iterations": 3, "batch_size": 4, "model": {"name": "mlp", "hidden": 8}},
        "evaluation": {"every": 3, "train_every": 3},
        "engine": engine,
    }
    return Run(run_spec(given))


def played(one: Run) -> torch.Tensor:
    for _ in one:
        pass
    one.close()
    return one.w


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("lanes", [2, 5, 12])
def test_lanes_give_the_numbers_of_clients_one_by_one(method: str, lanes: int) -> None:
    alone = played(run(method, dtype="float64"))
    together = played(run(method, dtype="float64", lanes=lanes))
    assert torch.allclose(alone, together, rtol=0, atol=1e-10)


def test_evaluation_and_metrics_are_those_of_the_local_engine() -> None:
    alone, together = list(run(dtype="float64")), list(run(dtype="float64", lanes=4))
    assert alone[-1].values.keys() == together[-1].values.keys()
    for name, value in alone[-1].values.items():
        assert together[-1].values[name] == pytest.approx(value, abs=1e-9), name
    assert np.allclose(alone[-1].per_client["loss"], together[-1].per_client["loss"], equal_nan=True)


def images(augment: str, *, holds_out: bool = False, dropout: bool = False) -> Population:
    rng = np.random.Generator(np.random.Philox(key=5))
    x = rng.integers(0, 256, (40, 8, 8, 3), dtype=np.uint8)
    data = pmfl.from_arrays(x, np.arange(40) % 3, x[:3], np.arange(3), mean=(0.4, 0.5, 0.6), std=(0.2, 0.2, 0.2))
    model = MODELS["cnn-cifar100" if dropout else "cnn-svhn"]((8, 8, 3), 3)
    owned = [np.arange(k, 40, 4) for k in range(4)]
    return Population(data, owned, model, Key.root(1), iterations=2, batch_size=3, augment=augment, holds_out=holds_out)


@pytest.mark.parametrize("augment", sorted(AUGMENTS))
@pytest.mark.parametrize("holds_out", [False, True])
def test_resident_samples_are_each_clients_own_to_the_bit(augment: str, holds_out: bool) -> None:
    population = images(augment, holds_out=holds_out, dropout=holds_out)
    resident = Resident(population, torch.device("cpu"))
    found = dict(leaves(resident.works(3, [2, 0, 2])))
    expected = dict(leaves(stack([population.work(3, k) for k in (2, 0, 2)])))
    assert found.keys() == expected.keys()
    for path, leaf in expected.items():
        if isinstance(leaf, torch.Tensor):
            assert torch.equal(found[path], leaf), path  # type: ignore[arg-type]


def test_a_weighted_sum_names_who_diverged() -> None:
    one = run(lanes=3)
    sent = Downlink(one.w, torch.tensor(float("nan")), {})
    chosen = torch.zeros(12, dtype=torch.bool)
    chosen[[2, 7]] = True
    replies = one.engine.train(sent, chosen, Round(3, 6, 12, 0.1, one.key))
    with pytest.raises(Diverged, match="round 3") as caught:
        replies.weighted_sum(torch.ones(12, dtype=torch.float64))
    assert caught.value.clients == [2, 7]


def test_a_round_without_anybody_sums_to_zero() -> None:
    one = run(lanes=3)
    nobody = torch.zeros(12, dtype=torch.bool)
    replies = one.engine.train(Downlink(one.w, torch.tensor(0.1), {}), nobody, Round(0, 6, 12, 0.1, one.key))
    assert replies.updates == []
    assert not replies.weighted_sum(torch.ones(12)).any()


def test_a_rule_that_raises_is_named_with_round_and_clients() -> None:
    def broken(w: torch.Tensor) -> tuple[()]:
        raise KeyError("nothing here")

    one = run()
    rule = pmfl.ClientRule(init=broken)
    engine = LanesEngine(rule, one.model, one.world.population, lanes=4)
    chosen = torch.zeros(12, dtype=torch.bool)
    chosen[[4, 5]] = True
    with pytest.raises(MethodError, match="round 5, client 4, 5: a client rule raised KeyError"):
        engine.train(Downlink(one.w, torch.tensor(0.1), {}), chosen, Round(5, 6, 12, 0.1, one.key))


def test_what_an_engine_cannot_do_is_refused() -> None:
    one = run()
    with pytest.raises(EngineError, match="count from 1"):
        LanesEngine(one.method.client, one.model, one.world.population, lanes=0)
    for device in ("cuda:99", "abacus"):
        with pytest.raises(EngineError) as caught:
            device_named(device)
        assert "cpu" in caught.value.hint
