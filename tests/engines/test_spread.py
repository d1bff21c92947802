from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pmfl.core.tree import to_bytes
from pmfl.core.types import Downlink, Round
from pmfl.engines.crew import Alone
from pmfl.engines.spread import SpreadEngine, spread
from pmfl.errors import EngineError
from pmfl.study.run import Run
from pmfl.study.spec import run_spec

CLIENTS = 12


@given(
    clients=st.sets(st.integers(0, 40)),
    owner=st.dictionaries(st.integers(0, 40), st.integers(0, 3)),
    world=st.integers(1, 4),
)
def test_shares_are_equal_and_who_moves_had_to(clients: set[int], owner: dict[int, int], world: int) -> None:
    owner = {k: rank % world for k, rank in owner.items()}
    placed = spread(sorted(clients), owner, world)
    assert sorted(k for part in placed for k in part) == sorted(clients)
    assert all(part == sorted(part) for part in placed)
    sizes = [len(part) for part in placed]
    assert max(sizes) - min(sizes) <= 1
    at_home = [sum(owner.get(k) == rank for k in part) for rank, part in enumerate(placed)]
    wanted = [sum(owner.get(k) == rank for k in clients) for rank in range(world)]
    for size, here, wish in zip(sizes, at_home, wanted, strict=True):
        assert here >= min(size, wish)  # nobody came from elsewhere while one of its own had to go


class Parrot(Alone):
    """A crew in which the other rank says what it is told to say."""

    def __init__(self, *answers: Any) -> None:
        self.answers, self.world, self.sent = list(answers), 2, list[Any]()

    def share(self, make: Any) -> list[Any]:
        mine = make()
        other = self.answers.pop(0)
        return [mine, other(mine) if callable(other) else other]

    def send(self, numbers: torch.Tensor | None, to: int) -> None:
        self.sent.append((numbers, to))

    def receive(self, of: int) -> torch.Tensor | None:
        found = self.answers.pop(0)
        assert found is None or isinstance(found, torch.Tensor)
        return found


def engine(crew: Alone, method: str = "pmfl") -> tuple[SpreadEngine, Run, Downlink, Round]:
    given = {
        "method": method,
        "data": {"clients": CLIENTS},
        "training": {"rounds": 6, "iterations": 2, "batch_size": 4, "model": {"name": "mlp", "hidden": 8}},
    }
    run = Run(run_spec(given))
    assert not isinstance(run.engine, SpreadEngine)
    sent = Downlink(run.w, torch.tensor(0.1), {})
    return SpreadEngine(run.engine, run.method.client, crew), run, sent, Round(0, 6, CLIENTS, 0.1, run.key)


def chosen(*clients: int) -> torch.Tensor:
    mask = torch.zeros(CLIENTS, dtype=torch.bool)
    mask[list(clients)] = True
    return mask


def test_ranks_that_come_to_another_model_are_stopped() -> None:
    crew = Parrot([], lambda mine: {**mine, "model": mine["model"] + 1})
    one, _, sent, now = engine(crew)
    with pytest.raises(EngineError, match="rank 1 has come to another global model") as caught:
        one.train(sent, chosen(1), now)
    assert "one kind" in caught.value.hint


def as_many(n: int) -> Any:
    """What a rank says that has trained so many clients."""

    def say(mine: dict[str, Any]) -> dict[str, Any]:
        scalars = {name: [kind, (row * n)[:n]] for name, (kind, row) in mine["scalars"].items()}
        return {"scalars": scalars, "peaks": [0.0] * n, "model": mine["model"]}

    return say


def test_memories_go_to_whoever_trains() -> None:
    crew = Parrot([4, 5, 6])
    one, run, sent, now = engine(crew)
    # Client 5 lay with the other rank, which has 4 to train.
    crew.answers += [to_bytes(run.method.client.init(sent.w)), as_many(1)]
    replies = one.train(sent, chosen(4, 5), now)
    assert (one.moved, replies.clients, one.memories.clients()) == (1, [4, 5], {5})
    assert [len(row) for row in replies.seen.scalars.values()] == [2] * len(replies.seen.scalars)
    crew.answers += [as_many(1)]
    one.train(sent, chosen(5, 0, 1), now)  # new ones fill the shares up: nobody moves
    assert (one.moved, one.memories.clients()) == (1, {1, 5})
    crew.answers += [as_many(1)]
    one.train(sent, chosen(1, 5), now)
    assert (one.moved, one.memories.clients()) == (2, {1})
    assert [to for _, to in crew.sent] == [1]


def test_a_memory_that_cannot_be_read_leaves_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    crew = Parrot([])
    one, _, sent, now = engine(crew)
    one._owner = {4: 0, 5: 0}

    def broken(k: int, first: Any) -> Any:
        raise OSError("the disk is gone")

    monkeypatch.setattr(one.memories, "take", broken)
    with pytest.raises(OSError, match="the disk is gone"):
        one.train(sent, chosen(4, 5), now)
    assert crew.sent == [(None, 1)]


def test_a_memory_that_does_not_come_is_not_kept() -> None:
    crew = Parrot(None, as_many(1))
    one, _, sent, now = engine(crew)
    one._owner = {4: 1, 5: 1}
    one.train(sent, chosen(4, 5), now)
    assert one.memories.clients() == {5}  # trained from the first memory, in a round that the other rank calls off
