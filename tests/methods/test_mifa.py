import torch
from hypothesis import given
from hypothesis import strategies as st

from pmfl.core.keys import Key
from pmfl.core.types import Round, nobody
from pmfl.methods.differences import Store
from pmfl.methods.mifa import Start, mifa, wait_for_all
from tests.oracle import aggregation as oracle
from tests.toy import (
    OPTIMUM,
    PRESENT,
    coins,
    examples,
    given_updates,
    normal,
    play_rounds,
    play_toy,
    points,
    with_empty_rounds,
)

PATH = (
    "(.047500,0) (.042987,.047500) (.036433,.187744) (.030930,.310152) (.025688,.426746) (.020447,.543339) "
    "(.016462,.631966) (.203335,.464392)"
)


def test_toy() -> None:
    torch.testing.assert_close(play_toy(mifa()).path, points(PATH), rtol=0, atol=1e-6)


def test_toy_with_two_rounds_emptied_moves_in_the_second_of_them() -> None:
    path = play_toy(mifa(), with_empty_rounds(0, 2)[:3], total=8).path
    torch.testing.assert_close(path, points("(0,0) (0,.0475) (0,.0950)"), rtol=0, atol=1e-6)


def falling(t: int) -> float:
    return 0.1 / (t + 1)


@examples(40)
@given(
    seed=st.integers(0, 2**32),
    p=st.sampled_from([0.15, 0.5]),
    start=st.sampled_from(["zeros", "wait_for_all"]),
    store=st.sampled_from(["delta", "delta_over_lr"]),
)
def test_against_the_table(seed: int, p: float, start: Start, store: Store) -> None:
    key = Key.root(seed)
    updates, present = normal(key, 14, 4, 3), coins(key.fold("present"), p, 14, 4)
    method = mifa(start=start, store=store, server_lr=0.7)
    engine = given_updates(method.client, updates)
    played = play_rounds(method, engine, present, w=torch.ones(3).double(), client_lr=falling)
    expected = oracle.mifa(
        [1.0] * 3,
        present.tolist(),
        lambda t, k, w: updates[t, k].tolist(),
        eta=0.7,
        wait=start == "wait_for_all",
        over_lr=store == "delta_over_lr",
        lr=falling,
    )
    torch.testing.assert_close(played.path, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-9)


@examples(10)
@given(seed=st.integers(0, 2**32))
def test_the_server_holds_the_mean_of_what_clients_hold(seed: int) -> None:
    key = Key.root(seed)
    method = mifa()
    engine = given_updates(method.client, normal(key, 30, 5, 3))
    played = play_rounds(method, engine, coins(key.fold("present"), 0.3, 30, 5), w=torch.zeros(3).double())
    rows = torch.stack([memory.y for memory in engine.memories.values()])
    torch.testing.assert_close(played.states[-1].server, rows.sum(0) / 5, rtol=0, atol=1e-10)


def test_single_precision_does_not_let_the_running_mean_drift() -> None:
    rounds, clients = 2000, 3
    key = Key.root(1)
    updates, present = normal(key, rounds, clients, 4).float(), coins(key.fold("present"), 0.4, rounds, clients)
    method = mifa(server_lr=1e-6)
    engine = given_updates(method.client, updates)
    played = play_rounds(method, engine, present, w=torch.zeros(4))
    table = torch.stack([engine.memories[k].y for k in range(clients)]).double().mean(0)
    torch.testing.assert_close(played.states[-1].server.double(), table, rtol=0, atol=2e-5)


def test_waiting_selects_nobody_then_everybody_then_whoever_is_there() -> None:
    present = torch.tensor([[1, 0, 0], [0, 0, 0], [0, 1, 0], [0, 0, 1], [0, 1, 1], [0, 0, 0]]).bool()
    chosen, met = [], wait_for_all.init(3)
    for t in range(len(present)):
        now = Round(t, 6, 3, 0.1, Key.root(0))
        chosen.append(wait_for_all.apply(met, present[t], nobody(3), now)[0].int().tolist())
        met = wait_for_all.apply(met, present[t], nobody(3), now)[1]
    assert chosen == [[0, 0, 0], [0, 0, 0], [0, 0, 0], [1, 1, 1], [0, 1, 1], [0, 0, 0]]


def test_waiting_for_all_fills_the_table_at_the_first_model() -> None:
    played = play_toy(mifa(start="wait_for_all"))
    assert torch.equal(played.path[:7], torch.zeros(7, 2).double())
    torch.testing.assert_close(played.path[7], 0.19 * OPTIMUM, rtol=0, atol=1e-9)


def test_with_a_constant_rate_both_stores_are_the_same() -> None:
    torch.testing.assert_close(play_toy(mifa(store="delta_over_lr")).path, play_toy(mifa()).path, rtol=0, atol=1e-10)


def test_with_a_falling_rate_the_stores_differ() -> None:
    """An old update counts at the rate of the round that uses it."""
    present = torch.tensor([[True, False], [False, False]])
    updates = torch.ones(2, 2, 1, dtype=torch.float64)
    ends = []
    for method in (mifa(), mifa(store="delta_over_lr")):
        played = play_rounds(
            method, given_updates(method.client, updates), present, w=torch.zeros(1).double(), client_lr=falling
        )
        ends.append(float(played.path[-1]))
    assert ends == [1.0, 0.75]  # 1/2 + 1/2 against 1/2 + 1/4


def test_the_cycled_toy_ends_in_the_optimum() -> None:
    end = play_toy(mifa(server_lr=0.2), PRESENT.repeat(75, 1)).path[-1]
    torch.testing.assert_close(end, OPTIMUM, rtol=0, atol=1e-6)
