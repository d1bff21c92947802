from typing import get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from pmfl.core.keys import Key
from pmfl.core.types import Round, Seen
from pmfl.methods.fedau import Intervals, Timing, average_interval, fedau
from tests.oracle import aggregation as oracle
from tests.toy import PRESENT, coins, examples, given_updates, normal, play_rounds, play_toy, points

NAN = float("nan")

# Section 1.2 of ALGORITHMS: cutoff, participation, weights used in each round.
VECTORS = {
    "S1": (4, "0010110000001", "- - 3 3 2.5 2 2 2 2 2.5 2.5 2.5 2.6", "1 1 1 3 3 2.5 2 2 2 2 2.5 2.5 2.5"),
    "S2": (50, "1111", "1 1 1 1", "1 1 1 1"),
    "S3": (4, "0000000000", "- - - 4 4 4 4 4 4 4", "1 1 1 1 4 4 4 4 4 4"),
    "S4": (4, "000100001", "- - - 4 4 4 4 4 3", "1 1 1 1 4 4 4 4 4"),
    "S5": (100, "0000001", "- - - - - - 7", "1 1 1 1 1 1 1"),
}
S1_STATES = [(1, 0), (2, 0), (0, 1), (1, 1), (0, 2), (0, 3), (1, 3), (2, 3), (3, 3), (0, 4), (1, 4), (2, 4), (0, 5)]


def weights_of(present: Tensor, cutoff: int, timing: Timing) -> tuple[Tensor, list[Intervals]]:
    """x used in each round, [T, K], and the state after it."""
    rounds, clients = present.shape
    rule = average_interval(cutoff, timing)
    state, used, states = rule.init(clients), [], []
    for t in range(rounds):
        weights, state = rule.apply(state, Seen(present[t], {}), Round(t, rounds, clients, 0.1, Key.root(0)))
        used.append(weights * clients)
        states.append(state)
    return torch.stack(used), states


def numbers(text: str) -> Tensor:
    return torch.tensor([NAN if word == "-" else float(word) for word in text.split()], dtype=torch.float64)


@pytest.mark.parametrize("name", VECTORS)
def test_weight_vectors(name: str) -> None:
    cutoff, marks, inclusive, predictive = VECTORS[name]
    present = torch.tensor([[mark == "1"] for mark in marks])
    vectors: tuple[tuple[Timing, str], ...] = (("inclusive", inclusive), ("predictive", predictive))
    for timing, text in vectors:
        used, _ = weights_of(present, cutoff, timing)
        torch.testing.assert_close(used[:, 0], numbers(text), rtol=0, atol=1e-12, equal_nan=True)


def test_the_state_of_s1() -> None:
    cutoff, marks, _, _ = VECTORS["S1"]
    _, states = weights_of(torch.tensor([[mark == "1"] for mark in marks]), cutoff, "inclusive")
    assert [(int(state.q), int(state.r)) for state in states] == S1_STATES


def test_the_importance_on_record_is_the_mean_interval_so_far() -> None:
    rule = average_interval(4, "predictive")
    _, states = weights_of(torch.tensor([[True, False], [False, False]]), 4, "predictive")
    recorded = rule.importance(states[-1])
    assert recorded is not None
    torch.testing.assert_close(recorded, numbers("1 -"), equal_nan=True)


@examples(60)
@given(
    marks=st.lists(st.lists(st.booleans(), min_size=3, max_size=3), min_size=1, max_size=40), cutoff=st.integers(0, 6)
)
def test_the_recursion_is_the_mean_of_the_list_of_intervals(marks: list[list[bool]], cutoff: int) -> None:
    inclusive, _ = weights_of(torch.tensor(marks), cutoff, "inclusive")
    predictive, _ = weights_of(torch.tensor(marks), cutoff, "predictive")
    for k in range(3):
        here = [row[k] for row in marks]
        as_printed = [NAN if x is None else x for x in oracle.inclusive_weights(here, cutoff)]
        as_listed = oracle.fedau_weights(here, cutoff)
        torch.testing.assert_close(inclusive[:, k].tolist(), as_printed, rtol=0, atol=1e-10, equal_nan=True)
        torch.testing.assert_close(predictive[:, k].tolist(), as_listed, rtol=0, atol=1e-10)


