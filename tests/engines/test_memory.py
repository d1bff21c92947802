from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pmfl.core.types import Vector
from pmfl.engines.memory import RamMemory


def memory(value: float) -> tuple[Vector, dict[str, Vector]]:
    return torch.full((3,), value), {"count": torch.tensor(int(value))}


def test_a_client_that_never_took_part_costs_nothing() -> None:
    memories = RamMemory()
    assert memories.get(5) is None
    assert (len(memories), memories.size()) == (0, 0)
    memories.put(5, memory(1.0))
    assert (len(memories), memories.size()) == (1, 3 * 4 + 8)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.lists(st.integers(0, 6), max_size=5), min_size=1, max_size=8))
def test_segments_hold_the_newest_of_everybody(
    tmp_path_factory: pytest.TempPathFactory, rounds: list[list[int]]
) -> None:
    folder = tmp_path_factory.mktemp("segments")
    memories, newest, segments = RamMemory(), dict[int, float](), dict[str, list[int]]()
    for t, clients in enumerate(rounds):
        for k in clients:
            newest[k] = float(100 * t + k)
            memories.put(k, memory(newest[k]))
        segments = memories.save(folder, f"memory-{t}.safetensors")
        assert sum(map(len, segments.values())) <= 2 * len(newest)
    loaded = RamMemory()
    loaded.load(folder, segments, lambda: memory(0.0))
    assert len(loaded) == len(newest)
    for k, value in newest.items():
        held = loaded.get(k)
        assert held is not None
        vector, numbers = held
        assert float(vector[0]) == value
        assert int(numbers["count"]) == int(value)
    loaded.put(0, memory(7.0))
    again = RamMemory()
    again.load(folder, loaded.save(folder, "memory-last.safetensors"), lambda: memory(0.0))
    newest_of_all = again.get(0)
    assert newest_of_all is not None
    assert float(newest_of_all[0][0]) == 7.0
