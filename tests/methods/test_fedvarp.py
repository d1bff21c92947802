import torch
from hypothesis import given
from hypothesis import strategies as st

from pmfl.core.keys import Key
from pmfl.methods.fedvarp import fedvarp
from tests.oracle import aggregation as oracle
from tests.toy import coins, examples, given_updates, normal, play_rounds, play_toy, points, with_empty_rounds

PATH = (
    "(.190000,0) (.106400,.095000) (.068134,.504450) (.068185,.546592) (.056648,.628650) (.056648,.628650) "
    "(.047306,.697118) (.228318,.517166)"
)


def test_toy() -> None:
    torch.testing.assert_close(play_toy(fedvarp()).path, points(PATH), rtol=0, atol=1e-6)


def test_toy_with_two_rounds_emptied_stays_in_both() -> None:
    path = play_toy(fedvarp(), with_empty_rounds(0, 2)[:3], total=8).path
    torch.testing.assert_close(path, points("(0,0) (0,.095) (0,.095)"), rtol=0, atol=1e-6)


@examples(40)
@given(seed=st.integers(0, 2**32), p=st.sampled_from([0.15, 0.5, 1.0]), server_lr=st.sampled_from([0.5, 1.0]))
def test_against_the_table(seed: int, p: float, server_lr: float) -> None:
    key = Key.root(seed)
    updates, present = normal(key, 14, 4, 3), coins(key.fold("present"), p, 14, 4)
    method = fedvarp(server_lr=server_lr)
    engine = given_updates(method.client, updates)
    played = play_rounds(method, engine, present, w=torch.ones(3).double())
    expected = oracle.fedvarp([1.0] * 3, present.tolist(), lambda t, k, w: updates[t, k].tolist(), eta=server_lr)
    torch.testing.assert_close(played.path, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-9)
    rows = [memory.y for memory in engine.memories.values()]
    if rows:
        torch.testing.assert_close(played.states[-1].server, torch.stack(rows).sum(0) / 4, rtol=0, atol=1e-10)


def test_identical_clients_make_it_fedavg() -> None:
    """With the same update from all, every client's y is that update, and nothing is left to correct."""
    updates = torch.full((5, 3, 2), 0.25).double()
    method = fedvarp()
    everybody = torch.ones(5, 3, dtype=torch.bool)
    path = play_rounds(method, given_updates(method.client, updates), everybody, w=torch.zeros(2).double()).path
    torch.testing.assert_close(path[:, 0], 0.25 * torch.arange(1, 6).double())
