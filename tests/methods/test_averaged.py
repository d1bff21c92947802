"""The control for the global history: FedAU's own trajectory, seen through an average of its last models."""

from typing import get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pmfl.core.keys import Key
from pmfl.methods.averaged import Average, fedau_mean
from pmfl.methods.fedau import fedau
from tests.toy import coins, examples, given_updates, normal, play_rounds


def window(path: list[list[float]], models: int) -> list[list[float]]:
    """The mean of the last models, written out."""
    shown = []
    for t in range(len(path)):
        last = path[max(t + 1 - models, 0) : t + 1]
        shown.append([sum(column) / len(last) for column in zip(*last, strict=True)])
    return shown


def faded(path: list[list[float]], models: int) -> list[list[float]]:
    """Explicit weights: model i of t counts a_i * prod over later j of (1 - a_j)."""
    shown = []
    for t in range(len(path)):
        rates = [max(2 / (models + 1), 1 / (j + 1)) for j in range(t + 1)]
        total = [0.0] * len(path[0])
        for i in range(t + 1):
            weight = rates[i]
            for later in rates[i + 1 :]:
                weight *= 1 - later
            total = [a + weight * b for a, b in zip(total, path[i], strict=True)]
        shown.append(total)
    return shown


ORACLES = {"window": window, "exponential": faded}


@pytest.mark.parametrize("average", get_args(Average))
@examples(12)
@given(seed=st.integers(0, 2**32), models=st.sampled_from([1, 2, 5]), rounds=st.sampled_from([1, 4, 9]))
def test_what_is_shown_is_the_average_and_the_trajectory_is_fedaus(
    average: Average, seed: int, models: int, rounds: int
) -> None:
    key = Key.root(seed)
    updates, present = normal(key, rounds, 4, 3), coins(key.fold("present"), 0.4, rounds, 4)
    method, plain = fedau_mean(average=average, models=models, cutoff=3), fedau(cutoff=3)
    w = torch.ones(3).double()
    played = play_rounds(method, given_updates(method.client, updates), present, w=w, total=rounds)
    expected = play_rounds(plain, given_updates(plain.client, updates), present, w=w, total=rounds)
    assert torch.equal(torch.stack(list(played.path)), torch.stack(list(expected.path)))
    shown = torch.stack([method.server.show(state.server, state.w) for state in played.states])
    oracle = ORACLES[average]([one.tolist() for one in played.path], models)
    torch.testing.assert_close(shown, torch.tensor(oracle, dtype=torch.float64))


@pytest.mark.parametrize("average", get_args(Average))
def test_before_the_first_round_the_first_model_is_shown(average: Average) -> None:
    server, w = fedau_mean(average=average).server, torch.tensor([1.0, 2.0])
    assert torch.equal(server.show(server.init(w), w), w)


def test_an_average_of_one_model_is_the_model() -> None:
    for average in get_args(Average):
        server, w = fedau_mean(average=average, models=1).server, torch.zeros(2)
        key = Key.root(0)
        state = server.init(w)
        from pmfl.core.types import Round, nobody

        for t in range(3):
            w, state = server.apply(state, w, torch.ones(2), nobody(1), Round(t, 3, 1, 0.1, key))
            assert torch.equal(server.show(state, w), w)
