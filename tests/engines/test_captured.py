"""No GPU is needed: a stand-in for CUDA graphs replays by running the recorded function on the recorded tensors."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from pmfl.core.tree import leaves
from pmfl.engines.captured import REHEARSALS, Captured


class Tape:
    """A graph that fills in the tensors of its recording anew."""

    def __init__(self) -> None:
        self.again: Callable[[], None] = lambda: None

    def replay(self) -> None:
        self.again()


class Stream:
    def wait_stream(self, other: object) -> None: ...


class Counted:
    """A function that counts its runs, and lets a tape repeat its last one in place."""

    def __init__(self) -> None:
        self.runs = 0
        self.tape: Tape | None = None

    def __call__(self, tree: Any, shift: Tensor) -> dict[str, Tensor]:
        self.runs += 1
        value = {"sum": tree["a"] + shift, "twice": 2 * tree["a"]}
        if self.tape is not None:
            self.tape.again = lambda: self.fill(value, {"sum": tree["a"] + shift, "twice": 2 * tree["a"]})
        return value

    @staticmethod
    def fill(value: Any, new: Any) -> None:
        for (_, into), (_, leaf) in zip(leaves(value), leaves(new), strict=True):
            into.copy_(leaf)  # type: ignore[union-attr,arg-type]


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    counted = Counted()

    @contextlib.contextmanager
    def record(tape: Tape, **options: object) -> Iterator[None]:
        counted.tape = tape
        yield
        counted.tape = None

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Tape)
    monkeypatch.setattr(torch.cuda, "graph", record)
    return counted


def test_a_function_is_recorded_once_and_replayed_with_new_numbers(counted: Counted) -> None:
    captured = Captured(counted)
    for i in range(4):
        a, shift = torch.full((3,), float(i)), torch.tensor(10.0 * i)
        value = captured({"a": a}, shift)
        assert value["sum"].tolist() == [11.0 * i] * 3
        assert value["twice"].tolist() == [2.0 * i] * 3
    assert counted.runs == REHEARSALS + 1


def test_what_it_was_first_called_with_stays_as_it_was(counted: Counted) -> None:
    captured, first = Captured(counted), torch.ones(2)
    captured({"a": first}, torch.tensor(1.0))
    captured({"a": torch.zeros(2)}, torch.tensor(1.0))
    assert first.tolist() == [1.0, 1.0]


def test_another_shape_is_another_graph_and_both_stay(counted: Counted) -> None:
    captured = Captured(counted)
    for n in (2, 3, 2, 3):
        assert captured({"a": torch.ones(n)}, torch.tensor(1.0))["sum"].tolist() == [2.0] * n
    assert counted.runs == 2 * (REHEARSALS + 1)
