from __future__ import annotations

import threading
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pmfl.core.tree import size_of
from pmfl.core.types import Vector
from pmfl.engines import memory as module
from pmfl.engines.memory import Memories, Segment

ONE = 3 * 4 + 8  # bytes of a memory below


class Kept(NamedTuple):
    """A memory."""

    vector: Vector
    numbers: dict[str, Tensor]


def memory(value: float) -> Kept:
    return Kept(torch.full((3,), float(value)), {"count": torch.tensor(int(value))})


def first() -> Kept:
    return memory(-1.0)


def value(memories: Memories, k: int) -> float:
    held = memories.get(k, first)
    assert isinstance(held, Kept)
    assert float(held.vector[0]) == int(held.numbers["count"])
    return float(held.vector[0])


def nothing() -> Kept:
    raise AssertionError("what is known needs no first memory")


def rows(segments: dict[str, Segment]) -> int:
    return sum(segment.written for segment in segments.values())


def bytes_in(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.glob("*"))


def test_a_client_that_never_took_part_costs_nothing() -> None:
    memories = Memories()
    assert value(memories, 5) == -1.0
    assert 5 not in memories
    assert (len(memories), memories.size()) == (0, 0)
    memories.put(5, memory(1.0))
    assert 5 in memories
    assert (len(memories), memories.size()) == (1, ONE)


@settings(deadline=None, max_examples=40)
@given(
    rounds=st.lists(st.lists(st.integers(0, 6), max_size=5), min_size=1, max_size=8),
    budget=st.sampled_from([float("inf"), 0.0, ONE, 2.5 * ONE, 5 * ONE]),
    saved=st.sets(st.integers(0, 7)),
)
def test_whatever_the_budget_and_the_checkpoints_the_newest_is_found(
    tmp_path_factory: pytest.TempPathFactory, rounds: list[list[int]], budget: float, saved: set[int]
) -> None:
    folder = tmp_path_factory.mktemp("segments")
    memories, newest = Memories(budget=budget, folder=folder), dict[int, float]()
    segments, at_save = dict[str, Segment](), dict[int, float]()
    for t, clients in enumerate(rounds):
        for k in clients:
            assert value(memories, k) == newest.get(k, -1.0)
            newest[k] = float(100 * t + k)
            memories.put(k, memory(newest[k]))
            assert memories.size() <= max(budget, ONE)
        if t in saved:
            segments, at_save = memories.save(), dict(newest)
            assert rows(segments) <= 2 * len(newest)
            assert sorted(k for segment in segments.values() for k in segment.clients) == sorted(newest)
    assert len(memories) == len(newest)
    assert {k: value(memories, k) for k in newest} == newest
    # Killed here: what the last checkpoint names is as it was, whatever has been written since.
    loaded = Memories(budget=budget, folder=folder)
    loaded.load(segments)
    assert {k: value(loaded, k) for k in at_save} == at_save
    assert len(loaded) == len(at_save)
    loaded.put(0, memory(7.0))
    again = Memories(folder=folder)
    again.load(loaded.save())
    assert value(again, 0) == 7.0


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_any_number_of_ranks_goes_on_with_the_files_of_another(tmp_path: Path, ranks: int) -> None:
    before = Memories(folder=tmp_path)
    for k in range(7):
        before.put(k, memory(k))
    segments = before.save()
    parts = [Memories(folder=tmp_path, rank=rank) for rank in range(ranks)]
    for rank, part in enumerate(parts):
        part.load(segments, range(rank, 7, ranks).__contains__)
        assert len(part) == len(range(rank, 7, ranks))
    assert [value(parts[k % ranks], k) for k in range(7)] == list(range(7))
    parts[0].put(0, memory(10))
    names = [set(part.save()) for part in parts]
    assert len(set.union(*names)) == 2


def test_a_client_moves_from_rank_to_rank(tmp_path: Path) -> None:
    here, there = Memories(folder=tmp_path), Memories(folder=tmp_path, rank=1)
    here.put(3, memory(1.0))
    here.put(4, memory(2.0))
    here.save()
    there.put(3, here.take(3, first))
    assert 3 not in here
    assert (value(there, 3), value(here, 4)) == (1.0, 2.0)
    assert [segment.clients for segment in (here.save() | there.save()).values()] == [[4], [3]]


def test_without_a_folder_files_go_with_the_memories() -> None:
    memories = Memories(budget=ONE)
    for t in range(50):
        memories.put(t % 5, memory(t))
    folder = memories.folder
    assert bytes_in(folder) < 5 * 2 * 400  # nobody saves, and still files stay below twice the memories
    assert [value(memories, k) for k in range(5)] == list(range(45, 50))
    del memories
    assert not folder.exists()


def test_large_memories_go_to_several_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "AT_ONCE", 2 * ONE)
    memories = Memories(folder=tmp_path)
    for k in range(5):
        memories.put(k, memory(k))
    assert [segment.clients for segment in memories.save().values()] == [[0, 1], [2, 3], [4]]


def test_shortened_memories_take_half_the_room_and_keep_two_digits(tmp_path: Path) -> None:
    vector = torch.linspace(-1, 1, 100)[None]  # one row of a history
    short, full = Memories(shortened=True, folder=tmp_path), Memories()
    for memories in (short, full):
        assert memories.get(1, lambda: (vector, torch.tensor(2.5))) is not None
        memories.put(1, (vector, torch.tensor(2.5)))
    assert (full.size(), short.size()) == (404, 204)
    found, number = short.get(1, nothing)
    assert found.dtype == torch.float32
    assert float(number) == 2.5
    assert 0 < float((found - vector).abs().max()) < 0.005
    loaded = Memories(shortened=True, folder=tmp_path)
    loaded.load(short.save())
    assert torch.equal(loaded.get(1, lambda: (vector, torch.tensor(0.0)))[0], found)
    assert size_of(loaded.take(1, nothing)) == 404


def test_threads_may_ask_at_the_same_time(tmp_path: Path) -> None:
    memories = Memories(budget=2 * ONE, folder=tmp_path)
    for k in range(8):
        memories.put(k, memory(0))

    def work(mine: range) -> None:
        for _ in range(20):
            for k in mine:
                memories.put(k, memory(value(memories, k) + 1))

    threads = [threading.Thread(target=work, args=(range(i, 8, 4),)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [value(memories, k) for k in range(8)] == [20.0] * 8
