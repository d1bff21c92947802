import inspect
from typing import Any

import pytest
import torch

from pmfl.core.method import participant_mean, plain_client
from pmfl.methods.ablations import pmfl_awc, pmfl_hgm, pmfl_mct
from pmfl.methods.fedavg import fedavg
from pmfl.methods.pmfl import pmfl
from tests.toy import PRESENT, play_toy

# What each ablation takes away, and the parameters that go with it.
TAKEN = {
    pmfl_mct: {"contrast_weight", "temperature", "local_models", "threshold", "history_unit"},
    pmfl_awc: {"cutoff", "timing"},
    pmfl_hgm: {"global_models", "history_in"},
}


@pytest.mark.parametrize("ablation", TAKEN)
def test_an_ablation_has_the_other_parameters_of_pmfl_with_their_defaults(ablation: Any) -> None:
    full, less = inspect.signature(pmfl).parameters, inspect.signature(ablation).parameters
    assert {name: (p.default, p.annotation) for name, p in less.items()} == {
        name: (p.default, p.annotation) for name, p in full.items() if name not in TAKEN[ablation]
    }


def test_without_the_contrast_clients_train_plainly() -> None:
    method = pmfl_mct(cutoff=3)
    assert (method.name, method.client) == ("pmfl-mct", plain_client)
    assert torch.equal(play_toy(method).path, play_toy(pmfl(contrast_weight=0, cutoff=3)).path)


def test_without_adaptive_weights_the_mean_is_over_those_who_took_part() -> None:
    method = pmfl_awc()
    assert (method.name, method.weigh) == ("pmfl-awc", participant_mean)
    bare = pmfl_awc(contrast_weight=0, global_models=0)
    assert torch.equal(play_toy(bare).path, play_toy(fedavg()).path)


def test_without_the_global_history_the_step_is_added() -> None:
    method = pmfl_hgm(contrast_weight=0, cutoff=3)
    assert method.name == "pmfl-hgm"
    assert torch.equal(play_toy(method).path, play_toy(pmfl(contrast_weight=0, cutoff=3, global_models=0)).path)


# For every parameter of an ablation: another value. It must reach the rule that remains.
CHANGED: dict[str, Any] = {
    "cutoff": 2,
    "timing": "predictive",
    "global_models": 2,
    "history_in": "broadcast",
    "server_lr": 0.5,
    "contrast_weight": 0.25,
    "temperature": 0.1,
    "local_models": 2,
    "threshold": 0.9,
    "history_unit": "round",
}


SERVER_SIDE = ("cutoff", "timing", "global_models", "history_in", "server_lr")


@pytest.mark.parametrize(
    ("ablation", "name"),
    [(ablation, name) for ablation in TAKEN for name in SERVER_SIDE if name not in TAKEN[ablation]],
)
def test_the_server_side_parameters_arrive(ablation: Any, name: str) -> None:
    plain = {} if ablation is pmfl_mct else {"contrast_weight": 0}
    changed, full = {name: CHANGED[name]}, {"pmfl-mct": "client", "pmfl-awc": "weigh", "pmfl-hgm": "server"}
    less = ablation(**plain, **changed)
    rule = full[less.name]
    expected = pmfl(contrast_weight=0, **changed).but(less.name, **{rule: getattr(less, rule)})
    assert torch.equal(play_toy(less, PRESENT).path, play_toy(expected, PRESENT).path)
    assert not torch.equal(play_toy(less).path, play_toy(ablation(**plain)).path)


@pytest.mark.parametrize("ablation", [pmfl_awc, pmfl_hgm])
@pytest.mark.parametrize("name", ["contrast_weight", "temperature", "local_models", "threshold", "history_unit"])
def test_the_client_side_parameters_arrive(ablation: Any, name: str) -> None:
    changed = {name: CHANGED[name]}
    assert captured(ablation(**changed)) == captured(pmfl(**changed))
    assert captured(ablation(**changed)) != captured(ablation())


def captured(method: Any) -> dict[str, Any]:
    """The numbers and words that the client rule was made with."""
    values: dict[str, Any] = {}
    for rule in (method.client.begin, method.client.loss, method.client.init, method.client.step):
        values |= inspect.getclosurevars(rule).nonlocals
    return {name: value for name, value in values.items() if not callable(value)}
