import dataclasses
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from pmfl.core.keys import Key
from pmfl.core.method import Method, SelectRule, ServerRule, WeighRule
from pmfl.core.round import ServerState, play, start
from pmfl.core.types import Downlink, Round, Seen, nobody
from pmfl.errors import MethodError
from tests.toy import PRESENT, play_toy

Log = list[tuple[Any, ...]]


class Answers(NamedTuple):
    """Replies in which client 1 alone answered."""

    seen: Seen
    log: Log
    updates: tuple[Tensor, ...] = ()

    def weighted_sum(self, weights: Tensor) -> Tensor:
        self.log.append(("sum", weights.tolist()))
        return 10 * weights.sum()[None]


def logged(log: Log) -> tuple[Method, Any]:
    """A method and an engine that write down what they are called with; states count calls."""

    def select(state: int, available: Tensor, last: Seen, now: Round) -> tuple[Tensor, int]:
        log.append(("select", state, available.tolist(), last.took_part.tolist(), now.t))
        return torch.tensor([True, True, False]), state + 1

    def weigh(state: int, seen: Seen, now: Round) -> tuple[Tensor, int]:
        log.append(("weigh", state, seen.took_part.tolist(), now.t))
        return torch.tensor([0.0, 0.5, 0.0], dtype=torch.float64), state + 1

    def send(state: int, w: Tensor, now: Round) -> Downlink:
        log.append(("send", state, w.tolist(), now.t))
        return Downlink(w + 100, torch.tensor(0.1), {})

    def move(state: int, w: Tensor, step: Tensor, seen: Seen, now: Round) -> tuple[Tensor, int]:
        log.append(("move", state, w.tolist(), step.tolist(), seen.took_part.tolist(), now.t))
        return w + step, state + 1

    class Engine:
        def train(self, sent: Downlink, chosen: Tensor, now: Round) -> Answers:
            log.append(("train", sent.w.tolist(), chosen.tolist(), now.t))
            return Answers(Seen(torch.tensor([False, True, False]), {}), log)

    method = Method(
        name="logged",
        select=SelectRule(init=lambda clients: clients, apply=select),
        weigh=WeighRule(init=lambda clients: 10 * clients, apply=weigh),
        server=ServerRule(init=lambda w: 7, apply=move, send=send),
    )
    return method, Engine()


def test_a_run_starts_with_the_states_of_all_rules() -> None:
    method, _ = logged([])
    w = torch.zeros(1)
    state = start(method, w, 3)
    assert state[:5] == (0, w, 3, 30, 7)
    assert state.last.took_part.tolist() == [False] * 3


def test_a_round_selects_trains_weighs_sums_and_moves() -> None:
    log: Log = []
    method, engine = logged(log)
    available = torch.tensor([True, True, True])
    state = ServerState(
        4, torch.tensor([1.0]), 3, 30, 7, nobody(3)._replace(took_part=torch.tensor([True, False, True]))
    )
    after, outcome = play(method, engine, state, available, Round(4, 9, 3, 0.1, Key.root(0)))
    assert log == [
        ("select", 3, [True, True, True], [True, False, True], 4),
        ("send", 7, [1.0], 4),
        ("train", [101.0], [True, True, False], 4),
        ("weigh", 30, [False, True, False], 4),  # who answered, not who was asked
        ("sum", [0.0, 0.5, 0.0]),
        ("move", 7, [1.0], [5.0], [False, True, False], 4),
    ]
    assert (after.t, after.w.tolist(), after.select, after.weigh, after.server) == (5, [6.0], 4, 31, 8)
    assert after.last.took_part.tolist() == [False, True, False]
    assert outcome.t == 4
    assert outcome.weights.tolist() == [0.0, 0.5, 0.0]
    assert outcome.replies.seen is after.last
    assert state.w.tolist() == [1.0]


def test_the_rounds_of_a_run_count_up_and_know_who_was_there() -> None:
    played = play_toy(Method(name="plain"))
    assert [state.t for state in played.states] == list(range(1, 9))
    assert [outcome.t for outcome in played.outcomes] == list(range(8))
    assert torch.equal(torch.stack([state.last.took_part for state in played.states]), PRESENT)


@pytest.mark.parametrize("rule", ["select", "weigh"])
def test_a_rule_that_gives_another_number_of_clients_is_refused(rule: str) -> None:
    log: Log = []
    method, engine = logged(log)
    longer: dict[str, Any] = {
        "select": SelectRule(
            init=lambda clients: (), apply=lambda state, available, last, now: (torch.ones(4, dtype=torch.bool), state)
        ),
        "weigh": WeighRule(init=lambda clients: (), apply=lambda state, seen, now: (torch.ones(4).double(), state)),
    }
    method = dataclasses.replace(method, **{rule: longer[rule]})
    now = Round(t=5, total=9, clients=3, client_lr=0.1, key=Key.root(0), rates=None)
    with pytest.raises(MethodError, match=rf"round 5: the {rule} rule gave a tensor of shape \(4,\) for 3 clients"):
        play(method, engine, start(method, torch.zeros(1), 3), torch.ones(3, dtype=torch.bool), now)
