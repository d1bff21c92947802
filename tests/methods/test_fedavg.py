from typing import get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pmfl.core.keys import Key
from pmfl.errors import MethodError
from pmfl.methods.fedavg import MEANS, Mean, fedavg
from tests.oracle import aggregation as oracle
from tests.toy import (
    OPTIMUM,
    PRESENT,
    RATES,
    coins,
    examples,
    given_updates,
    normal,
    play_rounds,
    play_toy,
    points,
    with_empty_rounds,
)

KNOWN = (
    "(.059375,0) (.014584,.095000) (.011813,.456950) (-.025636,.481408) (.035262,.452825) (.035262,.452825) "
    "(-.005807,.477920) (9.474359,-9.846724)"
)
PARTICIPANTS = (
    "(.190000,0) (.153900,.095000) (.124659,.456950) (.100974,.465130) (.271789,.376755) (.271789,.376755) "
    "(.220149,.400171) (.368321,.276639)"
)
ALL = (
    "(.047500,0) (.042987,.047500) (.040946,.140244) (.037056,.174421) (.082796,.166136) (.082796,.166136) "
    "(.074930,.197853) (.250693,.112761)"
)
ALL_TEN = (
    "(.475000,0) (.023750,.475000) (.012469,1.199375) (.000623,.534969) (.475327,.280859) (.475327,.280859) "
    "(.023766,.489043) (1.878610,-.915139)"
)


@pytest.mark.parametrize(
    ("mean", "server_lr", "path"),
    [("known", 1, KNOWN), ("participants", 1, PARTICIPANTS), ("all", 1, ALL), ("all", 10, ALL_TEN)],
)
def test_toy(mean: Mean, server_lr: float, path: str) -> None:
    played = play_toy(fedavg(mean=mean, server_lr=server_lr), rates=RATES)
    torch.testing.assert_close(played.path, points(path), rtol=0, atol=1e-6)


def test_the_mean_over_participants_with_two_empty_rounds() -> None:
    played = play_toy(fedavg(), with_empty_rounds(0, 2)[:3], total=8)
    torch.testing.assert_close(played.path, points("(0,0) (0,.095) (0,.095)"), rtol=0, atol=1e-6)


@examples(40)
@given(seed=st.integers(0, 2**32), p=st.sampled_from([0.1, 0.5, 1.0]), mean=st.sampled_from(get_args(Mean)))
def test_against_the_oracle(seed: int, p: float, mean: Mean) -> None:
    key = Key.root(seed)
    updates, present = normal(key, 6, 5, 3), coins(key.fold("present"), p, 6, 5)
    rates = torch.rand(5, generator=key.torch(), dtype=torch.float64) + 0.05
    method = fedavg(mean=mean, server_lr=0.7)
    played = play_rounds(method, given_updates(method.client, updates), present, w=updates[0, 0], rates=rates)
    expected = oracle.fedavg(
        updates[0, 0].tolist(),
        present.tolist(),
        lambda t, k, w: updates[t, k].tolist(),
        mean=mean,
        eta=0.7,
        rates=rates.tolist(),
        samples=[10 * (k + 1) for k in range(5)],
    )
    torch.testing.assert_close(played.path, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-10)


def test_every_choice_of_mean_has_a_rule() -> None:
    assert set(MEANS) == set(get_args(Mean))


def test_unknown_rates_are_refused_with_a_way_out() -> None:
    with pytest.raises(MethodError, match="rates") as caught:
        play_toy(fedavg(mean="known"))
    assert "fedau" in caught.value.hint


def test_a_client_that_is_never_there_may_have_rate_zero() -> None:
    present = PRESENT.clone()
    present[:, 3] = False
    played = play_toy(fedavg(mean="known"), present, rates=torch.tensor([0.8, 0.25, 0.5, 0.0]))
    assert played.path.isfinite().all()
    assert all(float(outcome.weights[3]) == 0.0 for outcome in played.outcomes)


def test_the_mean_over_participants_is_biased_towards_those_who_are_often_there() -> None:
    cycle = PRESENT.repeat(60, 1)
    end = play_toy(fedavg(server_lr=0.2), cycle).path[-8:].mean(0)
    assert (end - OPTIMUM).norm() > 0.8
    torch.testing.assert_close(end, points("(.4286,.4656)")[0], rtol=0, atol=0.03)