@examples(20)
@given(seed=st.integers(0, 2**32), timing=st.sampled_from(["inclusive", "predictive"]))
def test_permuting_clients_permutes_weights(seed: int, timing: Timing) -> None:
    present = coins(Key.root(seed), 0.3, 20, 6)
    order = torch.randperm(6, generator=Key.root(seed).fold("order").torch())
    used, _ = weights_of(present, 5, timing)
    permuted, _ = weights_of(present[:, order], 5, timing)
    torch.testing.assert_close(permuted, used[:, order], rtol=0, atol=0, equal_nan=True)


SAME = (
    "(.047500,0) (.042987,.047500) (.040946,.140244) (-.012389,.215259) (.051729,.201626) (.051729,.201626) "
    "(.008118,.265500) "
)


@pytest.mark.parametrize(("cutoff", "last"), [(0, "(.150803,.373806)"), (3, "(.530032,-.031416)")])
def test_toy(cutoff: int, last: str) -> None:
    played = play_toy(fedau(cutoff=cutoff))
    torch.testing.assert_close(played.path, points(SAME + last), rtol=0, atol=1e-6)


def test_the_weights_of_the_last_toy_round() -> None:
    played = play_toy(fedau(cutoff=3))
    torch.testing.assert_close(played.outcomes[-1].weights * 4, numbers("1.4 3 2.3333333333 3"))


@examples(30)
@given(seed=st.integers(0, 2**32), cutoff=st.integers(0, 5), server_lr=st.sampled_from([0.5, 1.0]))
def test_against_the_oracle(seed: int, cutoff: int, server_lr: float) -> None:
    key = Key.root(seed)
    updates, present = normal(key, 12, 4, 3), coins(key.fold("present"), 0.4, 12, 4)
    method = fedau(cutoff=cutoff, server_lr=server_lr)
    played = play_rounds(method, given_updates(method.client, updates), present, w=torch.zeros(3).double())
    expected = oracle.fedau(
        [0.0] * 3, present.tolist(), lambda t, k, w: updates[t, k].tolist(), c=cutoff, eta=server_lr
    )
    torch.testing.assert_close(played.path, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-10)


def test_an_empty_round_leaves_the_model_where_it_is() -> None:
    path = play_toy(fedau()).path
    assert torch.equal(path[5], path[4])
    assert not torch.equal(path[6], path[5])


def test_the_mean_weight_becomes_the_truncated_mean_interval() -> None:
    """E[min(Geometric(p), C)] = (1 - (1 - p)^C) / p within 3 %, and so p x = 1 - (1 - p)^C."""
    rates, cutoff, copies = torch.tensor([0.02, 0.05, 0.1, 0.402, 1.0]).double(), 50, 40
    p = rates.repeat_interleave(copies)
    generator = Key.root(7).torch()
    for timing in get_args(Timing):
        rule = average_interval(cutoff, timing)
        state = rule.init(len(p))
        for t in range(4000):
            here = torch.rand(len(p), generator=generator, dtype=torch.float64) < p
            weights, state = rule.apply(state, Seen(here, {}), Round(t, 4000, len(p), 0.1, Key.root(0)))
        x = (weights * len(p)).view(-1, copies).mean(1)
        torch.testing.assert_close(x * rates, 1 - (1 - rates) ** cutoff, rtol=0.03, atol=0)


def test_fedau_swings_around_the_optimum_of_the_cycled_toy() -> None:
    cycle = play_toy(fedau(cutoff=0, server_lr=0.2), PRESENT.repeat(100, 1)).path[-8:]
    torch.testing.assert_close(cycle.mean(0), points("(1.0268,-.2761)")[0], rtol=0, atol=0.01)
    torch.testing.assert_close(cycle.amax(0) - cycle.amin(0), points("(.16,.18)")[0], rtol=0, atol=0.02)
